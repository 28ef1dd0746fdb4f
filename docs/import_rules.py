"""Write the part of `CONTRIBUTING.md` about directories and imports. Run: `make reference`.

The description of a directory is the docstring of its package. Its allowed imports come from the contracts in
`pyproject.toml` ([tool.importlinter]), which `make check` enforces.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- directories: begin (make reference) -->\n", "<!-- directories: end -->"
Contract = Mapping[str, Any]


def contracts() -> tuple[list[str], list[Contract]]:
    """The packages that import-linter reads, and its contracts."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return settings["root_packages"], settings["contracts"]


def is_within(module: str, package: str) -> bool:
    """Whether a module is a package or inside of it."""
    return module == package or module.startswith(f"{package}.")


def layers_of(contract: Contract) -> list[list[str]]:
    """The modules of each layer of a contract, from top to bottom."""
    return [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]


def forbids(contract: Contract, importer: str, imported: str) -> bool:
    """Whether a contract forbids every direct import of `imported`, or of a module inside of it, in `importer`."""
    kind = contract["type"]
    if kind == "layers":
        layers = {module: index for index, layer in enumerate(layers_of(contract)) for module in layer}
        above = next((layer for layer in layers if is_within(importer, layer)), None)
        below = next((layer for layer in layers if is_within(imported, layer)), None)
        if above is None or below is None or above == below:
            return False
        is_beside = layers[above] == layers[below] and "|" in contract["layers"][layers[above]]
        return is_beside or layers[below] < layers[above]
    if kind == "forbidden":
        return _is_in(importer, contract["source_modules"]) and _is_in(imported, contract["forbidden_modules"])
    if kind == "protected":
        protected = [module for module in contract["protected_modules"] if is_within(imported, module)]
        return any(not is_within(importer, module) for module in protected) and not _is_in(
            importer, contract["allowed_importers"]
        )
    assert kind == "independence", f"a contract of type {kind}"
    return False  # concerns the files of one directory


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(is_within(module, package) for package in packages)


def allowed(rules: Iterable[Contract], importer: str, imported: str) -> tuple[list[str], list[str]]:
    """The modules of the directory `imported` that the directory `importer` may import.

    Returns the allowed modules (`imported` itself, or modules inside it), and the forbidden modules inside these.
    """
    parts, exceptions = [imported], []
    for contract in rules:
        if forbids(contract, importer, imported):
            ignored = [rule.split(" -> ") for rule in contract.get("ignore_imports", ())]
            parts = [target for source, target in ignored if is_within(importer, source.removesuffix(".**"))]
            parts = [target for target in parts if is_within(target, imported)]
            if not parts:
                return [], []
        elif contract["type"] == "forbidden" and _is_in(importer, contract["source_modules"]):
            exceptions += [module for module in contract["forbidden_modules"] if is_within(module, imported)]
    return parts, exceptions


def never_reached(rules: Iterable[Contract], roots: Iterable[str], importer: str) -> list[str]:
    """Libraries that a directory never imports, even through other modules."""
    found = [
        module
        for contract in rules
        if contract["type"] == "forbidden" and _is_in(importer, contract["source_modules"])
        for module in contract["forbidden_modules"]
        if module.partition(".")[0] not in roots
    ]
    return list(dict.fromkeys(found))


def path_of(module: str) -> str:
    """The path of a module or package in Markdown, such as `server/cli.py` or `server/api/`."""
    path = module.replace(".", "/")
    return f"`{path}/`" if (ROOT / path).is_dir() else f"`{path}.py`"


def children(package: str) -> list[str]:
    """The modules and packages directly inside of a package."""
    root = ROOT / package.replace(".", "/")
    paths = [*root.glob("*.py"), *(path.parent for path in root.glob("*/__init__.py"))]
    return sorted(f"{package}.{path.stem}" for path in paths if path.stem != "__init__")


def content_of(package: str) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_bytes()))
    assert text, f"{package} has no docstring"
    return text.partition("\n")[0]


def part() -> str:
    """The generated part of the page."""
    roots, rules = contracts()
    orders = [rule for rule in rules if rule["type"] == "layers"]
    shared = [module for layer in layers_of(orders[0])[-2:] for module in layer]
    modules = children("models") + children("server")
    packages = [module for module in modules if (ROOT / module.replace(".", "/")).is_dir()]
    rows = ["| directory | content | may import | never, not even indirectly |", "|---|---|---|---|"]
    for package in sorted([*packages, "weights"]):
        libraries = ", ".join(never_reached(rules, roots, package))
        rows.append(
            f"| {path_of(package)} | {content_of(package)} | {_imports(rules, package, shared)} | {libraries} |"
        )
    lines = [*rows, "", "Shared files are those of the last two lines of the first list.", ""]
    for contract in orders:
        lines += [f"{contract['name']}. The files of a line may import those of the lines below it:", ""]
        for layer, names in zip(contract["layers"], layers_of(contract), strict=True):
            remark = " (also each other)" if ":" in layer else ""
            lines += [f"1. {', '.join(path_of(name) for name in names)}{remark}"]
        lines += [""]
    lines += ["The other contracts:", "", *(f"- {contract['name']}." for contract in rules if contract not in orders)]
    return "\n".join(lines) + "\n"


def _imports(rules: list[Contract], package: str, shared: list[str]) -> str:
    """The table cell with everything that a package may import."""
    found: list[str] = []
    exceptions: list[str] = []
    for root in contracts()[0]:
        inside = [child for child in children(root) if child not in (package, *shared)]
        others = [root] if root == "weights" or (root == "models" and not is_within(package, root)) else inside
        for other in [unrelated for unrelated in others if not is_within(package, unrelated)]:
            modules, without = allowed(rules, package, other)
            found, exceptions = found + modules, exceptions + without
        if len(others) > 1 and set(others) <= set(found):
            found = [module for module in found if module not in others] + [root]
    names = [path_of(module) for module in found]
    names += ["shared files"] * all(allowed(rules, package, module)[0] for module in shared)
    text = ", ".join(names) or "nothing of ours"
    return text + (f"; not {', '.join(path_of(exception) for exception in exceptions)}" if exceptions else "")


def page(text: str) -> str:
    """Replace the generated part in the text of the page."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE.name} has no place for the generated part"
    return before + begin + part() + end + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
