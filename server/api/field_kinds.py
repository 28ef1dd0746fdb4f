"""The kinds of fields in foreign dialects: hints, wishes, and fields that the server refuses.

- A hint cannot change which answers are right. It is accepted and has no effect.
- A wish asks for something that the server cannot do, and an answer without it is still valid. It is dropped, and its
  name stands in the header `X-Ignored-Parameters`.
- A refused field would change the answer, its format or its safety. Only values without an effect are accepted.

Every other field works. The OpenAPI document names the kind of a field under `x-kind`.
See docs/decisions/0117-three-kinds-of-fields.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

KIND = "x-kind"
"""Key of a field's JSON schema: `hint`, `wish` or `refused`. Fields that work do not have it."""


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value is null or equals one of `neutral`, with the same type."""
    return value is None or any(type(value) is type(one) and value == one for one in neutral)


@dataclass(frozen=True)
class _Hint:
    """Marks a hint. Types without bounds are best: `Annotated[Any, ...]`."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {KIND: "hint"}


@dataclass(frozen=True)
class Wish:
    """Marks a wish. neutral: values that ask for nothing, besides null; the header does not name them."""

    neutral: tuple[Any, ...] = ()

    def is_neutral(self, value: Any) -> bool:
        return _is_one_of(value, self.neutral)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {KIND: "wish"}


@dataclass(frozen=True)
class _Refused:
    """Marks a refused field and checks its value. neutral: accepted values, besides null."""

    neutral: tuple[Any, ...] = ()

    def check(self, value: Any) -> Any:
        if _is_one_of(value, self.neutral):
            return value
        choice = " or ".join(orjson.dumps(one).decode() for one in self.neutral)
        raise ValueError(f"is not supported, except as {choice}" if self.neutral else "is not supported")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {KIND: "refused"}


def wish(*neutral: Any) -> Wish:
    """The mark of a wish: `Annotated[Any, wish("auto")]`. It must stand at the outside of the field's annotation."""
    return Wish(neutral)


def only(*neutral: Any) -> _Refused:
    """The mark of a refused field: `Annotated[Any, only(False)]`. It accepts null and the values `neutral`."""
    return _Refused(neutral)


Hint = Annotated[Any, _Hint(), Field(description="accepted without effect")]
Unsupported = Annotated[Any, only(), Field(description="not supported: must be null or absent")]
