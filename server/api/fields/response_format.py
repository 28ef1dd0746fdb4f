"""The field `response_format` (docs/decoding.md), as clients send it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from server.operations.generating.grammar import MAX_FORMAT_BYTES, ChoiceFormat, JsonFormat, RegexFormat, TextFormat

MAX_PATTERN_CHARACTERS = 4096
MAX_CHOICES = 1024


class _Format(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ResponseFormatText(_Format):
    """Any text: the same as no format."""

    type: Literal["text"]

    def text_format(self) -> None:
        return None


class ResponseFormatJsonObject(_Format):
    """A JSON object with any members."""

    type: Literal["json_object"]

    def text_format(self) -> TextFormat:
        return JsonFormat({"type": "object"})


class ResponseFormatJsonSchema(_Format):
    """JSON that matches a schema, its members in the schema's order."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema", description="a JSON Schema")]

    def text_format(self) -> TextFormat:
        return JsonFormat(self.schema_)


class ResponseFormatRegex(_Format):
    """A text that a regular expression matches from its beginning to its end."""

    type: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]

    def text_format(self) -> TextFormat:
        return RegexFormat(self.pattern)


def _check_choices(choices: list[str]) -> list[str]:
    if len(set(choices)) < len(choices):
        raise ValueError("contains a choice twice")
    size = sum(len(choice.encode()) for choice in choices)
    if size > MAX_FORMAT_BYTES:
        raise ValueError(f"contains choices of {size} bytes together; the limit is {MAX_FORMAT_BYTES}")
    return choices


class ResponseFormatChoice(_Format):
    """An answer that equals one of the given texts."""

    type: Literal["choice"]
    choices: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(min_length=1, max_length=MAX_CHOICES),
        AfterValidator(_check_choices),
    ]

    def text_format(self) -> TextFormat:
        return ChoiceFormat(self.choices)


ResponseFormat = Annotated[
    ResponseFormatText
    | ResponseFormatJsonObject
    | ResponseFormatJsonSchema
    | ResponseFormatRegex
    | ResponseFormatChoice,
    Field(discriminator="type"),
]
