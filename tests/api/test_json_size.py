"""The values of a JSON body are counted before the body is parsed."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest

from server.api.bodies import json_size
from server.api.bodies.body import MAX_DEPTH, MAX_ERRORS, parse, validate
from server.api.bodies.json_size import BODY_VALUES, CHAT_VALUES, _outside_strings, check_size
from server.api.dialects.native.bodies import GenerateBody
from server.errors import InvalidRequest

MAX_VALUES, MAX_STRINGS = BODY_VALUES.values, BODY_VALUES.strings
MAX_KEYS, MAX_CONTAINERS = BODY_VALUES.keys, BODY_VALUES.containers


def random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(5) if depth else chance.randrange(3)
    text = "".join(chance.choice('a\\"[]{},:\n é') for _ in range(chance.randrange(9)))
    if kind == 3:
        return [random_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    if kind == 4:
        return {f"{text}{index}": random_value(chance, depth - 1) for index in range(chance.randrange(4))}
    return text if kind else chance.choice([1, None, -2.5])


def count(value: Any) -> tuple[int, int, int, int]:
    """Number of commas, of keys, of lists and objects together, and of strings, keys included."""
    if not isinstance(value, list | dict):
        return 0, 0, 0, int(isinstance(value, str))
    inner = list(map(count, value.values() if isinstance(value, dict) else value))
    commas, keys, containers, strings = (sum(counts[index] for counts in inner) for index in range(4))
    own_keys = len(value) if isinstance(value, dict) else 0
    return commas + max(len(value) - 1, 0), keys + own_keys, containers + 1, strings + own_keys


@pytest.mark.parametrize("portion", [2, 3, 7, 64, json_size.PORTION])
def test_characters_inside_strings_do_not_count(portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the portions, which may end within an escape, changes no count."""
    monkeypatch.setattr(json_size, "PORTION", portion)
    chance = random.Random(0)
    for _ in range(500):
        value = random_value(chance, 4)
        assert _outside_strings(orjson.dumps(value)) == _outside_strings(json.dumps(value).encode()) == count(value)


@pytest.mark.parametrize(
    "value, problem",
    [
        ([1] * MAX_VALUES, None),
        ([1] * (MAX_VALUES + 1), "values and keys"),
        (["x"] * MAX_STRINGS, None),
        (['"x"'] * MAX_STRINGS, None),
        (["x"] * (MAX_STRINGS + 1), "strings"),
        (dict.fromkeys(map(str, range(MAX_KEYS)), 1), None),
        (dict.fromkeys(map(str, range(MAX_KEYS + 1)), 1), "keys"),
        ([[]] * (MAX_CONTAINERS - 1), None),
        ([{}] * MAX_CONTAINERS, "lists and objects"),
        (["[,:" * 200_000, '\\"[', "{" * MAX_CONTAINERS], None),
    ],
)
def test_limits(value: Any, problem: str | None) -> None:
    raw = orjson.dumps(value)
    if problem is None:
        check_size(raw)
        assert parse(raw) == value
    else:
        with pytest.raises(InvalidRequest, match=f"^the body has \\d+ {problem}; the limit is \\d+$"):
            parse(raw)


def test_chat_takes_more_objects_than_other_routes() -> None:
    call = {"name": "read", "arguments": {"path": "a", "range": [1, 2]}}
    turns = [{"role": "assistant", "tool_calls": [{"id": "1", "function": call}]}, {"role": "tool", "content": [{}]}]
    raw = orjson.dumps(turns * 1300)
    assert parse(raw, CHAT_VALUES) == turns * 1300
    with pytest.raises(InvalidRequest, match="lists and objects"):
        parse(raw)
    with pytest.raises(InvalidRequest, match="lists and objects"):
        parse(orjson.dumps([{}] * CHAT_VALUES.containers), CHAT_VALUES)


@pytest.mark.parametrize("spell", [lambda inner: [inner], lambda inner: {"a": inner, "b": 2}])
def test_nesting_is_limited(spell: Any) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = spell(value)
    assert parse(orjson.dumps([value])) == [value]
    with pytest.raises(InvalidRequest, match=f"^the body has more than {MAX_DEPTH} levels of nesting$"):
        parse(orjson.dumps([spell(value)]))
    with pytest.raises(InvalidRequest):
        parse(b"[" * 100_000)


def test_many_errors_are_counted_and_not_described() -> None:
    bias = dict.fromkeys(map(str, range(MAX_ERRORS + 1)), "x")
    with pytest.raises(InvalidRequest, match=r"^the body has 1001 invalid fields or items$"):
        validate({"prompt": "a", "logit_bias": bias}, GenerateBody)
    with pytest.raises(InvalidRequest, match=r"^`suppress_tokens\[0\]` must be an integer$"):
        validate({"prompt": "a", "suppress_tokens": ["x"] * 5000}, GenerateBody)
