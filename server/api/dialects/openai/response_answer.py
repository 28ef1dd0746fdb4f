"""Schemas of the answers of `/v1/responses`."""

from __future__ import annotations

from typing import Any, Literal

from server.api.dialects.openai.chat import ChatTokenLogprob
from server.api.error_shape import AnswerBody

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
    """Reasoning before an answer."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ResponseReasoningText]


class ResponseFunctionCall(AnswerBody):
    """`arguments`: JSON text of an object."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseIncomplete(AnswerBody):
    reason: Literal["max_output_tokens"]


class ResponseInputDetails(AnswerBody):
    cached_tokens: int


class ResponseOutputDetails(AnswerBody):
    """`reasoning_tokens`: null for an answer with reasoning, whose tokens are not counted separately."""

    reasoning_tokens: int | None


class ResponseUsage(AnswerBody):
    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponsesAnswer(AnswerBody):
    """An answer. The fields after `usage` repeat the request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: ResponseIncomplete | None
    model: str
    output: list[ResponseReasoningItem | ResponseOutputMessage | ResponseFunctionCall]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: Any
    parallel_tool_calls: bool
    previous_response_id: None
    store: Literal[False]
    temperature: float | None
    text: Any
    tool_choice: Any
    tools: list[Any]
    top_p: float | None
    truncation: Literal["disabled"]
