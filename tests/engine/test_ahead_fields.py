"""Steps that are launched ahead apply every field that they support.

A request with any other field is not run ahead.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest

from models.backends.torch.sampling import Filters
from server.engine.choosing.sampler import SamplerRow
from server.engine.sequences import ahead_fields
from server.engine.sequences.ahead_fields import PARAMS_FIELDS, ROW_FIELDS, SEARCH_FIELDS, may_run_ahead
from server.ipc.wire.generate_messages import Generate, GenerateRow, Hypothesis, SequencePart
from server.ipc.wire.params import GenerationParams, PromptProbe, SpeechAlignment, TimestampRules
from server.ipc.wire.sections import AnswerSection
from server.operations.generating.sequence_tries import build_trie
from tests.engine import captured_texts
from tests.engine.cached_text_model import TOKENS, VOCAB
from tests.engine.captured_texts import DEVICE_FILTERS, capture
from tests.engine.fake_engine import GRAMMAR, make_engine
from tests.ipc.one_row import one_row

PROMPT = [5, 6, 7, 8]
LIMIT = 12
FIELDS = [field.name for field in msgspec.structs.fields(GenerationParams)]
ALONE = {"do_sample": True, "temperature": 1.5}
"""Fields for sampling, without which filters such as `top_k` would have no effect."""
TRIE = build_trie([[3, 4], [3, 5, 6]])
VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "min_new_tokens": (6, {"end_token_ids": [9, 10, 11, 12, 13]}),
    "do_sample": (True, {"temperature": 1.5}),
    "temperature": (3.0, {"do_sample": True}),
    "top_k": (1, ALONE),
    "top_p": (0.1, ALONE),
    "min_p": (0.9, ALONE),
    "typical_p": (0.05, ALONE),
    "repetition_penalty": (3.0, {}),
    "presence_penalty": (2.0, {}),
    "frequency_penalty": (2.0, {}),
    "no_repeat_ngram_size": (1, {}),
    "encoder_no_repeat_ngram_size": (1, {}),
    "renormalize_logits": (True, ALONE),
    "bad_words_ids": ([[token] for token in range(3, 11)], {}),
    "suppress_token_ids": ([*range(3, 11)], {}),
    "begin_suppress_token_ids": ([*range(16)], {}),
    "timestamps": (TimestampRules(VOCAB - 4), {"end_token_ids": [1]}),
    "allowed_token_ids": ([3, 4, 5], {}),
    "logit_bias": ({3: 50.0}, {}),
    "end_token_ids": ([*range(3, 11)], {}),
    "stop_token_ids": ([*range(3, 11)], {}),
    "stop_texts": ([b"g", b"h"], {"num_beams": 2}),
    "forced_bos_token_id": (4, {}),
    "forced_eos_token_id": (1, {"end_token_ids": [1]}),
    "num_beams": (3, {}),
    "num_return_sequences": (2, {"num_beams": 2}),
    "length_penalty": (2.0, {}),
    "early_stopping": (True, {}),
    "num_beam_groups": (2, {"num_beams": 2, "diversity_penalty": 0.5}),
    "diversity_penalty": (9.0, {"num_beams": 4, "num_return_sequences": 4, "num_beam_groups": 2}),
    "logprobs": (True, {}),
    "top_logprobs": (3, {}),
    "stream": (True, {}),
    "sections": ([AnswerSection(grammar=GRAMMAR)], {}),
    "attention": (True, {}),
    "processed_logprobs": (True, {"logprobs": True, "suppress_token_ids": [2]}),
    "probe": (PromptProbe(2, 6), {}),
    "alignment": (SpeechAlignment([(0, 0)], 1), {}),
    "allowed_sequences": (TRIE, {"end_token_ids": [1]}),
    "sequence_set": (7, {"end_token_ids": [1]}),
}
"""For each field of `GenerationParams`: a value that is not neutral, and other fields that it needs for an effect."""
NEEDS_A_SOURCE = {"attention", "alignment", "probe"}
"""Fields for encoder-decoders. The fake model is a decoder, so they are not tested here."""
SAME_TOKENS = {
    "stream", "renormalize_logits", "top_logprobs", "length_penalty", "early_stopping"
}  # fmt: skip
"""Fields that do not change the tokens of the request in this test."""


def answers(params: dict[str, Any], ahead: bool) -> tuple[list[Hypothesis], int]:
    """Run a request. Returns its hypotheses, and the number of steps that were launched ahead.

    params: fields of the request. ahead: whether the engine may launch steps ahead.
    """
    engine = make_engine(4, 64, 64, 8, prefix=False, drafts=False, part=64)
    generation = engine.models["fake"].generation
    assert generation is not None
    runner = generation.runner
    generation.set_vocabulary(TOKENS)
    engine.take_sequences(SequencePart(7, "fake", len(TRIE.ends), TRIE.tokens + TRIE.first_children + TRIE.ends))
    if ahead:
        capture(runner)
    engine.add(one_row(0, "fake", PROMPT, max_new_tokens=LIMIT, seed=3, **params))
    found: list[Hypothesis] = []
    while engine.has_work:
        output = engine.step()
        assert output is None or not output.failed, output
        for end in output.finished if output is not None else ():
            found = end.hypotheses
    return found, runner.captured.log.count("launch") if ahead else 0


def message(**params: Any) -> Generate:
    return one_row(0, "fake", PROMPT, max_new_tokens=LIMIT, **params)


def test_every_field_has_a_value_that_is_not_neutral() -> None:
    """`VALUES` has a value for every field of `GenerationParams`.

    A new field needs an entry, and is then tested here.
    """
    assert list(VALUES) == FIELDS
    neutral = GenerationParams()
    assert not [name for name, (value, _) in VALUES.items() if value == getattr(neutral, name)]


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in NEEDS_A_SOURCE])
def test_a_field_gives_the_tokens_of_the_ordinary_path_or_keeps_the_request_from_steps_ahead(name: str) -> None:
    value, others = VALUES[name]
    (expected, _), (found, launches) = (answers({**others, name: value}, ahead) for ahead in (False, True))
    assert found == expected
    listed = PARAMS_FIELDS if {"num_beams": 1, **others, name: value}["num_beams"] == 1 else SEARCH_FIELDS
    assert (launches > 0) <= (name in listed), "a field that is not listed runs ahead"
    if name not in SAME_TOKENS:
        without, _ = answers(others, False)
        assert without != expected, "the value of this test has no effect"


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in NEEDS_A_SOURCE | {"do_sample"}])
def test_a_field_of_a_search_gives_the_beams_of_the_ordinary_path_or_keeps_the_request_from_steps_ahead(
    name: str,
) -> None:
    value, others = VALUES[name]
    params = {"num_beams": 3, "num_return_sequences": 2, **others, name: value}
    params.pop("do_sample", None)  # the engine refuses it with beams
    (expected, _), (found, launches) = (answers(params, ahead) for ahead in (False, True))
    assert found == expected
    assert (launches > 0) <= (params.keys() <= SEARCH_FIELDS), "a field that is not listed runs ahead"


@pytest.mark.parametrize("name", FIELDS)
def test_only_the_listed_fields_run_ahead(name: str) -> None:
    sent = message(**{name: VALUES[name][0]})
    assert may_run_ahead(sent.params, sent.rows[0]) is (name in PARAMS_FIELDS or name == "num_beams")
    sent = message(**{"num_beams": 4, name: VALUES[name][0]})
    assert may_run_ahead(sent.params, sent.rows[0]) is (name in SEARCH_FIELDS)


def test_only_narrow_searches_that_ban_single_tokens_run_ahead() -> None:
    for params, runs in (
        ({"num_beams": 31, "end_token_ids": [1]}, True),
        ({"num_beams": 32, "end_token_ids": [1]}, False),
        ({"num_beams": 4, "end_token_ids": [*range(3, 10)], "stop_token_ids": [*range(10, 17)]}, True),
        ({"num_beams": 4, "end_token_ids": [*range(3, 10)], "stop_token_ids": [*range(10, 18)]}, False),
        ({"num_beams": 4, "bad_words_ids": [[3], [4]]}, True),
        ({"num_beams": 4, "bad_words_ids": [[3], [4, 5]]}, False),
    ):
        sent = message(**params)
        assert may_run_ahead(sent.params, sent.rows[0]) is runs, params


def test_some_requests_run_ahead() -> None:
    for params in ({}, ALONE, {**ALONE, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "stream": True}):
        assert answers(params, True)[1] > 3
    for params in (
        {"num_beams": 2},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.3, "early_stopping": "never", "stream": True},
        {"num_beams": 3, "min_new_tokens": 9, "bad_words_ids": [[5]], "end_token_ids": [6], "forced_eos_token_id": 6},
        {"num_beams": 3, "suppress_token_ids": [5], "begin_suppress_token_ids": [6], "forced_bos_token_id": 7},
    ):
        found, launches = answers(params, True)
        assert launches > 3 and found == answers(params, False)[0]


def test_a_new_field_is_refused_until_it_is_listed() -> None:
    class WiderParams(GenerationParams, frozen=True):
        stranger: float = 0.0

    class WiderRow(GenerateRow, frozen=True):
        steering: list[int] = []  # noqa: RUF012 - a message

    params, row = WiderParams(), WiderRow(0, 4)
    assert may_run_ahead(params, row)
    assert not may_run_ahead(msgspec.structs.replace(params, stranger=1.0), row)
    assert not may_run_ahead(params, msgspec.structs.replace(row, steering=[1]))


def test_the_lists_name_fields_that_exist() -> None:
    assert set(FIELDS) >= PARAMS_FIELDS | SEARCH_FIELDS
    assert {field.name for field in msgspec.structs.fields(GenerateRow)} == ROW_FIELDS | {"terms"}


def test_one_constructor_takes_every_filter_of_a_request() -> None:
    values = {field.name: VALUES[field.name][0] for field in fields(Filters)}
    row = SamplerRow.of(GenerationParams(do_sample=True, **values), 7, 2)
    assert {name: getattr(row, name) for name in values} == values and (row.seed, row.position) == (7, 2)
    assert SamplerRow.of(GenerationParams(**values), 7, 2).is_greedy


def test_the_device_implements_the_filters_of_the_list() -> None:
    operations = pytest.importorskip("models.backends.cuda.operations", exc_type=ImportError)
    read: set[str] = set()

    class Watched:
        def __getattr__(self, name: str) -> float:
            read.add(name)
            return {"top_k": 3}.get(name, 0.5)

    operations.filter_columns([Watched()], np.zeros(1))
    assert read == set(DEVICE_FILTERS) == ahead_fields._BY_DEVICE - {"do_sample"}


@pytest.mark.parametrize("name", ["typical_p", "repetition_penalty", "logit_bias", "min_new_tokens", "bad_words_ids"])
def test_an_ignored_field_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if a field is listed as supported but captured steps ignore it, the tokens differ."""
    monkeypatch.setattr(ahead_fields, "PARAMS_FIELDS", PARAMS_FIELDS | {name})
    with pytest.raises(AssertionError):
        test_a_field_gives_the_tokens_of_the_ordinary_path_or_keeps_the_request_from_steps_ahead(name)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "no_repeat_ngram_size", "stop_texts"])
def test_an_ignored_field_of_a_search_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if a field is listed as supported for beams but captured steps ignore it, the beams differ."""
    monkeypatch.setattr(ahead_fields, "SEARCH_FIELDS", SEARCH_FIELDS | {name})
    with pytest.raises(AssertionError):
        test_a_field_of_a_search_gives_the_beams_of_the_ordinary_path_or_keeps_the_request_from_steps_ahead(name)


@pytest.mark.parametrize("name", DEVICE_FILTERS)
def test_a_filter_that_is_lost_on_the_way_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if steps ahead leave out a filter, the tokens differ."""
    kept = tuple(filter_name for filter_name in DEVICE_FILTERS if filter_name != name)
    monkeypatch.setattr(captured_texts, "DEVICE_FILTERS", kept)
    with pytest.raises(AssertionError):
        test_a_field_gives_the_tokens_of_the_ordinary_path_or_keeps_the_request_from_steps_ahead(name)
