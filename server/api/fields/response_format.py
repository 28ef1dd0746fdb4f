"""Schemas of the field `response_format` (docs/decoding.md): one class for each format of the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from server.operations.generating.grammar import MAX_FORMAT_BYTES, ChoiceFormat, JsonFormat, RegexFormat, TextFormat

MAX_PATTERN_CHARACTERS = 4096
MAX_CHOICES = 1024


class _Format(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ResponseFormatText(_Format):
    """The answer is any text, as without a format."""

    type: Literal["text"]

    def text_format(self) -> None:
        return None


class ResponseFormatJsonObject(_Format):
    """The answer is a JSON object with any members."""

    type: Literal["json_object"]

    def text_format(self) -> TextFormat:
        return JsonFormat({"type": "object"})


class ResponseFormatJsonSchema(_Format):
    """The answer is JSON that matches a schema. Members of objects have the order of the schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema", description="a JSON Schema")]

    def text_format(self) -> TextFormat:
        return JsonFormat(self.schema_)


class ResponseFormatRegex(_Format):
    """The answer is a text that matches a regular expression as a whole."""

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
    """The answer equals one of the given texts."""

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
