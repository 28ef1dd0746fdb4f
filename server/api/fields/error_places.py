"""Find the field of a body that causes an error of pydantic.

The location of an error consists of fields and indices, and of labels of union members: the tag of a discriminated
union, or the class or type in another union. A tag may be spelled like a field of the same object (`text`, `thinking`,
`json_schema`), so only the schema tells which parts are fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Part = int | str
_ANY: Mapping[str, Any] = {"type": "any"}


@dataclass(frozen=True)
class Place:
    """The location of an error, split into fields and union members.

    fields: the parts that are fields and indices of the body.
    unions: for each union without a discriminator in the location: the number of `fields` before it, and the label by
        which pydantic names the tried member.
    """

    fields: tuple[Part, ...] = ()
    unions: tuple[tuple[int, Part], ...] = ()

    def after(self, *parts: Part) -> Place:
        """The same location, counted from an outer value that contains this value.

        parts: fields and indices that lead from the outer value to the inner one.
        """
        return Place((*parts, *self.fields), tuple((len(parts) + count, member) for count, member in self.unions))

    def inside(self, member: Part) -> Place:
        """The same location, inside a member of a union. member: label of the member in pydantic's location."""
        return Place(self.fields, ((0, member), *self.unions))


def place_of(schema: Mapping[str, Any], location: Sequence[Part]) -> Place:
    """Convert the location of a pydantic error to a `Place`. All parts of an unknown location count as fields.

    schema: pydantic's core schema of the body.
    """
    return _place(schema, tuple(location), {}) or Place(tuple(location))


def _place(schema: Any, location: tuple[Part, ...], definitions: Mapping[str, Any]) -> Place | None:
    """Convert the location of a pydantic error to a `Place`; None if the schema has no such location.

    schema: pydantic-core schema of the value that the location starts from. definitions: shared schemas by reference.
    """
    if not location:
        return Place()
    kind, first, rest = schema["type"], location[0], location[1:]
    if kind == "definitions":
        return _place(
            schema["schema"], location, {definition["ref"]: definition for definition in schema["definitions"]}
        )
    if kind == "definition-ref":
        return _place(definitions[schema["schema_ref"]], location, definitions)
    if kind == "model-fields":
        field = _field(schema["fields"], first)
        if field is None:
            return Place((first,)) if not rest else None
        found = _place(field["schema"], rest, definitions)
        return found and found.after(first)
    if kind == "tagged-union":
        member = schema["choices"].get(first)
        return None if member is None else _place(member, rest, definitions)
    if kind == "union":
        found = next(_members(schema, first, rest, definitions), None)
        return found and found.inside(first)
    if kind in ("list", "dict"):
        inner = schema.get("items_schema" if kind == "list" else "values_schema", _ANY)
        found = Place() if rest == ("[key]",) else _place(inner, rest, definitions)
        return found and found.after(first)
    inner = schema.get("strict_schema" if kind == "lax-or-strict" else "schema")
    found = None if inner is None else _place(inner, location, definitions)
    # The errors of a function may have locations of its own, inside the value that the function was given.
    return found or (Place(location) if kind.startswith("function-") else None)


def _field(fields: Mapping[str, Any], name: Part) -> Any:
    """The schema of the field with this name in JSON, or None if there is none."""
    return next((field for key, field in fields.items() if field.get("validation_alias", key) == name), None)


def _members(
    schema: Mapping[str, Any], label: Part, rest: tuple[Part, ...], definitions: Mapping[str, Any]
) -> Iterator[Place]:
    """Yield a `Place` of the error for each member of a union whose schema has the location of the error.

    label: part of the location that names the member. Members whose class has this name come first.
    rest: the parts of the location after the label.
    """
    members = [choice[0] if isinstance(choice, tuple) else choice for choice in schema["choices"]]
    members.sort(key=lambda choice: getattr(choice.get("cls"), "__name__", None) != label)
    for member in members:
        found = _place(member, rest, definitions)
        if found is not None:
            yield found
