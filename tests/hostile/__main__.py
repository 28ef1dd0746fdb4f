"""Run all hostile checkpoints: `python -m tests.hostile [--write docs/hostile-files.md] [--json] [WORDS...]`.

Prints a line for each case: seconds, peak memory, and the error message. `--write` replaces the table in a page.
`--json` prints a JSON object with the result of each case instead.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.hostile.base import write_checkpoint
from tests.hostile.cases import CASES, write_case
from tests.hostile.measure import Refusal, measured

BEGIN, END = "<!-- table: begin (python -m tests.hostile --write) -->", "<!-- table: end -->"


def measure_all(words: list[str]) -> dict[str, Refusal]:
    """Measure the cases whose names contain one of the words; all cases without words."""
    found = {}
    for cases in CASES.values():
        for name, case in cases.items():
            if words and not any(word in name for word in words):
                continue
            with tempfile.TemporaryDirectory() as root:
                directory = Path(root) / "checkpoint"
                write_checkpoint(directory)
                found[name] = measured(*write_case(case, directory))
    return found


def table(found: dict[str, Refusal]) -> str:
    lines = ["| hostile file | seconds | peak memory, MiB | message |", "|---|---|---|---|"]
    for name, outcome in found.items():
        message = outcome.message.replace("|", "\\|")
        message = message if len(message) <= 160 else f"{message[:157]}..."
        lines.append(f"| {name} | {outcome.seconds:.1f} | {outcome.mib:.0f} | `{message.replace('`', '')}` |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    page = Path(arguments[arguments.index("--write") + 1]) if "--write" in arguments else None
    words = [
        argument for argument in arguments if not argument.startswith("--") and (page is None or argument != str(page))
    ]
    found = measure_all(words)
    if "--json" in arguments:
        print(json.dumps({name: [outcome.message, outcome.seconds, outcome.mib] for name, outcome in found.items()}))
    elif page is not None:
        text = page.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN)], text[text.index(END) :]
        page.write_text(f"{before}{BEGIN}\n{table(found)}\n{after}", encoding="utf-8")
    else:
        print(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
