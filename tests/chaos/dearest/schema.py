"""Change a request body at random, as its OpenAPI schema allows: longer texts, more items, other alternatives.

Only the schema decides which fields exist and how large they can become. Numbers in the server's last error message are
tried as sizes too. They are often limits, many of which depend on the model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.dearest.files import DOCUMENT_FORMATS
from tests.chaos.dearest.recipe import Recipe, pattern

UNITS = ("a ", "a", " ", "\n", "one two. ", "<b>x</b> ", "\ufdfa", "\u4e2d", "7", ".", "\U0001f600", "{{", "[MASK] ")
"""Texts that are repeated to make a long text: words, white space, sentences, markup, rare characters, and others."""
SIZES = (1, 16, 48, 64, 256, 512, 1024, 4096, 20_000, 60_000, 200_000, 400_000, 2_000_000)
SECONDS = (0.01, 1, 60, 600, 1800, 30_000)
SOUNDS = (
    (16_000, 1, 16),
    (8_000, 1, 8),
    (1_000, 1, 8),
    (44_100, 2, 16),
    (192_000, 8, 32),
    (191_999, 1, 24),
    (11_025, 1, 8),
)
"""(sampling rate, number of channels, bits per sample) of WAV files."""
PARAGRAPHS = (1, 64, 1024, 20_000, 200_000)
"""Numbers of paragraphs in documents."""
LINES = ("term {}\tx", "{}\t{}", "term {},x")
"""Patterns of texts in which each line differs, such as glossaries. `{}` becomes the index of the line."""
MAX_FACTOR = 1024
"""A number field whose maximum is at most this is taken for a factor of the work, such as answers or beams."""
MAX_ROWS = 4096
"""Assumed limit of the product of a body's factors, until an error message has named the real limit."""
MAX_DEPTH = 6
"""Number of levels of a body that are changed or created."""


@dataclass
class Mutator:
    """Changes recipes at random.

    components: schemas of the OpenAPI document, by name. random: source of random numbers.
    hints: numbers in the latest error messages.
    takes_documents: whether files are documents; otherwise they are recordings.
    """

    components: Mapping[str, Any]
    random: random.Random
    hints: list[int] = field(default_factory=list)
    takes_documents: bool = False

    def mutate(self, schema: Mapping[str, Any], recipe: Recipe, depth: int = 0) -> Recipe:
        """Return a recipe with one random change."""
        schema = self._resolve(schema)
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            return self._mutate_choice(options, recipe, depth)
        is_object = isinstance(recipe, dict) and pattern(recipe) is None and schema.get("properties")
        if is_object and depth < MAX_DEPTH:
            return self._mutate_object(schema, recipe, depth)
        items = schema.get("items")
        if isinstance(recipe, list) and recipe and items and self.random.random() < 0.4:
            place = self.random.randrange(len(recipe))
            return [*recipe[:place], self.mutate(items, recipe[place], depth + 1), *recipe[place + 1 :]]
        if (found := pattern(recipe)) and found[0] == "$list" and items and self.random.random() < 0.5:
            return {"$list": [self.mutate(items, found[1][0], depth + 1), found[1][1]]}
        return self.create(schema, depth)

    def create(self, schema: Mapping[str, Any], depth: int = 0) -> Recipe:
        """Create a random value that is valid for a schema. It is often large."""
        schema = self._resolve(schema)
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self.create(self.random.choice(options), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        kind = schema.get("type")
        if schema.get("format") == "binary" and self.takes_documents:
            suffix, unit = self.random.choice(DOCUMENT_FORMATS), self.random.choice(UNITS)
            return {"$document": [suffix, unit, self.random.choice(PARAGRAPHS)]}
        if schema.get("format") == "binary":
            rate, channels, bits = self.random.choice(SOUNDS)
            return {"$wav": [self.random.choice(SECONDS), rate, channels, bits]}
        if kind == "string":
            size = self._size(schema.get("minLength"), schema.get("maxLength"))
            if self.random.random() < 0.1:
                return {"$lines": [self.random.choice(LINES), size // 8]}
            return {"$text": [self.random.choice(UNITS), size]}
        if kind in ("integer", "number"):
            return self._number(schema, kind)
        if kind == "boolean":
            return self.random.random() < 0.7
        if kind == "array":
            return self._array(schema, depth)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "null":
            return None
        return self.random.choice([{"$deep": 30}, {"$list": [1, self._size(None, None)]}, {"$text": ["a", 1000]}])

    def multiply(self, schema: Mapping[str, Any], recipe: Recipe) -> Recipe:
        """Set several factors of a recipe's work together, such as the numbers of inputs, answers and beams.

        Each factor has a limit, and so has their product. Random sizes would hardly ever come close to both.
        """
        schema = self._resolve(schema)
        properties = schema.get("properties", {})
        if not isinstance(recipe, dict) or pattern(recipe) is not None:
            return recipe
        found = {name: self._factor(properties[name]) for name in properties}
        names = [name for name, option in found.items() if option is not None]
        left = self.random.choice([hint for hint in self.hints[-12:] if 1 < hint <= MAX_ROWS] or [MAX_ROWS])
        changed = dict(recipe)
        for name in self.random.sample(names, min(len(names), self.random.choice((2, 3)))):
            option = found[name] or {}
            most = min(left, option.get("maximum", option.get("maxItems", left)))
            share = self.random.choice([most, max(most // 4, 1), max(int(most**0.5), 1)])
            if option["type"] == "array":
                changed[name] = {"$list": [self._item(option, recipe.get(name)), share]}
            else:
                changed[name] = max(share, option.get("minimum", 1))
            left = max(left // share, 1)
        return changed

    def _factor(self, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The alternative of a schema that is a list or a number with a small maximum; None if there is none."""
        schema = self._resolve(schema)
        for option in map(self._resolve, schema.get("anyOf") or schema.get("oneOf") or [schema]):
            is_small = option.get("type") == "integer" and 1 < option.get("maximum", 0) <= MAX_FACTOR
            if is_small or option.get("type") == "array":
                return option
        return None

    def _item(self, schema: Mapping[str, Any], recipe: Recipe) -> Recipe:
        """An item to add to a list: an item that the list already has, which is surely valid, or a new one."""
        if isinstance(recipe, str | int):
            return recipe
        if isinstance(recipe, list) and recipe:
            return recipe[0]
        if (known := pattern(recipe)) and known[0] == "$list":
            return known[1][0]
        return self.create(schema.get("items", {}), 1)

    def _array(self, schema: Mapping[str, Any], depth: int) -> Recipe:
        items = schema.get("items", {})
        count = self._size(schema.get("minItems"), schema.get("maxItems"))
        if depth >= MAX_DEPTH:
            return []
        if self._resolve(items).get("type") == "string" and self.random.random() < 0.3:
            return {"$each": ["word ", count]}
        return {"$list": [self.create(items, depth + 1), count]}

    def _object(self, schema: Mapping[str, Any], depth: int) -> Recipe:
        if not schema.get("properties"):
            values = schema.get("additionalProperties")
            if depth >= MAX_DEPTH or values is False:
                return {}
            return {"$keys": [self.create(values if isinstance(values, dict) else {}, depth + 1), self._size(0, None)]}
        if depth >= MAX_DEPTH:
            return {}
        required = schema.get("required", ())
        return {
            name: self.create(described, depth + 1)
            for name, described in schema["properties"].items()
            if name in required or self.random.random() < 0.15
        }

    def _mutate_choice(self, options: Sequence[Mapping[str, Any]], recipe: Recipe, depth: int) -> Recipe:
        fitting = [option for option in options if self._fits(self._resolve(option), recipe)]
        if fitting and self.random.random() < 0.6:
            return self.mutate(self.random.choice(fitting), recipe, depth)
        return self.create(self.random.choice(options), depth)

    def _mutate_object(self, schema: Mapping[str, Any], recipe: dict[str, Any], depth: int) -> Recipe:
        properties, required = schema["properties"], schema.get("required", ())
        present = [name for name in recipe if name in properties]
        optional = [name for name in present if name not in required]
        if optional and self.random.random() < 0.15:
            gone = self.random.choice(optional)
            return {name: part for name, part in recipe.items() if name != gone}
        names = present if present and self.random.random() < 0.5 else list(properties)
        name = self.random.choice(names)
        if name == "model":
            return recipe
        changed = self.mutate(properties[name], recipe[name], depth + 1) if name in recipe else None
        return recipe | {name: self.create(properties[name], depth + 1) if changed is None else changed}

    def _number(self, schema: Mapping[str, Any], kind: str) -> int | float:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -(1 << 31)))
        high = schema.get("maximum", schema.get("exclusiveMaximum", 1 << 31))
        if kind == "number":
            return self.random.choice([low, high, (low + high) / 2, max(low, min(high, 1.0))])
        sizes = [low, high, *SIZES, *self._hinted()]
        return self.random.choice([size for size in sizes if low <= size <= high])

    def _size(self, low: int | None, high: int | None) -> int:
        sizes = [size for size in (*SIZES, *self._hinted()) if (low or 0) <= size <= (high or SIZES[-1])]
        return self.random.choice([*sizes, *([high, high] if high else [])] or [low or 0])

    def _hinted(self) -> list[int]:
        return [size for hint in self.hints[-12:] for size in (hint - 1, hint) if size >= 0]

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self.components[schema["$ref"].rpartition("/")[2]]
        if "allOf" in schema and len(schema["allOf"]) == 1:
            return self._resolve(schema["allOf"][0])
        return schema

    def _fits(self, schema: Mapping[str, Any], recipe: Recipe) -> bool:
        """Whether a recipe makes values of the JSON type of a schema. Nothing else in the schema is checked."""
        kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
        patterns = {"$text": "string", "$list": "array", "$each": "array", "$keys": "object", "$deep": "array"}
        patterns |= {"$wav": "string", "$document": "string", "$lines": "string"}
        found = pattern(recipe)
        kind = patterns[found[0]] if found else kinds.get(type(recipe))
        return schema.get("type") == kind or (schema.get("type") == "number" and kind == "integer")
