"""Facts of the README: its settings file is one."""

from __future__ import annotations

import re
from pathlib import Path

from server import settings

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_settings_file_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    file = tmp_path / "triptych.toml"
    file.write_text(block)
    read = settings.load({}, file)
    assert (read.port, read.dtype, read.kv_cache_memory) == (9000, "bfloat16", 4 << 30)
    assert read.models == ["mt=/path/opus-mt-en-de", "embed=sentence-transformers/all-MiniLM-L6-v2"]
