"""`POST /v1/responses`: answers as items, and the events of streamed answers. Stateless: the server stores nothing."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from server.api.dialects.openai.common import STATUSES, logprobs, now
from server.api.dialects.openai.response_answer import ResponsesAnswer
from server.api.dialects.openai.response_body import ResponsesBody
from server.api.dialects.openai.response_items import CallItem, MessageItem, OutputItem, ReasoningItem
from server.api.error_shape import ErrorShape
from server.api.route import StreamingRoute
from server.api.sse import frame
from server.errors import RequestError
from server.operations.chat import ChatDelta, ChatResult, chat
from server.operations.generated_text import ScoredToken
from server.operations.generation_run import TokenUsage

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
    """Responses, whole or as events with a sequence number each.

    The items of the answer are in the order in which the model writes them: reasoning, text, calls.
    """

    def __init__(self, body: ResponsesBody, model: str) -> None:
        self.body, self.model, self.created = body, model, now()
        self.key = uuid.uuid4().hex
        self.items: list[OutputItem] = []
        self.calls: dict[int, CallItem] = {}
        self.sequence = 0

    def whole(self, result: ChatResult) -> dict[str, Any]:
        (choice,) = result.choices
        if choice.reasoning:
            self._open(ReasoningItem).text = choice.reasoning
        if choice.content or not choice.tool_calls:
            message = self._open(MessageItem)
            message.text, message.logprobs = choice.content, _logprobs(choice.logprobs or [])
        for call in choice.tool_calls:
            item = self._open(CallItem)
            item.call_id, item.name, item.text = call.id, call.name, call.arguments
        return self._finished(result)

    def _open(self, kind: type[OutputItem]) -> Any:
        """A new item at the end of the output."""
        item = kind(f"{kind.prefix}_{self.key}{len(self.items)}", len(self.items))
        self.items.append(item)
        return item

    def _finished(self, result: ChatResult) -> dict[str, Any]:
        """The whole response after its end. Only its last item may be incomplete."""
        status = "incomplete" if result.choices[0].finish_reason == "length" else "completed"
        output = [item.whole("completed") for item in self.items[:-1]] + [
            item.whole(status) for item in self.items[-1:]
        ]
        return self._response(status, output, result.usage)

    def _response(self, status: str, output: list[Any], usage: TokenUsage | None) -> dict[str, Any]:
        body = self.body
        return {
            "id": f"resp_{self.key}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": output,
            "usage": usage and _usage(usage, any(isinstance(item, ReasoningItem) for item in self.items)),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": _sent(body.text) or {"format": {"type": "text"}},
            "tool_choice": _sent(body.tool_choice) or "auto",
            "tools": [_sent(tool) for tool in body.tools or []],
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
        if delta.content or delta.logprobs:
            frames += self._add(MessageItem, delta.content, _logprobs(delta.logprobs))
        for call in delta.tool_calls:
            if call.index not in self.calls:
                frames += self._close_last()
                self.calls[call.index] = item = self._open(CallItem)
                item.call_id, item.name = call.id, call.name
                frames += self._events(item.begin())
            frames += self._events(self.calls[call.index].add(call.arguments, []))
        return frames

    def _begin(self) -> bytes:
        """The first events of the stream; nothing if they were sent."""
        if self.sequence:
            return b""
        response = self._response("in_progress", [], None)
        return self._events(
            [("response.created", {"response": response}), ("response.in_progress", {"response": response})]
        )

    def _add(self, kind: type[OutputItem], text: str, scored: list[Any] | None = None) -> bytes:
        """Add text to the last item, or to a new one if the last one is of another kind."""
        frames = b""
        if not self.items or not isinstance(self.items[-1], kind):
            frames += self._close_last()
            frames += self._events(self._open(kind).begin())
        return frames + self._events(self.items[-1].add(text, scored or []))

    def _close_last(self, status: str = "completed") -> bytes:
        return self._events(self.items[-1].end(status)) if self.items else b""

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
        response = self._finished(result)
        frames += self._close_last(response["status"])
        return frames + self._events([(f"response.{response['status']}", {"response": response})])

    def error(self, error: RequestError, request_id: str) -> bytes:
        body = ERRORS.render(error, request_id)["error"]
        return self._events([("error", {name: body[name] for name in ("code", "message", "param")})])


def _sent(value: Any) -> Any:
    """A field of the request as the client sent it."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, exclude_none=True)


def _logprobs(tokens: Sequence[ScoredToken]) -> list[dict[str, Any]]:
    """Log-probabilities as in chat answers, but with an empty list as the bytes of a token that adds no text."""
    rendered = list(logprobs(tokens))
    for token in rendered:
        for one in (token, *token["top_logprobs"]):
            one["bytes"] = one["bytes"] or []
    return rendered


def _usage(usage: TokenUsage, has_reasoning: bool) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": None if has_reasoning else 0},
        "total_tokens": usage.total_tokens,
    }


_EXAMPLE = (
    {"model": "llama", "instructions": "Be brief.", "input": "Why is the sky blue?", "max_output_tokens": 64},
    {
        "id": "resp_0d1f",
        "object": "response",
        "created_at": 1764000000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "llama",
        "output": [
            {
                "id": "msg_0d1f0",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {
                        "type": "output_text",
                        "text": "Air scatters blue light most.",
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            }
        ],
        "usage": {
            "input_tokens": 14,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 8,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 22,
        },
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
    },
)

ROUTE = StreamingRoute(
    path="/v1/responses",
    operation="chat",
    name="responses",
    description="Answer messages, calls and their results, all of which the request contains: nothing is stored.",
    body=ResponsesBody,
    answer=ResponsesAnswer,
    example=_EXAMPLE,
    parse=ResponsesBody.spec,
    run=chat,
    renderer=lambda body, run: ResponsesRenderer(body, run.model_name),
    errors=ERRORS,
)
