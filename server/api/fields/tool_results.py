"""Parts of a tool's result that are no text, such as a screenshot: a note in the prompt takes the place of each.

A program sends the whole conversation with every request. A result that is refused once is refused in every later
request too, so one screenshot would end the session. The note tells the model what is missing, and the part is named in
the header. In messages of users and of the system these parts are refused, see `chat_fields.text_parts`.
See docs/decisions/0167-tool-results-without-text.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import AfterValidator

from server.api.fields.chat_fields import OTHER_PARTS, text_parts


def note(kind: str) -> str:
    """The text that the model reads in place of a part. kind: type of the part, one of `OTHER_PARTS`."""
    return f"[{OTHER_PARTS[kind]} left out: this model reads text only]"


def with_notes(parts: Sequence[Any], text_type: str = "text") -> tuple[list[Any], list[str]]:
    """The parts of a result, with a note as a text part in place of each part that is not text; and their places.

    text_type: `type` of the notes. A place is the index and the type of the part that was replaced: `[2]:image_url`.
    """
    shown, places = [], []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in OTHER_PARTS:
            places.append(f"[{index}]:{kind}")
            part = {"type": text_type, "text": note(kind)}
        shown.append(part)
    return shown, places


@dataclass(frozen=True)
class ToolOutput:
    """The text of a tool's result. places: of the parts that notes stand for, see `with_notes`."""

    text: str
    places: tuple[str, ...] = ()

    def dropped(self, field: str) -> Iterator[str]:
        """Names of the parts for the header. field: the field with the result."""
        return (f"{field}{place}" for place in self.places)


def tool_output(*types: str) -> AfterValidator:
    """A validator for a field of any type with a result: text, or a list of parts. The value becomes a `ToolOutput`.

    types: the types of parts that are text.
    """
    joined = text_parts(*types).func

    def read(value: Any) -> ToolOutput:
        if isinstance(value, str):
            return ToolOutput(value)
        if not isinstance(value, list):
            raise ValueError("must be text, or a list of parts with a `type`")
        shown, places = with_notes(value, types[0])
        return ToolOutput(joined(shown), tuple(places))  # type: ignore[call-arg]

    return AfterValidator(read)


def leave_out(message: Mapping[str, Any], images: str = "") -> tuple[Mapping[str, Any], list[str]]:
    """A message with notes in its `content`, and the names of the parts that the notes stand for.

    message: has a result of a tool, as it was sent. images: a field with a list of images besides the content, if the
    dialect has one.
    """
    content, pictures = message.get("content"), message.get(images) if images else None
    if isinstance(pictures, list) and pictures and (content is None or isinstance(content, str | list)):
        before = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        notes = [{"type": "text", "text": note("image")}] * len(pictures)
        shown, left_out = leave_out({**message, "content": before})
        shown = {**shown, "content": [*shown["content"], *notes], images: None}
        return shown, [*left_out, *(f"{images}[{index}]" for index in range(len(pictures)))]
    if not isinstance(content, list):
        return message, []
    parts, places = with_notes(content)
    return {**message, "content": parts}, [f"content{place}" for place in places]
