"""Schemas of the answers of `/v1/responses`."""

from __future__ import annotations

from typing import Any, Literal

from server.api.dialects.openai.chat import ChatTokenLogprob
from server.api.routes.error_shape import AnswerBody

ItemStatus = Literal["completed", "incomplete"]


class ResponseOutputText(AnswerBody):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatTokenLogprob]


class ResponseOutputMessage(AnswerBody):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[ResponseOutputText]


class ResponseReasoningText(AnswerBody):
    type: Literal["reasoning_text"]
    text: str


class ResponseReasoningItem(AnswerBody):
    """The reasoning before an answer. `encrypted_content`: the same text, encoded, if the request includes it."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ResponseReasoningText]
    encrypted_content: str | None = None


class ResponseFunctionCall(AnswerBody):
    """A function call of the model. `arguments`: JSON text of an object."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseIncomplete(AnswerBody):
    reason: Literal["max_output_tokens"]


class ResponseError(AnswerBody):
    """Why an answer failed after its beginning."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class ResponseInputDetails(AnswerBody):
    """`cached_tokens`: number of prompt tokens found in the prefix cache. `cache_write_tokens`: always 0."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseOutputDetails(AnswerBody):
    """`reasoning_tokens`: number of reasoning tokens, which are also counted in `output_tokens`."""

    reasoning_tokens: int


class ResponseReasoningSettings(AnswerBody):
    """The reasoning settings of the request. `summary` is null, because the server makes no summary."""

    effort: Any
    summary: None


class ResponseUsage(AnswerBody):
    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponsesAnswer(AnswerBody):
    """An answer of `/v1/responses`. The fields after `usage` repeat the request's values.

    `store` is an exception: it tells whether the answer is really stored.
    """

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: ResponseIncomplete | None
    model: str
    output: list[ResponseReasoningItem | ResponseOutputMessage | ResponseFunctionCall]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: Any
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ResponseReasoningSettings
    store: bool
    temperature: float | None
    text: Any
    tool_choice: Any
    tools: list[Any]
    top_p: float | None
    truncation: Literal["disabled"]


class DeletedResponse(AnswerBody):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseItemList(AnswerBody):
    """A page of conversation items: input as the client sent it, and output as it was in an earlier answer."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
