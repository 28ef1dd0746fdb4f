"""The routes of the Anthropic dialect, and the rendering of answers, event streams and errors."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from server.api.bodies.sse import frame
from server.api.dialects.anthropic.bodies import AnthropicCountBody, AnthropicMessagesBody
from server.api.fields.chat_fields import started_arguments
from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape
from server.api.routes.route import JsonRoute, Route
from server.api.routes.streaming_route import StreamingRoute
from server.errors import ContextLengthExceeded, RequestError
from server.ipc.client.call import Call
from server.operations.chatting.chat import (
    ChatChoice,
    ChatDelta,
    ChatResult,
    ChatRun,
    ChatSpec,
    chat,
    count_prompt_tokens,
)
from server.operations.generating.generation_run import TokenUsage
from server.operations.runtime import Runtime


class AnthropicUsage(AnswerBody):
    """Token counts of an answer. `cache_read_input_tokens`: prompt tokens that were found in the prefix cache.

    `input_tokens`: the other prompt tokens. `cache_creation_input_tokens`: always 0.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicAnswerText(AnswerBody):
    type: Literal["text"]
    text: str


class AnthropicAnswerThinking(AnswerBody):
    type: Literal["thinking"]
    thinking: str
    signature: str


class AnthropicAnswerToolUse(AnswerBody):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class AnthropicMessage(AnswerBody):
    """The answer of `/v1/messages`. If `max_tokens` cuts off a tool call, its `input` has only the complete members."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicAnswerText | AnthropicAnswerThinking | AnthropicAnswerToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"] | None
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicTokenCount(AnswerBody):
    input_tokens: int


class AnthropicErrorObject(ErrorMembers):
    type: str
    message: str


class AnthropicErrorAnswer(AnswerBody):
    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _error(error: RequestError, request_id: str) -> dict[str, Any]:
    kind, message = _ERROR_TYPES.get(error.status, "invalid_request_error"), error.message
    if isinstance(error, ContextLengthExceeded):
        # Claude Code shortens a conversation when it reads these words, and takes the numbers from them.
        counts = f"{error.counts[0]} tokens > {error.counts[1]} maximum; " if error.counts else ""
        message = f"prompt is too long: {counts}{message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


ERRORS = ErrorShape(
    statuses={422: 400, 503: 529},
    body=_error,
    answer=AnthropicErrorAnswer,
    fields={"max_new_tokens": "max_tokens", "stop": "stop_sequences", "response_format": "output_config"},
)


class MessageRenderer:
    """Renders one answer of `/v1/messages`: a message of content blocks, or events that build the same message."""

    def __init__(self, body: AnthropicMessagesBody, run: ChatRun) -> None:
        self.body = body
        self.run = run
        self.id = f"msg_{uuid.uuid4().hex}"
        self.started = False
        self.blocks = 0
        self.open_block = ""

    def whole(self, result: ChatResult) -> dict[str, Any]:
        (choice,) = result.choices
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.content:
            content.append({"type": "text", "text": choice.content})
        for call in choice.tool_calls:
            given = started_arguments(call.arguments)
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
        return self._message(content, result.usage) | self._stop(choice)

    def deltas(self, deltas: list[ChatDelta]) -> bytes:
        events = b""
        if not self.started:
            self.started = True
            events += _event("message_start", message=self._message([], self.run.usage()))
        for delta in deltas:
            if delta.reasoning:
                events += self._in_block("thinking", {"thinking": "", "signature": ""})
                events += self._delta("thinking_delta", thinking=delta.reasoning)
            if delta.content:
                events += self._in_block("text", {"text": ""})
                events += self._delta("text_delta", text=delta.content)
            for call in delta.tool_calls:
                if call.id is not None:
                    events += self._close() + self._in_block(
                        "tool_use", {"id": call.id, "name": call.name, "input": {}}
                    )
                if call.arguments:
                    events += self._delta("input_json_delta", partial_json=call.arguments)
        return events

    def end(self, result: ChatResult) -> bytes:
        delta = _event("message_delta", delta=self._stop(result.choices[0]), usage=_usage(result.usage))
        return self._close() + delta + _event("message_stop")

    def error(self, error: RequestError, request_id: str) -> bytes:
        return frame("error", ERRORS.render(error, request_id))

    def _message(self, content: list[dict[str, Any]], usage: TokenUsage) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.run.model_name,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _stop(self, choice: ChatChoice) -> dict[str, Any]:
        """The fields `stop_reason` and `stop_sequence`. An answer cut before `max_tokens` has filled the context."""
        reason, text = "end_turn", None
        if choice.finish_reason == "length":
            full = len(choice.token_ids) >= self.body.max_tokens
            reason = "max_tokens" if full else "model_context_window_exceeded"
        elif choice.finish_reason == "tool_calls":
            reason = "tool_use"
        elif isinstance(choice.stop_reason, str):
            reason, text = "stop_sequence", choice.stop_reason
        return {"stop_reason": reason, "stop_sequence": text}

    def _in_block(self, kind: str, content: dict[str, Any]) -> bytes:
        """Bytes of the events that end the open content block and begin another one.

        Empty if the open block is of this kind.
        kind: the `type` of the block. content: the other fields of the new block.
        """
        if self.open_block == kind:
            return b""
        closed = self._close()
        self.open_block = kind
        return closed + _event("content_block_start", index=self.blocks, content_block={"type": kind, **content})

    def _delta(self, kind: str, **content: str) -> bytes:
        return _event("content_block_delta", index=self.blocks, delta={"type": kind, **content})

    def _close(self) -> bytes:
        if not self.open_block:
            return b""
        self.open_block = ""
        self.blocks += 1
        return _event("content_block_stop", index=self.blocks - 1)


def _event(name: str, **content: Any) -> bytes:
    return frame(name, {"type": name, **content})


def _usage(usage: TokenUsage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


async def _count(runtime: Runtime, call: Call, spec: ChatSpec) -> int:
    _, tokens = await count_prompt_tokens(runtime, call, spec)
    return tokens


_EXAMPLE = {"model": "story", "messages": [{"role": "user", "content": "Tell me a story."}]}

ROUTES: tuple[Route[Any, Any, Any], ...] = (
    StreamingRoute(
        path="/v1/messages",
        operation="chat",
        name="anthropic_messages",
        description="Answer a conversation (Anthropic). The checkpoint needs a chat template.",
        body=AnthropicMessagesBody,
        answer=AnthropicMessage,
        example=(
            _EXAMPLE | {"max_tokens": 64},
            {
                "id": "msg_6f1c",
                "type": "message",
                "role": "assistant",
                "model": "story",
                "content": [{"type": "text", "text": "Once there was a fox."}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {
                    "input_tokens": 12,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": 7,
                },
            },
        ),
        parse=AnthropicMessagesBody.spec,
        run=chat,
        renderer=MessageRenderer,
        errors=ERRORS,
    ),
    JsonRoute(
        path="/v1/messages/count_tokens",
        operation="chat",
        name="anthropic_count_tokens",
        description="The number of tokens of a conversation's prompt (Anthropic).",
        body=AnthropicCountBody,
        answer=AnthropicTokenCount,
        example=(_EXAMPLE, {"input_tokens": 12}),
        parse=AnthropicCountBody.spec,
        run=_count,
        render=lambda body, tokens: {"input_tokens": tokens},
        errors=ERRORS,
    ),
)
