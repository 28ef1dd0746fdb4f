"""The import rules in CONTRIBUTING.md equal the import contracts, and the code follows them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
_SPEC = importlib.util.spec_from_file_location("import_rules", ROOT / "docs" / "import_rules.py")
assert _SPEC is not None and _SPEC.loader is not None
import_rules = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(import_rules)

ROOTS, RULES = import_rules.contracts()


def test_the_page_is_current():
    text = import_rules.PAGE.read_text()
    assert text == import_rules.page(text), "run `make reference`"


@pytest.mark.parametrize(
    "package", ["server", "models", "server.engine", "server.ipc", "server.operations", "server.text"]
)
def test_every_file_and_package_has_a_layer(package: str):
    """Every file and package has a layer, because no rule applies to one without."""
    layers = [
        module
        for rule in RULES
        if rule["type"] == "layers"
        for layer in import_rules.layers_of(rule)
        for module in layer
    ]
    inside = [layer for layer in layers if layer.rpartition(".")[0] == package]
    assert sorted(inside) == sorted(import_rules.children(package))


def test_the_rules_allow_every_import_of_the_code():
    """The page, which is generated from the contracts, forbids no import that `make check` accepts."""
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    imports = [(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)]
    assert len(imports) > 2000
    ignored = [rule.split(" -> ") for contract in RULES for rule in contract.get("ignore_imports", ())]
    for importer, imported in imports:
        if any(_matches(importer, source) and _matches(imported, target) for source, target in ignored):
            continue
        against = [rule["name"] for rule in RULES if import_rules.forbids(rule, importer, imported)]
        assert not against, f"{importer} imports {imported}"


def _matches(module: str, expression: str) -> bool:
    return import_rules.is_within(module, expression.removesuffix(".**").removesuffix(".*"))


CONTRACTS: list[dict[str, Any]] = [
    {"type": "layers", "layers": ["a.top", "a.left | a.right", "a.one : a.other", "a.bottom"]},
    {"type": "forbidden", "source_modules": ["a.left"], "forbidden_modules": ["a.bottom.inner", "torch", "b.net"]},
    {
        "type": "protected",
        "protected_modules": ["b"],
        "allowed_importers": ["a.top"],
        "ignore_imports": ["a.one.** -> b.x"],
    },
    {"type": "independence", "modules": ["a.left.*"]},
]


@pytest.mark.parametrize(
    ("importer", "imported", "parts", "exceptions"),
    [
        ("a.top", "a.bottom", ["a.bottom"], []),
        ("a.bottom", "a.top", [], []),
        ("a.left", "a.right", [], []),
        ("a.one", "a.other", ["a.other"], []),
        ("a.left", "a.bottom", ["a.bottom"], ["a.bottom.inner"]),
        ("a.top", "b", ["b"], []),
        ("a.one", "b", ["b.x"], []),
        ("a.other", "b", [], []),
        ("a.new", "a.top", ["a.top"], []),
    ],
)
def test_what_contracts_allow(importer: str, imported: str, parts: list[str], exceptions: list[str]):
    assert import_rules.allowed(CONTRACTS, importer, imported) == (parts, exceptions)


def test_libraries_that_contracts_exclude():
    assert import_rules.never_reached(CONTRACTS, ["a", "b"], "a.left") == ["torch"]
    assert import_rules.never_reached(CONTRACTS, ["a", "b"], "a.right") == []


def test_examples_import_nothing_of_ours():
    for path in sorted((ROOT / "examples").glob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert not {name.partition(".")[0] for name in names} & {*ROOTS, "tests", "benchmarks"}, path.name
