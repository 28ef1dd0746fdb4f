"""The documentation of families is correct: tables equal the registry, and the named files and symbols exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from models.config import ConfigError
from models.families import FAMILIES, STACKS

ROOT = Path(__file__).resolve().parents[2]
TABLES = runpy.run_path(str(ROOT / "docs" / "family_tables.py"))


def test_the_tables_equal_the_registry() -> None:
    page = (ROOT / "docs" / "families.md").read_text()
    assert page == TABLES["page"](page), "run `make reference`"
    for name in ("families", "wrappers", "refused"):
        mark = f"<!-- {name}: begin -->\n"
        assert TABLES["page"](page.replace(mark, f"{mark}| wrong |\n")) == page
    with pytest.raises(ValueError, match="refused"):
        TABLES["page"](page.replace("<!-- refused: end -->", ""))


def test_each_family_is_in_the_group_of_its_stacks() -> None:
    """The default configuration of a family has the stacks (encoder, decoder) that the registry names."""
    differing = {}
    for kind, family in FAMILIES.items():
        try:
            model = family.config({"model_type": kind}, next(iter(family.architectures)))
        except ConfigError:
            continue
        found = "-".join(name for name in ("encoder", "decoder") if getattr(model, name) is not None)
        if STACKS[family.name] not in (found, "any of them"):
            differing[family.name] = found
    assert differing == {"jina_embeddings_v5": "decoder"}, "its other size is an encoder"


def test_the_list_for_new_families_names_existing_files() -> None:
    page = (ROOT / "docs" / "adding-a-family.md").read_text()
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md))`", page)) | set(re.findall(r"`(docs/[\w./-]+)", page))
    assert len(named) >= 15
    homes = [ROOT, *(ROOT / home for home in ("models/families", "server/text", "tests/parity", "tests/text"))]
    missing = [name for name in named if not any((home / name.rstrip(".,")).exists() for home in homes)]
    assert not missing
    for symbol, file in (
        ("_REQUIRED", "models/families/native.py"),
        ("REFUSED", "tests/models/test_refused_settings.py"),
        ("REFUSED", "tests/parity/test_native.py"),
        ("test_wrong_setting_without_a_tensor_is_detected", "tests/parity/test_native.py"),
        ("WRITERS", "tests/text/conftest.py"),
        ("NEWEST", "tests/models/family_bases.py"),
        ("PUBLISHED", "tests/models/test_published_code.py"),
        ("PublishedCode", "models/families/shared/published_code.py"),
    ):
        assert symbol in page and symbol in (ROOT / file).read_text()
    assert "docs/adding-a-family.md" in (ROOT / "CONTRIBUTING.md").read_text()
