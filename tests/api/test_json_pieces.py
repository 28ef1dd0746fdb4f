"""JSON that is written in pieces has the same bytes as orjson's output, and no piece is large."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest

from server.api.bodies import json_pieces
from server.api.bodies.json_pieces import BATCH_WEIGHT, PIECE_BYTES, dump, pieces, small_items, weight


def random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(7) if depth else 0
    count = chance.choice([0, 1, 3, 12, BATCH_WEIGHT + 900 if depth == 1 else 2])
    if kind < 2:
        return chance.choice([1, 2.5, 'é"x', None, True, "y" * 300])
    if kind == 2:
        return {f"k{index}": random_value(chance, depth - 1) for index in range(count)}
    if kind == 3:
        return np.random.default_rng(count).random((chance.choice([1, 3]), count)).astype(np.float32)
    if kind == 4:
        return np.random.default_rng(count).random(count).astype(np.float32)
    return [random_value(chance, depth - 1) for _ in range(count)]


def lazy(value: Any, chance: random.Random) -> Any:
    """Copy a value with iterators in place of a random choice of its lists."""
    if isinstance(value, dict):
        return {name: lazy(part, chance) for name, part in value.items()}
    if isinstance(value, list):
        inner = [lazy(part, chance) for part in value]
        return iter(inner) if chance.random() < 0.5 else inner
    return value


@pytest.mark.parametrize("seed", range(40))
def test_pieces_are_the_text_of_the_library(seed: int) -> None:
    chance = random.Random(seed)
    value = random_value(chance, 3)
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    assert b"".join(pieces(value)) == dump(value) == text
    assert dump(lazy(value, chance)) == b"".join(pieces(lazy(value, chance))) == text


@pytest.mark.parametrize("count", [0, 1, BATCH_WEIGHT, 3 * BATCH_WEIGHT + 1])
def test_small_items_are_those_of_the_list(count: int) -> None:
    items = [{"index": index, "value": 0.5} for index in range(count)]
    value = {"first": [1, 2], "items": items, "lists": [items[:2], items[:700]]}

    def lazy_items() -> dict[str, Any]:
        lists = [small_items(iter(part)) for part in value["lists"]]
        return value | {"items": small_items(iter(items)), "lists": iter(lists)}

    assert dump(lazy_items()) == b"".join(pieces(lazy_items())) == orjson.dumps(value)


def test_items_are_created_when_they_are_written() -> None:
    created = 0

    def items() -> Iterator[dict[str, int]]:
        nonlocal created
        for index in range(100_000):
            created += 1
            yield {"index": index, "value": index}

    parts = pieces({"items": items()})
    first = next(parts)
    assert PIECE_BYTES <= len(first) < 2 * PIECE_BYTES and created < 5000
    assert len(orjson.loads(first + b"".join(parts))["items"]) == created == 100_000


def test_one_call_of_the_library_writes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Library:
        OPT_SERIALIZE_NUMPY, Fragment = orjson.OPT_SERIALIZE_NUMPY, orjson.Fragment

        @staticmethod
        def dumps(*arguments: Any) -> bytes:
            text = orjson.dumps(*arguments)
            sizes.append(len(text))
            return text

    monkeypatch.setattr(json_pieces, "orjson", Library)
    numbers = np.random.default_rng(0).random((300, 1000)).astype(np.float32)
    rows = [{"text": "a", "numbers": list(range(50))} for _ in range(2000)]
    for _ in pieces([numbers, numbers.reshape(-1), rows, [[1.5] * 10_000]]):
        pass
    assert max(sizes) < 16 * BATCH_WEIGHT


@dataclass
class Result:
    label: str
    score: float


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, 1),
        ("a" * 640, 11),
        ([1, 2], 3),
        ({"a": [1], "b": "c"}, 4),
        ([Result("a", 0.5)] * 3, 10),
        (np.zeros((3, 4)), 12),
        ([1] * 5000, 100),
        (iter([]), 100),
    ],
)
def test_weight(value: Any, expected: int) -> None:
    assert weight(value, 100) == expected
