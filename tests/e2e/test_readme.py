"""The Python example of docs/first-hour.md works unchanged with the demo models, except for fewer sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.e2e.conftest import REPOSITORY, serving


def test_the_batch_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "first-hour.md").read_text(), re.DOTALL)
    # Fewer sentences, still more than fit one list.
    block = block.replace("range(5000)", "range(1500)")
    names: dict[str, Any] = {}
    with serving(tmp_path / "log") as server:
        exec(block.replace("http://127.0.0.1:8000", server.url), names)
    assert len(names["vectors"]) == 1500 and len(names["translations"]) == 500
    assert {translation["text"] for translation in names["translations"]} == {"Je suis un étudiant"}
