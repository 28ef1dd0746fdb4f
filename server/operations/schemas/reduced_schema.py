"""A JSON Schema with only the keywords that a grammar can enforce, and the list of the keywords that were left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_PATH_CHARACTERS = 200
_NAME = re.compile(r"\$?[A-Za-z0-9_-]{1,64}")
"""Pattern of a name that errors may repeat. Other names may contain any text of the client."""


@dataclass(frozen=True)
class Loss:
    """A keyword that is not enforced.

    path: path of its subschema in the client's schema, for example `properties.place`; empty for the root.
    reason: end of a sentence that begins with the keyword.
    """

    keyword: str
    path: str
    reason: str

    def __str__(self) -> str:
        """Description of the loss, as the end of a sentence that begins with the name of the request's field."""
        parts = ".".join(filter(None, (self.path, self.keyword))).split(".")
        place = ".".join(part if _NAME.fullmatch(part) else "..." for part in parts if part)
        return f"cannot be enforced: `{place[:MAX_PATH_CHARACTERS]}` {self.reason}" if place else self.reason


@dataclass
class Subschema:
    """A reduced subschema that can still be changed.

    path: path of the subschema in the client's schema.
    keywords: the enforced keywords with their values, in the client's order. Inner schemas are `Subschema` or booleans.
    """

    path: str
    keywords: dict[str, Any] = field(default_factory=dict)

    def inner(self) -> Iterator[Subschema]:
        """Yield the subschemas directly inside of this one, except the definition that its `$ref` means."""
        for value in self.keywords.values():
            members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            yield from (member for member in members if isinstance(member, Subschema))

    def as_json(self) -> dict[str, Any]:
        return {keyword: _as_json(value) for keyword, value in self.keywords.items()}


@dataclass
class ReducedSchema:
    """A JSON schema with only the keywords that a grammar can enforce while the model generates.

    definitions: subschemas by name; the reference `#/$defs/NAME` means the one with that name.
    losses: the keywords of the client's schema that were left out.
    """

    root: Subschema
    definitions: dict[str, Subschema]
    losses: list[Loss]

    def target(self, schema: Subschema) -> Subschema | None:
        """The definition that the `$ref` of a subschema means, or None if it has no `$ref`."""
        return self.definitions.get(schema.keywords.get("$ref", "").removeprefix("#/$defs/"))


def _as_json(value: Any) -> Any:
    if isinstance(value, Subschema):
        return value.as_json()
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, list) else value
