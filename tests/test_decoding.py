"""The table in `docs/decoding.md` has every field of `/generate`, and names test files that test the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.api.dialects.native.bodies import GenerateBody

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "decoding.md").read_text()
TABLE = PAGE.split("<!-- fields: begin -->")[1].split("<!-- fields: end -->")[0]
ROWS = [line.split("|")[1:-1] for line in TABLE.strip().splitlines()[2:]]
TESTS = {
    "processors": ["tests/engine/test_logits_processors.py"],
    "sampler": ["tests/engine/test_sampler.py"],
    "engine": ["tests/engine/test_engine.py"],
    "beams": ["tests/engine/test_beam_search.py", "tests/engine/test_beam_groups.py"],
    "stops": ["tests/engine/test_beam_stops.py"],
    "format": ["tests/engine/test_grammars.py"],
    "crowd": ["tests/invariance/test_alone_equals_batched.py"],
    "resolved": ["tests/operations/test_generation_params.py"],
    "wire": ["tests/wire/test_generate.py", "tests/wire/test_fields.py"],
    "translate": ["tests/wire/test_translate.py"],
    "oracle": ["tests/e2e/test_oracle.py"],
    "attention": ["tests/engine/test_alignment.py", "tests/e2e/test_translation.py"],
}


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_table_has_every_field_once():
    assert sorted(name for row in ROWS for name in names(row[0])) == sorted(GenerateBody.model_fields)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_the_listed_test_files_contain_the_field(row):
    """A test file must contain the name of the field, or its name in the engine."""
    engine_names = {
        "bad_words": "bad_words_ids",
        "suppress_tokens": "suppress_token_ids",
        "forced_bos_token": "forced_bos_token_id",
        "response_format": "grammar",
        "return_attention": "attention",
    }
    for place in row[3].strip().split(", "):
        text = "".join((ROOT / file).read_text() for file in TESTS[place])
        for name in names(row[0]):
            assert name in text or engine_names.get(name, name) in text, f"{name} is not in {TESTS[place]}"
