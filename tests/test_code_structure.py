"""Modules of the product do not import each other in a cycle, and no two classes have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "weights", "server")


@cache
def modules() -> Mapping[str, ast.Module]:
    """The syntax tree of each module, by its name."""
    paths = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return {".".join(path.with_suffix("").parts): ast.parse((ROOT / path).read_bytes()) for path in paths}


def imported(tree: ast.Module, names: Mapping[str, object]) -> Iterator[str]:
    """The modules among `names` that a module imports: at its top, in functions, and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.level == 0, "imports are absolute"
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [member if member in names else node.module for member in members]
        else:
            continue
        for name in found:
            yield from (candidate for candidate in (name, f"{name}.__init__") if candidate in names)


def cycle_of(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules of one cycle, or an empty list."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_no_module_imports_itself_through_others():
    trees = modules()
    assert cycle_of({name: set(imported(tree, trees)) - {name} for name, tree in trees.items()}) == []


@pytest.mark.parametrize(
    "planted", ["from one import two", "def f():\n    import two", "if TYPE_CHECKING:\n    from two import Name"]
)
def test_a_planted_cycle_is_found(planted: str):
    trees = {"one": ast.parse(planted), "two": ast.parse("import one"), "one.two": ast.parse("import one")}
    assert "one" in cycle_of({name: set(imported(tree, trees)) - {name} for name, tree in trees.items()})


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
