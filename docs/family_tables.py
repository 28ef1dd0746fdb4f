"""Write the tables of `docs/families.md`: families, wrapped language models, refused types. Run: `make reference`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from models.families import FAMILIES, STACKS
from models.families.shared.refused import REFUSED
from models.families.shared.wrappers import WRAPPERS

PAGE = Path(__file__).resolve().parent / "families.md"


def families() -> str:
    """The table of served families, in the order of the registry."""
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
    """The table of multimodal checkpoints of which only the language model is served."""
    rows = ["| `model_type` | architecture in `config.json` | usual language model |", "|---|---|---|"]
    rows += [f"| `{kind}` | `{wrapper.architecture}` | {wrapper.text} |" for kind, wrapper in WRAPPERS.items()]
    return "\n".join(rows)


def refused() -> str:
    """The table of model types that cannot be served. Types with the same reason share a row."""
    types: dict[str, list[str]] = {}
    for kind, reason in REFUSED.items():
        types.setdefault(reason, []).append(f"`{kind}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in types.items()]
    return "\n".join(["| `model_type` | reason |", "|---|---|", *rows])


TABLES: Mapping[str, Callable[[], str]] = {"families": families, "wrappers": wrappers, "refused": refused}
"""Functions that return the tables, by the name in the comments that mark their places in the page."""


def page(text: str) -> str:
    """Replace the tables in the text of the page.

    Raises ValueError if a comment that marks a table's place is missing.
    """
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
