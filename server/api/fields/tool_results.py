"""Replace the parts of a tool's result that are no text, such as a screenshot, by notes in the prompt.

A client sends the whole conversation with every request. If a result with a screenshot were refused, every later
request would be refused too, and the session would end. The note tells the model what is missing, and the header
`X-Ignored-Parameters` names the part. In user and system messages, such parts are refused (`chat_fields.text_parts`).
See docs/decisions/0167-tool-results-without-text.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import AfterValidator

from server.api.fields.chat_fields import OTHER_PARTS, text_parts


def note(kind: str) -> str:
    """The text that the model reads in place of a part. kind: type of the part, a key of `OTHER_PARTS`."""
    return f"[{OTHER_PARTS[kind]} left out: this model reads text only]"


def with_notes(parts: Sequence[Any], text_type: str = "text") -> tuple[list[Any], list[str]]:
    """Replace each part of a result that is no text by a text part with a note.

    Returns the new parts, and for each replaced part its index and type, such as `[2]:image_url`.

    text_type: value of `type` for the new text parts.
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
    """The text of a tool's result. places: index and type of each replaced part, such as `[2]:image_url`."""

    text: str
    places: tuple[str, ...] = ()

    def dropped(self, field: str) -> Iterator[str]:
        """Names of the replaced parts for `X-Ignored-Parameters`. field: name of the field with the result."""
        return (f"{field}{place}" for place in self.places)


def tool_output(*types: str) -> AfterValidator:
    """Create a validator for a field with a tool's result: text or a list of parts. The value becomes a `ToolOutput`.

    types: types of parts that are text.
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
    """Replace the parts of a message's `content` that are no text by notes.

    Returns the new message, and the names of the replaced parts for `X-Ignored-Parameters`.

    message: a message with a tool's result, as it was sent.
    images: name of a further field with a list of images; empty if the dialect has none.
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
