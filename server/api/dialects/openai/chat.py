"""`POST /v1/chat/completions`: rendering of whole answers, and of the chunks of streamed answers."""

from __future__ import annotations

from typing import Any, Literal

from server.api.bodies.sse import data_frame
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.dialects.openai.common import (
    ERRORS,
    FinishReason,
    OpenAIUsage,
    continuous_usage,
    end_of_stream,
    finish_reason,
    logprobs,
    new_id,
    now,
    stream_error,
    usage,
    usage_of_chunk,
)
from server.api.routes.error_shape import AnswerBody
from server.api.routes.streaming_route import StreamingRoute
from server.errors import RequestError
from server.operations.chatting.chat import ChatChoice, ChatDelta, ChatResult, ChatRun, ToolCallDelta, chat


class CalledFunction(AnswerBody):
    """A function that the model calls. `arguments`: JSON text of an object."""

    name: str
    arguments: str


class ChatToolCall(AnswerBody):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(AnswerBody):
    """The message of an answer. `content`: null if the answer has only tool calls.

    `reasoning_content`: text that the model has marked as reasoning.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatTopLogprob(AnswerBody):
    """A token with its log-probability. `bytes`: the token's UTF-8 bytes; null for a token without text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(ChatTopLogprob):
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(AnswerBody):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatAnswerChoice(AnswerBody):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletionAnswer(AnswerBody):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatAnswerChoice]
    usage: OpenAIUsage


class ChatCompletionRenderer:
    """Renders chat answers, whole or as chunks with one choice each.

    The first chunk of a choice contains the role, and the last chunk the finish reason.
    """

    def __init__(self, body: ChatCompletionBody, run: ChatRun) -> None:
        self.include_usage = body.includes_usage
        self.usage_so_far = run.usage if continuous_usage(body.stream_options) else None
        self.id, self.created, self.model = new_id("chatcmpl"), now(), run.model_name
        self.begun: set[int] = set()

    def whole(self, result: ChatResult) -> dict[str, Any]:
        choices = [self._choice(index, choice) for index, choice in enumerate(result.choices)]
        return self._head("chat.completion") | {"choices": choices, "usage": usage(result.usage)}

    def _choice(self, index: int, choice: ChatChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.tool_calls:
            message["content"] = choice.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.tool_calls
            ]
        scored = choice.logprobs
        return {
            "index": index,
            "message": message,
            "logprobs": None if scored is None else {"content": logprobs(scored), "refusal": None},
            "finish_reason": finish_reason(choice.finish_reason),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def deltas(self, deltas: list[ChatDelta]) -> bytes:
        frames = []
        for delta in deltas:
            new = _delta(delta)
            if new or delta.logprobs:
                scored = {"content": logprobs(delta.logprobs), "refusal": None} if delta.logprobs else None
                frames += [self._begin(delta.index), self._chunk(delta.index, new, scored)]
        return b"".join(frames)

    def _begin(self, index: int) -> bytes:
        """The first chunk of a choice, or no bytes if it was rendered before. index: index of the choice."""
        if index in self.begun:
            return b""
        self.begun.add(index)
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(self, index: int, delta: Any, logprobs: Any = None, finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        return data_frame(chunk | usage_of_chunk(self.include_usage, self.usage_so_far))

    def end(self, result: ChatResult) -> bytes:
        frames = b"".join(
            [
                self._begin(index) + self._chunk(index, {}, finish_reason=finish_reason(choice.finish_reason))
                for index, choice in enumerate(result.choices)
            ]
        )
        return frames + end_of_stream(self._head("chat.completion.chunk"), self.include_usage, result.usage)

    def error(self, error: RequestError, request_id: str) -> bytes:
        return stream_error(error, request_id)


def _delta(delta: ChatDelta) -> dict[str, Any]:
    """Fields of a message that have new text or calls."""
    new: dict[str, Any] = {}
    if delta.reasoning:
        new["reasoning_content"] = delta.reasoning
    if delta.content:
        new["content"] = delta.content
    if delta.tool_calls:
        new["tool_calls"] = [_call_delta(call) for call in delta.tool_calls]
    return new


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": call.arguments}
    if call.name is None:
        return {"index": call.index, "function": function}
    return {"index": call.index, "id": call.id, "type": "function", "function": {"name": call.name} | function}


EXAMPLE = (
    {"model": "llama", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 64},
    {
        "id": "chatcmpl-0d1f",
        "object": "chat.completion",
        "created": 1764000000,
        "model": "llama",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Air scatters blue light most.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 14,
            "completion_tokens": 8,
            "total_tokens": 22,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    },
)

ROUTE = StreamingRoute(
    path="/v1/chat/completions",
    aliases=("/models/{model}/v1/chat/completions",),
    operation="chat",
    name="chat_completions",
    description="Answer chat messages with a model whose checkpoint has a chat template.",
    body=ChatCompletionBody,
    answer=ChatCompletionAnswer,
    example=EXAMPLE,
    parse=ChatCompletionBody.spec,
    run=chat,
    renderer=ChatCompletionRenderer,
    errors=ERRORS,
)
