"""The list of promises is complete, and names tests and planted bugs that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.bugs import BUGS, planted
from tests.chaos.promise import Promise
from tests.chaos.promises import PROMISES

REPOSITORY = Path(__file__).resolve().parents[2]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_all_promises_are_listed() -> None:
    numbers = [promise.number for promise in PROMISES]
    assert numbers == sorted(set(numbers)) and {*range(1, 43)} == set(numbers)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.title)
def test_a_promise_has_tests_and_a_planted_bug(promise: Promise) -> None:
    assert promise.tests and set(promise.bugs) <= set(BUGS)
    for test in promise.tests:
        path, _, name = test.partition("::")
        assert name in names_in(path), f"no test {test}"


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_can_be_planted(name: str) -> None:
    """Every bug can be planted. It cannot if the product no longer has the function that the bug replaces."""
    with planted(name):
        pass
