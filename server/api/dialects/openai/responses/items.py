"""The items of a response (reasoning, message, call): whole, and as the events that build them."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from server.operations.chatting.chat import SectionKind

ItemEvents = list[tuple[str, dict[str, Any]]]
"""Events of one item: type and fields, without the sequence number."""


@dataclass
class OutputItem(ABC):
    """One item of the output.

    section: the part of the answer that it has. prefix: beginning of its id. index: its index in `output`.
    text: its text so far, or the arguments of a call.
    """

    section: ClassVar[SectionKind]
    prefix: ClassVar[str]
    id: str
    index: int
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)

    @abstractmethod
    def whole(self, status: str) -> dict[str, Any]:
        """The item with its text so far."""

    @abstractmethod
    def begin(self) -> ItemEvents:
        """The events before its text."""

    @abstractmethod
    def add(self, text: str, logprobs: list[Any]) -> ItemEvents:
        """Append text, and return its event."""

    @abstractmethod
    def end(self, status: str) -> ItemEvents:
        """The events after its text."""

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}

    def _item(self, event: str, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return f"response.output_item.{event}", {"output_index": self.index, "item": item}


class TextItem(OutputItem):
    """An item with one part of text. event: the name of the events with its text."""

    event: ClassVar[str]

    @abstractmethod
    def part(self) -> dict[str, Any]:
        """The part with the text so far."""

    def more(self, logprobs: list[Any]) -> dict[str, Any]:
        """Further fields of the events with text."""
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
    """Reasoning. is_encoded: the whole item has the text as `encrypted_content` too, as the request has asked."""

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
    """A call of a function. Its text is the JSON of the arguments."""

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
"""Beginning of the `encrypted_content` of this server's reasoning."""


def encoded_reasoning(text: str) -> str:
    """The `encrypted_content` of reasoning, for clients that keep nothing else of it.

    It is not encrypted: the item has the same text in `content`.
    """
    return _ENCODED + base64.urlsafe_b64encode(text.encode()).decode()


def decoded_reasoning(content: str | None) -> str | None:
    """The reasoning in an `encrypted_content`; None if it is not this server's."""
    if content is None or not content.startswith(_ENCODED):
        return None
    try:
        return base64.urlsafe_b64decode(content.removeprefix(_ENCODED)).decode()
    except ValueError:
        return None
