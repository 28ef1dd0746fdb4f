"""Find the subschemas that `$ref` means inside one JSON Schema: by JSON pointer, `$id` or `$anchor`.

Other documents are never fetched. Source: JSON Schema 2020-12, core, sections 8.2 and 9.1.
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
    """Finds the targets of references in one schema. root: the whole schema."""

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
        """The schema that a `$ref` means, and its path in the whole schema (empty if unknown). None if there is none.

        holder: the subschema that contains the `$ref`.
        lenient: also follow a pointer that lacks its `#`, such as `/$defs/E`.
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
        """Register a schema under its `$id` and anchors. Returns the base URI for its subschemas.

        base: base URI of the schema.
        """
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
    """Split a reference into its address, relative to `base`, and its fragment.

    A reference that is no URI is returned as the address, which no document has.
    """
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
