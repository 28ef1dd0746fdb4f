"""Write the tables of `docs/families.md`: families, wrapped language models, refused types. Run: `make reference`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from models.families import FAMILIES, STACKS
from models.families.shared.refused import REFUSED
from models.families.shared.wrappers import WRAPPERS

PAGE = Path(__file__).resolve().parent / "families.md"


def families() -> str:
    """The served families in the order of the registry."""
    rows = [
        "| family | `model_type` | stacks | architectures in `config.json`, with their tasks |",
        "|---|---|---|---|",
    ]
    for family in {family.name: family for family in FAMILIES.values()}.values():
        does = "; ".join(f"`{name}`: {', '.join(tasks)}" for name, tasks in family.architectures.items())
        types = ", ".join(f"`{model_type}`" for model_type in family.model_types)
        rows.append(f"| {family.name} | {types} | {STACKS[family.name]} | {does} |")
    return "\n".join(rows)


def wrappers() -> str:
    """The checkpoints whose language model is served alone."""
    rows = ["| `model_type` | architecture in `config.json` | usual language model |", "|---|---|---|"]
    rows += [f"| `{kind}` | `{wrapper.architecture}` | {wrapper.text} |" for kind, wrapper in WRAPPERS.items()]
    return "\n".join(rows)


def refused() -> str:
    """The types that cannot be served, those with the same reason in one row."""
    types: dict[str, list[str]] = {}
    for kind, reason in REFUSED.items():
        types.setdefault(reason, []).append(f"`{kind}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in types.items()]
    return "\n".join(["| `model_type` | reason |", "|---|---|", *rows])


TABLES: Mapping[str, Callable[[], str]] = {"families": families, "wrappers": wrappers, "refused": refused}
"""The tables by the names of their marks in the page."""


def page(text: str) -> str:
    """The text of the page with current tables. Raises ValueError for a page without one of the marks."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        before, mark, rest = text.partition(begin)
        _, other_mark, after = rest.partition(end)
        if not mark or not other_mark:
            raise ValueError(f"the page has no marks of the table {name!r}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
