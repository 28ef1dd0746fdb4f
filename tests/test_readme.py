"""The documentation's settings file is valid, and every link between pages has a target."""

from __future__ import annotations

import re
from pathlib import Path

from server import settings

ROOT = Path(__file__).resolve().parents[1]


def test_the_settings_file_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)
    file = tmp_path / "triptych.toml"
    file.write_text(block)
    read = settings.load({}, file)
    assert (read.port, read.dtype, read.kv_cache_memory) == (9000, "bfloat16", 4 << 30)
    assert read.models == ["mt=/path/opus-mt-en-de", "embed=sentence-transformers/all-MiniLM-L6-v2"]


def test_every_link_has_a_target() -> None:
    """docs/benchmarks/experiments.md is left out: it is a part of docs/benchmarks.md, whose links are checked."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    local = [(page, link) for page, link in links if not link.startswith("http")]
    assert len(local) >= 20
    missing = [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()]
    assert not missing
