"""`POST /v2/chat`: rendering of answers, and of the events of streamed answers."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Literal

from server.api.bodies.sse import frame
from server.api.dialects.cohere.chat_body import CohereChatBody
from server.api.dialects.cohere.common import ERRORS, CohereUnits
from server.api.fields.chat_fields import function_call
from server.api.routes.error_shape import AnswerBody
from server.api.routes.streaming_route import StreamingRoute
from server.errors import DeadlineExceeded, RequestError
from server.operations.chatting.chat import ChatChoice, ChatDelta, ChatResult, chat
from server.operations.generating.generated_text import ScoredToken
from server.operations.generating.generation_run import TokenUsage


class CohereAnswerFunction(AnswerBody):
    """A function that the model calls. `arguments`: JSON text of an object."""

    name: str
    arguments: str


class CohereAnswerCall(AnswerBody):
    id: str
    type: Literal["function"]
    function: CohereAnswerFunction


class CohereAnswerText(AnswerBody):
    type: Literal["text"]
    text: str


class CohereAnswerThinking(AnswerBody):
    type: Literal["thinking"]
    thinking: str


class CohereAnswerMessage(AnswerBody):
    role: Literal["assistant"]
    content: list[CohereAnswerThinking | CohereAnswerText]
    tool_calls: list[CohereAnswerCall] | None = None


class CohereUsage(AnswerBody):
    billed_units: CohereUnits
    tokens: CohereUnits
    cached_tokens: int


class CohereLogprob(AnswerBody):
    text: str
    token_ids: list[int]
    logprobs: list[float]


class CohereChatAnswer(AnswerBody):
    id: str
    finish_reason: Literal["COMPLETE", "STOP_SEQUENCE", "MAX_TOKENS", "TOOL_CALL"]
    message: CohereAnswerMessage
    usage: CohereUsage
    logprobs: list[CohereLogprob] | None = None


class CohereChatRenderer:
    """Renders one answer of `/v2/chat`, whole or as events. An answer has content parts and tool calls."""

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        self.started = False
        self.open_kind = ""
        self.counts = {"content": 0, "tool-call": 0}

    def whole(self, result: ChatResult) -> dict[str, Any]:
        choice = result.choices[0]
        content = [{"type": "thinking", "thinking": choice.reasoning}] if choice.reasoning else []
        content += [{"type": "text", "text": choice.content}] if choice.content else []
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if choice.tool_calls:
            message["tool_calls"] = [function_call(call.id, call.name, call.arguments) for call in choice.tool_calls]
        answer = {
            "id": self.id,
            "finish_reason": _finish_reason(choice),
            "message": message,
            "usage": _usage(result.usage),
        }
        return answer if choice.logprobs is None else answer | {"logprobs": list(map(_logprob, choice.logprobs))}

    def deltas(self, deltas: list[ChatDelta]) -> bytes:
        events = b""
        if not self.started:
            self.started = True
            start = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            events = _event("message-start", id=self.id, delta={"message": start})
        for delta in deltas:
            if delta.reasoning:
                events += self._part("thinking", delta.reasoning)
            if delta.content or delta.logprobs:
                events += self._part("text", delta.content, delta.logprobs)
            for call in delta.tool_calls:
                if call.id is not None:
                    message = {"tool_calls": function_call(call.id, call.name or "", "")}
                    events += self._close() + self._of_part("tool-call-start", message)
                    self.open_kind = "tool-call"
                if call.arguments:
                    function = {"function": {"arguments": call.arguments}}
                    events += self._of_part("tool-call-delta", {"tool_calls": function})
        return events

    def end(self, result: ChatResult) -> bytes:
        delta = {"finish_reason": _finish_reason(result.choices[0]), "usage": _usage(result.usage)}
        return self._close() + _event("message-end", id=self.id, delta=delta) + b"data: [DONE]\n\n"

    def error(self, error: RequestError, request_id: str) -> bytes:
        reason = "TIMEOUT" if isinstance(error, DeadlineExceeded) else "ERROR"
        return _event("message-end", id=self.id, delta={"finish_reason": reason, "error": error.message})

    def _part(self, kind: str, text: str, logprobs: list[ScoredToken] | None = None) -> bytes:
        """Bytes of the event that adds text to the content part in progress.

        If that part is of another kind than `kind`, it is ended first, and a new part begins.
        """
        events = b""
        if self.open_kind != kind:
            events = self._close() + self._of_part("content-start", {"content": {"type": kind, kind: ""}})
            self.open_kind = kind
        scored = [_logprob(token) for token in logprobs or ()]
        extra = {"logprobs": _joined(scored)} if scored else {}
        return events + self._of_part("content-delta", {"content": {kind: text}}, **extra)

    def _of_part(self, name: str, message: dict[str, Any], **extra: Any) -> bytes:
        index = self.counts[name.rpartition("-")[0]]
        return _event(name, index=index, delta={"message": message}, **extra)

    def _close(self) -> bytes:
        """The event that ends the content part or tool call in progress; empty if none is in progress."""
        if not self.open_kind:
            return b""
        kind = "tool-call" if self.open_kind == "tool-call" else "content"
        index, self.open_kind = self.counts[kind], ""
        self.counts[kind] += 1
        return _event(f"{kind}-end", index=index)


def _event(name: str, **content: Any) -> bytes:
    return frame(name, {"type": name, **content})


def _finish_reason(choice: ChatChoice) -> str:
    if choice.finish_reason == "stop":
        return "COMPLETE" if choice.stop_reason is None else "STOP_SEQUENCE"
    return {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}[choice.finish_reason]


def _usage(usage: TokenUsage) -> dict[str, Any]:
    tokens = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    return {"billed_units": tokens, "tokens": tokens, "cached_tokens": usage.cached_tokens}


def _logprob(token: ScoredToken) -> dict[str, Any]:
    text = token.data.decode("utf-8", "replace") if token.data else token.token
    return {"text": text, "token_ids": [token.token_id], "logprobs": [token.logprob]}


def _joined(scored: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the log-probabilities of several tokens into one entry, because an event reports one chunk of text."""
    return {
        "text": "".join(token["text"] for token in scored),
        "token_ids": [token_id for token in scored for token_id in token["token_ids"]],
        "logprobs": [logprob for token in scored for logprob in token["logprobs"]],
    }


ROUTE = StreamingRoute(
    path="/v2/chat",
    operation="chat",
    name="cohere_chat",
    description="Answer a conversation (Cohere). The checkpoint needs a chat template.",
    body=CohereChatBody,
    answer=CohereChatAnswer,
    example=(
        {"model": "story", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 64},
        {
            "id": "c14c80c3-18eb-4519-9460-6c92edd8cfb4",
            "finish_reason": "COMPLETE",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "Once there was a fox."}]},
            "usage": {
                "billed_units": {"input_tokens": 12, "output_tokens": 7},
                "tokens": {"input_tokens": 12, "output_tokens": 7},
                "cached_tokens": 0,
            },
        },
    ),
    parse=CohereChatBody.spec,
    run=chat,
    renderer=lambda body, run: CohereChatRenderer(),
    errors=replace(
        ERRORS, fields={"max_new_tokens": "max_tokens", "stop": "stop_sequences", "top_k": "k", "top_p": "p"}
    ),
)
