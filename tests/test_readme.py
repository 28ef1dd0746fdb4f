"""The settings file in the documentation is valid, and every link between pages has a target."""

from __future__ import annotations

import re
from pathlib import Path

from server.settings.read import load

ROOT = Path(__file__).resolve().parents[1]


def test_the_settings_file_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)
    file = tmp_path / "triptych.toml"
    file.write_text(block)
    read = load({}, file)
    assert (read.port, read.dtype, read.kv_cache_memory) == (9000, "bfloat16", 4 << 30)
    assert read.models == ["mt=/path/opus-mt-en-de", "embed=sentence-transformers/all-MiniLM-L6-v2"]


def test_every_link_has_a_target() -> None:
    """docs/benchmarks/experiments.md is left out, because docs/benchmarks.md contains its text."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    local = [(page, link) for page, link in links if not link.startswith("http")]
    assert len(local) >= 20
    missing = [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()]
    assert not missing


def test_every_page_that_is_named_exists() -> None:
    """Text and code also name pages, by a path from the root of the repository or from docs/."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    rooms = ("server", "models", "weights", "benchmarks", "tests")
    code = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    missing = []
    for path in [page for page in pages if page.is_file()]:
        for name in re.findall(r"[\w./-]+\.md\b", path.read_text()):
            if not any((place / name).exists() for place in (ROOT, ROOT / "docs", path.parent)):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    for path in code:
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text()):
            if not (ROOT / name).exists():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert not missing
