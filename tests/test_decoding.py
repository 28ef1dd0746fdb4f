"""The table in `docs/decoding.md` has every field of `/generate`, and each field has test files that name it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.api.dialects.native.bodies import GenerateBody
from server.operations.generating.generation_options import SAMPLER_NEUTRAL

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
    "sequences": ["tests/engine/test_allowed_sequences.py", "tests/wire/test_allowed_sequences.py"],
    "wire": ["tests/wire/test_generate.py", "tests/wire/test_fields.py"],
    "translate": ["tests/wire/test_translate.py"],
    "oracle": ["tests/e2e/test_oracle.py"],
    "attention": ["tests/engine/test_alignment.py", "tests/e2e/test_translation.py"],
}
TESTED = {
    "model": "wire",
    "prompt": "wire",
    "stream": "wire, translate",
    "max_new_tokens": "engine, wire, resolved",
    "min_new_tokens": "processors, engine, beams",
    "do_sample": "resolved, wire",
    "temperature": "sampler, resolved",
    "top_k": "sampler, crowd",
    "top_p": "sampler, crowd",
    "min_p": "sampler, crowd",
    "typical_p": "sampler, crowd, wire",
    "repetition_penalty": "processors, engine, beams",
    "presence_penalty": "processors, engine, beams, crowd, wire",
    "frequency_penalty": "processors, engine, beams, crowd, wire",
    "no_repeat_ngram_size": "processors, engine, beams, crowd",
    "encoder_no_repeat_ngram_size": "processors, engine, beams, crowd, oracle",
    "logit_bias": "processors, engine, beams, crowd, oracle, wire",
    "bad_words": "processors, beams, resolved",
    "allowed_sequences": "sequences",
    "allowed_token_ids": "processors, engine, beams, crowd, oracle, wire",
    "suppress_tokens": "processors, engine, beams",
    "seed": "sampler, crowd, wire",
    "n": "wire, resolved",
    "best_of": "wire, resolved, oracle",
    "num_beams": "beams, crowd",
    "num_return_sequences": "beams, wire",
    "length_penalty": "beams",
    "early_stopping": "beams",
    "num_beam_groups": "beams, wire",
    "diversity_penalty": "beams, wire",
    "stop": "wire, stops",
    "stop_token_ids": "engine, wire",
    "include_stop": "wire",
    "ignore_eos": "wire, resolved",
    "skip_special_tokens": "wire",
    "logprobs": "engine, wire",
    "top_logprobs": "engine, wire",
    "prompt_logprobs": "engine, crowd, wire, resolved, oracle",
    "echo": "wire, oracle",
    "return_token_ids": "wire, oracle",
    "return_attention": "wire, attention",
    "truncate": "wire",
    "forced_bos_token": "processors, beams, resolved",
    "decoder_prefix": "resolved, translate",
    "source_lang": "translate",
    "target_lang": "translate",
    "response_format": "format, crowd, wire, translate, oracle",
    "timeout_ms": "wire",
    "user": "wire",
    "metadata": "wire",
    "store": "wire",
}
"""For each field, the keys of `TESTS` under which test files for it are listed."""


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_table_has_every_field_once():
    assert sorted(name for row in ROWS for name in names(row[0])) == sorted(GenerateBody.model_fields)


@pytest.mark.parametrize("field", sorted(GenerateBody.model_fields))
def test_the_test_files_of_a_field_contain_it(field: str) -> None:
    """A test file must contain the name of the field, or its name in the engine."""
    engine_names = {
        "bad_words": "bad_words_ids",
        "suppress_tokens": "suppress_token_ids",
        "forced_bos_token": "forced_bos_token_id",
        "response_format": "grammar",
        "return_attention": "attention",
    }
    for place in TESTED[field].split(", "):
        text = "".join((ROOT / file).read_text() for file in TESTS[place])
        assert field in text or engine_names.get(field, field) in text, f"{field} is not in {TESTS[place]}"


def test_each_list_of_sampling_fields_on_the_page_is_complete():
    """These lists are in the row of `do_sample`, in the order of filters, and in the text on defaults of dialects."""
    samplers = list(SAMPLER_NEUTRAL)
    (cell,) = (row[2] for row in ROWS if names(row[0]) == ["do_sample"])
    (order,) = re.findall(r"^5\. in sampled rows: (.*)$", PAGE, re.MULTILINE)
    (looked_up,) = re.findall(r"^sampling field \((.*?)\)", PAGE, re.MULTILINE)
    assert names(cell) == names(order) == samplers and names(looked_up) == ["do_sample", *samplers]
