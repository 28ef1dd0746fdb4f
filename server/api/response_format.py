"""`response_format`: what an answer has to be. API.md section 3; other dialects' forms can be made into the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_FORMAT_BYTES = 1 << 16
MAX_PATTERN_CHARACTERS = 4096
MAX_CHOICES = 1024


class _Format(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Text(_Format):
    """Anything: the same as no format."""

    type: Literal["text"]


class JsonObject(_Format):
    """A JSON object of whatever members."""

    type: Literal["json_object"]


class JsonSchema(_Format):
    """JSON that a schema describes, its members in the schema's order."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema", description="a JSON Schema")]


class Regex(_Format):
    """A text that a regular expression matches from its beginning to its end."""

    type: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]


def _check_choices(choices: list[str]) -> list[str]:
    if len(set(choices)) < len(choices):
        raise ValueError("holds a choice twice")
    if sum(len(choice.encode()) for choice in choices) > MAX_FORMAT_BYTES:
        raise ValueError(f"holds choices of more than {MAX_FORMAT_BYTES} bytes together")
    return choices


class Choice(_Format):
    """One of these texts."""

    type: Literal["choice"]
    choices: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(min_length=1, max_length=MAX_CHOICES),
        AfterValidator(_check_choices),
    ]


ResponseFormat = Annotated[Text | JsonObject | JsonSchema | Regex | Choice, Field(discriminator="type")]
