"""Request bodies in few bytes: JSON in which long strings, lists and objects are written as a pattern and a count.

{"$text": ["ab ", 4000]}     the first 4,000 characters of "ab ab ab ..."
{"$list": [7, 1000]}         a list of 1,000 sevens
{"$each": ["label ", 30]}    the 30 different strings "label 0", "label 1", ...
{"$keys": [1.0, 500]}        an object with the keys "0" to "499" and equal values
{"$deep": 30}                30 lists inside each other
"""

from __future__ import annotations

from typing import Any

import orjson

Recipe = Any
"""JSON value in which objects with one key that begins with `$` are patterns."""


def expand(recipe: Recipe) -> Any:
    """The JSON value of a recipe. Equal items of a list are one object, so that a large body costs little memory."""
    if isinstance(recipe, list):
        return [expand(one) for one in recipe]
    if not isinstance(recipe, dict):
        return recipe
    match pattern(recipe):
        case "$text", (unit, count):
            return (unit * (count // len(unit) + 1))[:count]
        case "$list", (item, count):
            return [expand(item)] * count
        case "$each", (text, count):
            return [f"{text}{index}" for index in range(count)]
        case "$keys", (item, count):
            return dict.fromkeys(map(str, range(count)), expand(item))
        case "$deep", depth:
            value: list[Any] = []
            for _ in range(depth):
                value = [value]
            return value
    return {key: expand(one) for key, one in recipe.items()}


def pattern(recipe: Recipe) -> tuple[str, Any] | None:
    """Name and arguments of a pattern, or None for any other value."""
    if isinstance(recipe, dict) and len(recipe) == 1:
        ((name, value),) = recipe.items()
        if name.startswith("$"):
            return name, value
    return None


def body_bytes(recipe: Recipe) -> bytes:
    """The bytes of a request body."""
    return orjson.dumps(expand(recipe))


def shrink(recipe: Recipe, max_bytes: int) -> Recipe:
    """The recipe with its largest counts halved until the body has at most this many bytes."""
    while len(body_bytes(recipe)) > max_bytes:
        recipe = _halved(recipe, max(_counts(recipe), default=0))
    return recipe


def _counts(recipe: Recipe) -> list[int]:
    match pattern(recipe):
        case "$text", (_, count):
            return [count]
        case "$list" | "$keys", (item, count):
            return [count, *_counts(item)]
        case "$each", (_, count):
            return [count]
    inner = recipe.values() if isinstance(recipe, dict) else recipe if isinstance(recipe, list) else ()
    return [count for one in inner for count in _counts(one)]


def _halved(recipe: Recipe, count: int) -> Recipe:
    match pattern(recipe):
        case str(name), [item, number]:
            kept = item if name in ("$text", "$each") else _halved(item, count)
            return {name: [kept, number // 2 if number == count else number]}
    if isinstance(recipe, dict):
        return {key: _halved(one, count) for key, one in recipe.items()}
    return [_halved(one, count) for one in recipe] if isinstance(recipe, list) else recipe
