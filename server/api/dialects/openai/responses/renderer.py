"""Render the answers of `/v1/responses`, whole or as events. Each event has a sequence number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from server.api.bodies.sse import frame
from server.api.dialects.openai.common import STATUSES, logprobs, now
from server.api.dialects.openai.responses.body import ENCRYPTED_REASONING, ResponsesBody
from server.api.dialects.openai.responses.items import CallItem, MessageItem, OutputItem, ReasoningItem
from server.api.routes.error_shape import ErrorShape
from server.errors import Overloaded, RequestError
from server.operations.chatting.chat import ChatDelta, ChatResult
from server.operations.generating.generated_text import ScoredToken
from server.operations.generating.generation_run import TokenUsage

ERRORS = ErrorShape(
    statuses=STATUSES,
    fields={
        "messages": "input",
        "max_new_tokens": "max_output_tokens",
        "response_format": "text",
        "logprobs": "include",
    },
)


class ResponsesRenderer:
    """Renders one response, whole or as events, and stores it at its end.

    The items of the output have the order in which the model writes them: reasoning, text, calls.

    scored: log-probabilities of message tokens that no event has reported yet.
    """

    def __init__(self, body: ResponsesBody, model: str) -> None:
        self.body, self.model, self.created = body, model, now()
        self.key = body.stored.key
        self.items: list[OutputItem] = []
        self.calls: dict[int, CallItem] = {}
        self.scored: list[Any] = []
        self.sequence = 0

    def whole(self, result: ChatResult) -> dict[str, Any]:
        (choice,) = result.choices
        if choice.reasoning:
            self._open(ReasoningItem).text = choice.reasoning
        if choice.content or not (choice.tool_calls or self.items):
            message = self._open(MessageItem)
            message.text, message.logprobs = choice.content, _logprobs(choice.content_logprobs or [])
        for call in choice.tool_calls:
            item = self._open(CallItem)
            item.call_id, item.name, item.text = call.id, call.name, call.arguments
        return self._finished(result)

    def _open(self, kind: type[OutputItem]) -> Any:
        """Append a new item to the output, and return it. kind: class of the item."""
        item = kind(f"{kind.prefix}_{self.key}{len(self.items)}", len(self.items))
        if isinstance(item, ReasoningItem):
            item.is_encoded = ENCRYPTED_REASONING in (self.body.include or ())
        self.items.append(item)
        return item

    def _finished(self, result: ChatResult) -> dict[str, Any]:
        """Create the complete response at its end, and store it if the request asks for that."""
        (choice,) = result.choices
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        return self._stored(self._response(status, self._output(self._last_status(result)), result.usage))

    def _last_status(self, result: ChatResult) -> str:
        """Status of the last item: `incomplete` if the answer was cut off within this item, otherwise `completed`."""
        (choice,) = result.choices
        is_cut = choice.finish_reason == "length" or choice.unfinished == "calls"
        return "incomplete" if is_cut and self.items[-1].section == choice.unfinished else "completed"

    def _output(self, last_status: str) -> list[dict[str, Any]]:
        statuses = ["completed"] * (len(self.items) - 1) + [last_status]
        return [item.whole(status) for item, status in zip(self.items, statuses, strict=False)]

    def _stored(self, response: dict[str, Any]) -> dict[str, Any]:
        """Store a response if the request asks for that. Returns it with the field `store`: whether it was stored."""
        return response | {"store": self.body.stores and self.body.stored.add(response)}

    def _response(self, status: str, output: list[Any], usage: TokenUsage | None) -> dict[str, Any]:
        body = self.body
        return {
            "id": body.stored.response_id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": output,
            "usage": usage and _usage(usage),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "store": body.stores,
            "temperature": body.temperature,
            "text": _sent(body.text) or {"format": {"type": "text"}},
            "tool_choice": _sent(body.tool_choice) or "auto",
            "tools": [_sent(tool) for tool in body.functions],
            "top_p": body.top_p,
            "truncation": "disabled",
        }

    # ------------------------------------------------------------------------------------------------------- stream

    def deltas(self, deltas: list[ChatDelta]) -> bytes:
        return b"".join([self._delta(delta) for delta in deltas])

    def _delta(self, delta: ChatDelta) -> bytes:
        frames = self._begin()
        if delta.reasoning:
            frames += self._add(ReasoningItem, delta.reasoning)
        self.scored += _logprobs(delta.content_logprobs)
        if delta.content:
            frames += self._add(MessageItem, delta.content)
        for call in delta.tool_calls:
            if call.index not in self.calls:
                frames += self._close_last()
                self.calls[call.index] = item = self._open(CallItem)
                item.call_id, item.name = call.id, call.name
                frames += self._events(item.begin())
            frames += self._events(self.calls[call.index].add(call.arguments, []))
        return frames

    def _begin(self) -> bytes:
        """The first events of the stream, or no bytes if they were rendered before."""
        if self.sequence:
            return b""
        response = self._response("in_progress", [], None)
        return self._events(
            [("response.created", {"response": response}), ("response.in_progress", {"response": response})]
        )

    def _add(self, kind: type[OutputItem], text: str) -> bytes:
        """Add text to the last item, or to a new item if the last one is not of the class `kind`.

        Returns bytes of the events.
        """
        frames = b""
        if not self.items or not isinstance(self.items[-1], kind):
            frames += self._close_last()
            frames += self._events(self._open(kind).begin())
        return frames + self._events(self.items[-1].add(text, self._take_scored()))

    def _take_scored(self) -> list[Any]:
        """Remove and return the log-probabilities that no event has reported.

        Empty unless the last item is a message.
        """
        if not isinstance(self.items[-1], MessageItem):
            return []
        scored, self.scored = self.scored, []
        return scored

    def _close_last(self, status: str = "completed") -> bytes:
        if not self.items:
            return b""
        scored = self._take_scored()
        events = self.items[-1].add("", scored) if scored else []
        return self._events(events + self.items[-1].end(status))

    def _events(self, events: list[tuple[str, dict[str, Any]]]) -> bytes:
        frames = []
        for kind, value in events:
            frames.append(frame(kind, {"type": kind, "sequence_number": self.sequence} | value))
            self.sequence += 1
        return b"".join(frames)

    def end(self, result: ChatResult) -> bytes:
        frames = self._begin()
        if not self.items:
            frames += self._add(MessageItem, "")
        frames += self._close_last(self._last_status(result))
        response = self._finished(result)
        return frames + self._events([(f"response.{response['status']}", {"response": response})])

    def error(self, error: RequestError, request_id: str) -> bytes:
        """The last events of a failed stream: the error, and the response so far with the status `failed`.

        The response is stored if the request asks for that.
        """
        body = ERRORS.render(error, request_id)["error"]
        code = "rate_limit_exceeded" if isinstance(error, Overloaded) else "server_error"
        failure = {"error": {"code": code, "message": body["message"]}}
        response = self._stored(self._response("failed", self._output("incomplete"), None) | failure)
        return self._events(
            [
                ("error", {name: body[name] for name in ("code", "message", "param", "reason") if name in body}),
                ("response.failed", {"response": response}),
            ]
        )


def _sent(value: Any) -> Any:
    """Convert a field of the request back to JSON, with the names that clients use and without null members."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, exclude_none=True)


def _logprobs(tokens: Sequence[ScoredToken]) -> list[dict[str, Any]]:
    """Log-probabilities in the format of chat answers, except that `bytes` is an empty list for tokens without text."""
    rendered = list(logprobs(tokens))
    for token in rendered:
        for candidate in (token, *token["top_logprobs"]):
            candidate["bytes"] = candidate["bytes"] or []
    return rendered


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
