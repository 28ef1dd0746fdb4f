"""Find the targets of `$ref` inside one JSON Schema: JSON pointers, `$id` and `$anchor`.

Source: JSON Schema 2020-12, core, sections 8.2 and 9.1. Documents outside of the schema are never fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose value maps names to subschemas."""
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLE_SCHEMAS = frozenset(
    {
        "items",
        "additionalItems",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "contains",
        "not",
        "if",
        "then",
        "else",
    }
)


class References:
    """The targets of the references of one schema. root: the whole schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._bases: dict[int, str] = {}
        self._documents: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        pending: list[tuple[Any, str]] = [(root, "")]
        while pending:
            schema, base = pending.pop()
            base = self._register(schema, base)
            pending += [(inner, base) for inner in _subschemas(schema)]

    def target(self, holder: Mapping[str, Any], reference: object, lenient: bool) -> tuple[Any, str] | None:
        """The schema to which a `$ref` points, and its path in the whole schema (empty if unknown). None without one.

        holder: the schema with the `$ref`.
        lenient: a pointer that lacks its `#`, as `/$defs/E`, is followed too.
        """
        if not isinstance(reference, str):
            return None
        base = self._bases.get(id(holder), "")
        address, fragment = _resolved(base, reference)
        document = self._documents.get(address)
        if document is None and lenient and reference.startswith("/"):
            document, fragment = self._root, reference
        if document is None:
            return None
        if not fragment.startswith("/"):
            found = self._anchors.get((self._bases.get(id(document), ""), unquote(fragment))) if fragment else document
            return None if found is None else (found, "")
        steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in fragment[1:].split("/")]
        found = document
        for step in steps:
            found = _member(found, step)
        path = ".".join(steps) if document is self._root else ""
        return (found, path) if isinstance(found, Mapping | bool) else None

    def _register(self, schema: Mapping[str, Any], base: str) -> str:
        """Enter a schema under its own names. Returns the base URI of its subschemas."""
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str):
            address, fragment = _resolved(base, own)
            if address != base:
                base = address
                self._documents[base] = schema
            if fragment:
                self._anchors[base, unquote(fragment)] = schema
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._anchors[base, schema[keyword]] = schema
        self._bases[id(schema)] = base
        if schema is self._root:
            self._documents[base] = schema
        return base


def _resolved(base: str, reference: str) -> tuple[str, str]:
    """The address and the fragment of a reference. A reference that is no URI has an address that nothing has."""
    try:
        address, fragment = urldefrag(reference)
        return (urljoin(base, address) if address else base), fragment
    except ValueError:
        return reference, ""


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for keyword, value in schema.items():
        inner: Any = ()
        if keyword in SCHEMA_MAPS and isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, list) and (keyword in SCHEMA_LISTS or keyword == "items"):
            inner = value
        elif keyword in SINGLE_SCHEMAS:
            inner = (value,)
        yield from (subschema for subschema in inner if isinstance(subschema, Mapping))


def _member(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(value):
        return value[int(step[:9])]
    return None
