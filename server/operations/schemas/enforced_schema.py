"""Compile a JSON Schema as far as it can be enforced.

`json_schema` leaves out the keywords that no grammar can enforce. If the library still refuses the schema, the refused
subschemas are found by compiling each alone, and their keywords are left out one by one. If nothing helps, every value
of the schema's type is allowed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.operations.grammar_compiler import CompileBudget, CompiledFormat, GrammarCompiler
from server.operations.schemas.json_schema import reduce_schema
from server.operations.schemas.reduced_schema import Loss, ReducedSchema, Subschema

JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    # White space between the parts of a JSON answer: none, the spaces of `json.dumps`, or indentation. Unlimited white
    # space would allow an endless answer.
    "whitespace_pattern": r"( |\n {0,20})?",
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
"""All options of llguidance that a schema could set in its member `x-guidance`. These values override it."""
SCHEMA_SECONDS = 4.0
"""Maximum processor time for one schema, including all attempts."""
MAX_SCHEMA_BYTES = 1 << 18
_OPENING = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "dependentSchemas",
        "dependencies",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
        "additionalProperties",
    }
)
"""Keywords that may allow members that `properties` does not name."""
_RELAXED_FIRST = (
    "oneOf",
    "format",
    "pattern",
    "multipleOf",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "patternProperties",
    "allOf",
    "required",
    "additionalProperties",
    "type",
    "$ref",
    "anyOf",
    "prefixItems",
    "items",
    "properties",
    "enum",
    "const",
)
"""Keywords in the order in which they are removed from a refused subschema."""
_DEPENDENT = {"properties": "additionalProperties", "patternProperties": "additionalProperties", "prefixItems": "items"}
"""For some keywords, a second keyword that must be removed together with it.

Alone, the second one would forbid more values.
"""


@dataclass(frozen=True)
class EnforcedSchema:
    """The grammar of a schema.

    source: the grammar in llguidance's JSON form; empty if the schema cannot be used.
    losses: the keywords that the grammar does not enforce. A loss without a keyword means the whole schema.
    is_final: whether the result is the same on a busy server, so that it may be cached.
    fallback: grammar of every value of the same type, for the case that `source` fails; empty for a strict schema.
    """

    source: str
    losses: tuple[Loss, ...] = ()
    is_final: bool = True
    fallback: str = ""

    @property
    def size(self) -> int:
        return len(self.source)

    def lost_names(self, place: str) -> list[str]:
        """Names of the lost keywords for `X-Ignored-Parameters`. place: path of the schema in the request."""
        return list(dict.fromkeys(f"{place}:{loss.keyword}" if loss.keyword else place for loss in self.losses))


def enforce(
    schema: Mapping[str, Any],
    compiler: GrammarCompiler,
    budget: CompileBudget,
    *,
    is_strict: bool,
    is_arguments: bool = False,
) -> EnforcedSchema:
    """Compile a schema without the keywords that cannot be enforced. The result is cached.

    budget: processor time that the request may still use.
    is_strict: return no grammar if any keyword would be lost; `losses` then has the reasons.
    is_arguments: the schema describes arguments of a function. They are an object, and members that `properties` does
        not name are only allowed if the schema mentions them.
    """
    try:
        text = json.dumps(schema)
    except RecursionError:
        text = ""
    if not text or len(text) > MAX_SCHEMA_BYTES:
        size = f"has {len(text)} bytes; the limit is {MAX_SCHEMA_BYTES}" if text else "is nested too deeply"
        return _unreadable(schema, size, compiler, is_strict, is_arguments)
    key = f"{is_strict} {is_arguments} {text}"
    return compiler.remember(key, lambda: _enforce(schema, compiler, budget, is_strict, is_arguments))


def _enforce(
    schema: Mapping[str, Any], compiler: GrammarCompiler, budget: CompileBudget, is_strict: bool, is_arguments: bool
) -> EnforcedSchema:
    reduced = reduce_schema(schema, lenient=not is_strict)
    if is_arguments:
        _require_object(reduced)
    if is_strict and reduced.losses:
        return EnforcedSchema("", tuple(reduced.losses))
    root_type = {"type": reduced.root.keywords["type"]} if "type" in reduced.root.keywords else {}
    own = CompileBudget(min(SCHEMA_SECONDS, budget.seconds_left))
    allowed = own.seconds_left
    fitting = _Fitting(reduced, compiler, own, is_arguments and _is_closed(schema), is_arguments)
    stopped, source = "", ""
    try:
        source = fitting.compile()
    except _Stopped as error:
        stopped = str(error)
    budget.seconds_left -= allowed - own.seconds_left
    if stopped:
        is_final = own.seconds_left <= 0 and budget.seconds_left > 0
        return _without_schema(root_type, stopped, compiler, is_strict, is_final)
    if is_strict:
        return EnforcedSchema("" if reduced.losses else source, tuple(reduced.losses))
    return EnforcedSchema(source, tuple(reduced.losses), fallback=_any_value(root_type, compiler).source)


def _unreadable(
    schema: Mapping[str, Any], reason: str, compiler: GrammarCompiler, is_strict: bool, is_arguments: bool
) -> EnforcedSchema:
    kept = {"type": "object"} if is_arguments or schema.get("type") == "object" else {}
    return _without_schema(kept, reason, compiler, is_strict, True)


def _without_schema(
    kept: Mapping[str, Any], reason: str, compiler: GrammarCompiler, is_strict: bool, is_final: bool
) -> EnforcedSchema:
    """The result for a schema that cannot be enforced except for its type. For a strict schema, it has no grammar.

    kept: a schema with this type. reason: why nothing else can be enforced. is_final: whether the result may be cached.
    """
    losses = (Loss("", "", reason),)
    if is_strict:
        return EnforcedSchema("", losses, is_final)
    compiled = _any_value(kept, compiler)
    return EnforcedSchema(compiled.source, losses, is_final and compiled.is_final, compiled.source)


def _any_value(kept: Mapping[str, Any], compiler: GrammarCompiler) -> CompiledFormat:
    """Compile the grammar of every value of a type. kept: a schema with this type, or an empty one for any value."""
    text = json.dumps(kept)
    return compiler.remember(text, lambda: compiler.compile_schema(text, JSON_OPTIONS, CompileBudget()))


def _require_object(reduced: ReducedSchema) -> None:
    """Restrict a schema to objects. If its type excludes objects, the type is added to the losses."""
    given = reduced.root.keywords.get("type", "object")
    if "object" not in ([given] if isinstance(given, str) else given):
        reduced.losses.append(Loss("type", "", "must be `object`"))
    reduced.root.keywords = {"type": given, **reduced.root.keywords} | {"type": "object"}


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Whether a schema of arguments has only simple `properties`, so that other members can be forbidden.

    JSON Schema would allow them, but a function has no use for them.
    """
    named, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(named, Mapping) or not isinstance(required, list | tuple):
        return False
    return _OPENING.isdisjoint(schema) and all(isinstance(name, str) and name in named for name in required)


class _Stopped(Exception):
    """Error: compiling was ended without a result, for example at a time limit. The message is the reason."""


class _Fitting:
    """Removes keywords from a reduced schema until the library compiles it.

    closes: forbid members that the root does not name. is_arguments: never remove the root's type.
    """

    def __init__(
        self, reduced: ReducedSchema, compiler: GrammarCompiler, budget: CompileBudget, closes: bool, is_arguments: bool
    ) -> None:
        self._reduced, self._compiler, self._budget = reduced, compiler, budget
        self._closes, self._is_arguments = closes, is_arguments
        self._refused = ""
        self._seen: set[int] = set()

    def compile(self) -> str:
        """Compile the schema, and return its grammar. Adds removed keywords to the schema's losses. Raises _Stopped."""
        compiled = self._try(self._reduced.root, is_quick=False)
        if not compiled.refused:
            return compiled.source
        self._refused = compiled.refused
        self._mend(self._reduced.root, compiled.refused)
        compiled = self._try(self._reduced.root, is_quick=False)
        if compiled.refused:
            raise _Stopped(self._refused)
        return compiled.source

    def _try(self, schema: Subschema, is_quick: bool = True) -> CompiledFormat:
        """Compile a subschema as if it were the whole schema. Raises _Stopped."""
        started = time.thread_time()
        value = schema.as_json()
        if schema is self._reduced.root and self._closes and "properties" in value:
            value["additionalProperties"] = False
        if self._reduced.definitions:
            value["$defs"] = {name: definition.as_json() for name, definition in self._reduced.definitions.items()}
        text = json.dumps(value)
        self._budget.seconds_left -= time.thread_time() - started
        compiled = self._compiler.compile_schema(text, JSON_OPTIONS, self._budget, is_quick)
        if not compiled.is_final:
            raise _Stopped(self._refused or compiled.refused)
        return compiled

    def _mend(self, schema: Subschema, reason: str) -> None:
        """Remove keywords from a refused subschema until it compiles, beginning with the subschemas inside of it.

        reason: reason of the refusal, for the losses.
        """
        self._seen.add(id(schema))
        target = self._reduced.target(schema)
        for inner in [*schema.inner(), *([target] if target is not None else [])]:
            if id(inner) in self._seen:
                continue
            refused = self._try(inner).refused
            if refused:
                self._mend(inner, refused)
                reason = self._try(schema).refused
                if not reason:
                    return
        if not self._relax_one(schema, reason):
            self._relax_all(schema, reason)

    def _relax_one(self, schema: Subschema, reason: str) -> bool:
        """Remove one keyword so that a subschema compiles. Returns False if no single keyword is enough."""
        before = schema.keywords
        for keyword in self._relaxable(schema):
            schema.keywords = _without(before, keyword)
            if not self._try(schema).refused:
                self._lose(schema, before, reason)
                return True
        schema.keywords = before
        return False

    def _relax_all(self, schema: Subschema, reason: str) -> None:
        """Remove keywords one after another until a subschema compiles."""
        before = schema.keywords
        for keyword in _RELAXED_FIRST:
            if keyword in self._relaxable(schema):
                schema.keywords = _without(schema.keywords, keyword)
                if not self._try(schema).refused:
                    break
        self._lose(schema, before, reason)

    def _relaxable(self, schema: Subschema) -> list[str]:
        kept = {"type"} if schema is self._reduced.root and self._is_arguments else set()
        return [keyword for keyword in _RELAXED_FIRST if keyword in schema.keywords and keyword not in kept]

    def _lose(self, schema: Subschema, before: Mapping[str, Any], reason: str) -> None:
        for keyword in before:
            if keyword not in schema.keywords:
                why = "has branches that may overlap" if keyword == "oneOf" else reason
                self._reduced.losses.append(Loss(keyword, schema.path, why))


def _without(keywords: Mapping[str, Any], lost: str) -> dict[str, Any]:
    """Remove the keyword `lost` from a subschema, and keywords that would forbid more values if `lost` were missing.

    Instead of being removed, `oneOf` becomes `anyOf` if the subschema has no `anyOf` yet.
    """
    if lost == "oneOf" and "anyOf" not in keywords:
        return {"anyOf" if keyword == "oneOf" else keyword: value for keyword, value in keywords.items()}
    return {keyword: value for keyword, value in keywords.items() if keyword not in (lost, _DEPENDENT.get(lost))}
