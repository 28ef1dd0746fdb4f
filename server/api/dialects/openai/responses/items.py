"""Output items of a response (reasoning, message, call): rendered whole, or as the events that build them."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from server.operations.chatting.chat import SectionKind

ItemEvents = list[tuple[str, dict[str, Any]]]
"""Events of one item, as pairs of type and fields. The sequence number is added later."""


@dataclass
class OutputItem(ABC):
    """One item of the output.

    section: part of the answer that the item shows: reasoning, content or calls.
    prefix: beginning of the item's id.
    index: index of the item in `output`.
    text: the item's text so far; for a call, its arguments.
    logprobs: log-probabilities of the text's tokens, if the client asks for them.
    """

    section: ClassVar[SectionKind]
    prefix: ClassVar[str]
    id: str
    index: int
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)

    @abstractmethod
    def whole(self, status: str) -> dict[str, Any]:
        """The complete JSON object of the item, with its text so far. status: value of its field `status`."""

    @abstractmethod
    def begin(self) -> ItemEvents:
        """The events that begin the item, before its text."""

    @abstractmethod
    def add(self, text: str, logprobs: list[Any]) -> ItemEvents:
        """Append text and its log-probabilities, and return the events that report them."""

    @abstractmethod
    def end(self, status: str) -> ItemEvents:
        """The events that end the item, after its text. status: final value of its field `status`."""

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}

    def _item(self, event: str, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return f"response.output_item.{event}", {"output_index": self.index, "item": item}


class TextItem(OutputItem):
    """An item with one content part of text. event: type of the events with this text, without `.delta` or `.done`."""

    event: ClassVar[str]

    @abstractmethod
    def part(self) -> dict[str, Any]:
        """The content part with the item's text so far."""

    def more(self, logprobs: list[Any]) -> dict[str, Any]:
        """Further fields of the events with text. logprobs: log-probabilities of the text in the event."""
        return {}

    def begin(self) -> ItemEvents:
        return [
            self._item("added", self.whole("in_progress") | {"content": []}),
            ("response.content_part.added", self._place() | {"content_index": 0, "part": self.part()}),
        ]

    def add(self, text: str, logprobs: list[Any]) -> ItemEvents:
        self.text += text
        self.logprobs += logprobs
        return [(f"{self.event}.delta", self._place() | {"content_index": 0, "delta": text} | self.more(logprobs))]

    def end(self, status: str) -> ItemEvents:
        place = self._place() | {"content_index": 0}
        return [
            (f"{self.event}.done", place | {"text": self.text} | self.more(self.logprobs)),
            ("response.content_part.done", place | {"part": self.part()}),
            self._item("done", self.whole(status)),
        ]


@dataclass
class ReasoningItem(TextItem):
    """The reasoning before an answer. is_encoded: the item repeats its text in `encrypted_content`."""

    section = "reasoning"
    prefix = "rs"
    event = "response.reasoning_text"
    is_encoded: bool = False

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def whole(self, status: str) -> dict[str, Any]:
        item = {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": [self.part()]}
        return item | ({"encrypted_content": encoded_reasoning(self.text)} if self.is_encoded else {})


class MessageItem(TextItem):
    section = "content"
    prefix = "msg"
    event = "response.output_text"

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}

    def more(self, logprobs: list[Any]) -> dict[str, Any]:
        return {"logprobs": list(logprobs)}

    def whole(self, status: str) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "status": status}
        return head | {"content": [self.part()]}


@dataclass
class CallItem(OutputItem):
    """A function call. Its text is the JSON text of the arguments."""

    section = "calls"
    prefix = "fc"
    call_id: str = ""
    name: str = ""

    def whole(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }

    def begin(self) -> ItemEvents:
        return [self._item("added", self.whole("in_progress"))]

    def add(self, text: str, logprobs: list[Any]) -> ItemEvents:
        self.text += text
        return [("response.function_call_arguments.delta", self._place() | {"delta": text})] if text else []

    def end(self, status: str) -> ItemEvents:
        done = self._place() | {"arguments": self.text, "name": self.name}
        return [("response.function_call_arguments.done", done), self._item("done", self.whole(status))]


_ENCODED = "triptych-1."
"""Prefix by which the server recognizes an `encrypted_content` that it has made itself."""


def encoded_reasoning(text: str) -> str:
    """Encode reasoning for the field `encrypted_content`: a prefix and base64.

    Some clients keep only this field of the reasoning. It is not encrypted, because `content` has the same text.
    """
    return _ENCODED + base64.urlsafe_b64encode(text.encode()).decode()


def decoded_reasoning(content: str | None) -> str | None:
    """Decode an `encrypted_content`. Returns None if it is absent, or was not made by this server."""
    if content is None or not content.startswith(_ENCODED):
        return None
    try:
        return base64.urlsafe_b64decode(content.removeprefix(_ENCODED)).decode()
    except ValueError:
        return None
