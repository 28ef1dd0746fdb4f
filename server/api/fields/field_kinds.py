"""Marks for fields of other servers' APIs that do not work here: hints, wishes and refused fields.

- A hint cannot make an answer right or wrong, such as a cache setting. It is accepted and has no effect.
- A wish asks for something that the server cannot do, but an answer without it is still valid. It is dropped, and its
  name is in the header `X-Ignored-Parameters`.
- A refused field would change the answer, its format or its safety. Only values without an effect are accepted.

All fields without a mark work. The OpenAPI document has the kind of a field in its key `x-kind`.
Marks are compared by identity, because `only(0)` would otherwise equal `only(False)`, and `typing` would share one
`Annotated` type for both.
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
"""Key in a field's JSON schema whose value is one of `Kind`. Absent for fields that work."""


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value is None, or equals one of the values in `neutral` and has its type."""
    return value is None or any(type(value) is type(allowed) and value == allowed for allowed in neutral)


def _spelled(values: tuple[Any, ...]) -> str:
    return " or ".join(orjson.dumps(value).decode() for value in values)


def _marked(schema: JsonSchemaValue, kind: Kind, text: str) -> JsonSchemaValue:
    """Add the kind of a field to its JSON schema. text: description, if the schema has none."""
    return {"description": text} | schema | {KIND: kind}


@dataclass(frozen=True, eq=False)
class _Hint:
    """Mark of a field that is accepted without effect. The field should accept any value: `Annotated[Any, ...]`."""

    kind: ClassVar[Kind] = "hint"

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _marked(handler(schema), self.kind, "accepted without effect")


@dataclass(frozen=True, eq=False)
class Wish:
    """Mark of a field that is dropped, and named in the header `X-Ignored-Parameters`.

    neutral: values that ask for nothing, besides null. The header does not name a field with such a value.
    """

    kind: ClassVar[Kind] = "wish"
    neutral: tuple[Any, ...] = ()

    def is_neutral(self, value: Any) -> bool:
        return _is_one_of(value, self.neutral)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        asks = f" unless it is {_spelled(self.neutral)}" if self.neutral else ""
        return _marked(handler(schema), self.kind, f"dropped, and named{asks}")


@dataclass(frozen=True, eq=False)
class _Refused:
    """Mark of a field that is refused unless its value has no effect. It also checks the value.

    neutral: accepted values, besides null.
    """

    kind: ClassVar[Kind] = "refused"
    neutral: tuple[Any, ...] = ()

    def check(self, value: Any) -> Any:
        if _is_one_of(value, self.neutral):
            return value
        raise ValueError(f"is {self._text()}")

    def _text(self, otherwise: str = "") -> str:
        """End of the error message for a refused value: "not supported", and the accepted values.

        otherwise: text in place of the accepted values, for a field that accepts only null.
        """
        if self.neutral:
            return f"not supported, except as {_spelled(self.neutral)}"
        return f"not supported; {otherwise}" if otherwise else "not supported"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _marked(handler(schema), self.kind, self._text("must be null or absent"))


def wish(*neutral: Any) -> Wish:
    """Create the mark of a wish, for `Annotated[Any, wish("auto")]`. This must be the outermost type of the field.

    neutral: values that ask for nothing, besides null.
    """
    return Wish(neutral)


def only(*neutral: Any) -> _Refused:
    """Create the mark of a refused field, for `Annotated[Any, only(False)]`. It accepts null and the given values."""
    return _Refused(neutral)


Hint = Annotated[Any, _Hint()]
Unsupported = Annotated[Any, only()]
