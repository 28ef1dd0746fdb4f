"""The kinds of fields in foreign dialects: hints, wishes, and fields that the server refuses.

- A hint cannot change which answers are right. It is accepted and has no effect.
- A wish asks for something that the server cannot do, and an answer without it is still valid. It is dropped, and its
  name stands in the header `X-Ignored-Parameters`.
- A refused field would change the answer, its format or its safety. Only values without an effect are accepted.

Every other field works. The OpenAPI document names the kind of a field under `x-kind`.
Marks are compared by identity: `typing` keeps one `Annotated` type for equal marks, and `only(0)` would equal
`only(False)`.
See docs/decisions/0117-three-kinds-of-fields.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

Kind = Literal["hint", "wish", "refused"]
KIND = "x-kind"
"""Key of a field's JSON schema: one of `Kind`. Fields that work do not have it."""


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value is null or equals one of `neutral`, with the same type."""
    return value is None or any(type(value) is type(allowed) and value == allowed for allowed in neutral)


def _spelled(values: tuple[Any, ...]) -> str:
    return " or ".join(orjson.dumps(value).decode() for value in values)


def _marked(schema: JsonSchemaValue, kind: Kind, text: str) -> JsonSchemaValue:
    """Add the kind of a field to its JSON schema. text: description, unless the schema has one already."""
    return {"description": text} | schema | {KIND: kind}


@dataclass(frozen=True, eq=False)
class _Hint:
    """Marks a hint. Types without bounds are best: `Annotated[Any, ...]`."""

    kind: ClassVar[Kind] = "hint"

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _marked(handler(schema), self.kind, "accepted without effect")


@dataclass(frozen=True, eq=False)
class Wish:
    """Marks a wish. neutral: values that ask for nothing, besides null; the header does not name them."""

    kind: ClassVar[Kind] = "wish"
    neutral: tuple[Any, ...] = ()

    def is_neutral(self, value: Any) -> bool:
        return _is_one_of(value, self.neutral)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        asks = f" unless it is {_spelled(self.neutral)}" if self.neutral else ""
        return _marked(handler(schema), self.kind, f"dropped, and named{asks}")


@dataclass(frozen=True, eq=False)
class _Refused:
    """Marks a refused field and checks its value. neutral: accepted values, besides null."""

    kind: ClassVar[Kind] = "refused"
    neutral: tuple[Any, ...] = ()

    def check(self, value: Any) -> Any:
        if _is_one_of(value, self.neutral):
            return value
        raise ValueError(f"is {self._text()}")

    def _text(self, otherwise: str = "") -> str:
        """The end of the error for a value of this field: "not supported", and the values that are accepted.

        otherwise: text in place of these values, for a field that accepts none.
        """
        if self.neutral:
            return f"not supported, except as {_spelled(self.neutral)}"
        return f"not supported; {otherwise}" if otherwise else "not supported"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _marked(handler(schema), self.kind, self._text("must be null or absent"))


def wish(*neutral: Any) -> Wish:
    """The mark of a wish: `Annotated[Any, wish("auto")]`. It must stand at the outside of the field's annotation."""
    return Wish(neutral)


def only(*neutral: Any) -> _Refused:
    """The mark of a refused field: `Annotated[Any, only(False)]`. It accepts null and the values `neutral`."""
    return _Refused(neutral)


Hint = Annotated[Any, _Hint()]
Unsupported = Annotated[Any, only()]
