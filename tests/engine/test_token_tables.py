"""Settings that only ban and force tokens do not depend on the text, so all rows of a group can share one object."""

from __future__ import annotations

import pytest
import torch

from server.engine.choosing.logits_processors import ProcessorRow, process
from server.engine.sequences.token_tables import TokenTables
from server.ipc.wire.params import GenerationParams, TimestampRules
from server.ipc.wire.sections import AnswerSection

VOCAB = 60
ONLY_BAN = {
    "bad words": {"bad_words_ids": [[5], [2], [7]], "end_token_ids": [2]},
    "suppressed": {"suppress_token_ids": [3, 4, 70], "begin_suppress_token_ids": [9]},
    "minimum": {"min_new_tokens": 3, "end_token_ids": [2], "stop_token_ids": [8]},
    "forced": {"forced_bos_token_id": 11, "forced_eos_token_id": 2, "suppress_token_ids": [11], "bad_words_ids": [[2]]},
}
READ_TEXT = {
    "phrases": {"bad_words_ids": [[5], [6, 7]]},
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.5},
    "bigrams": {"no_repeat_ngram_size": 2},
    "source": {"encoder_no_repeat_ngram_size": 2},
    "allowed": {"allowed_token_ids": [3, 4]},
    "bias": {"logit_bias": {3: 1.0}},
    "times": {"timestamps": TimestampRules(first_id=40)},
    "grammar": {"sections": [AnswerSection()]},
}


@pytest.mark.parametrize("name", ONLY_BAN)
@pytest.mark.parametrize("num_generated", [0, 2, 7])
def test_rows_that_are_one_object_equal_separate_rows(name: str, num_generated: int) -> None:
    params = GenerationParams(**ONLY_BAN[name])
    tables = TokenTables.of(params, [])
    assert tables.only_ban and tables.change_logits
    texts = [[1, *range(5, 5 + num_generated)], [1, *range(9, 9 + num_generated)]]
    separate = [ProcessorRow(params, 8, text, num_generated, tables) for text in texts]
    given = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    expected, found = given.clone(), given.clone()
    process(expected, separate)
    process(found, [ProcessorRow(params, 8, (), num_generated, tables)] * 2)
    assert torch.equal(found, expected)
    assert torch.equal(found[0], given[0]) == (name == "minimum" and num_generated == 7)
    assert torch.equal(found[0].isinf(), found[1].isinf())


@pytest.mark.parametrize("name", READ_TEXT)
def test_settings_that_need_more_than_bans(name: str) -> None:
    tables = TokenTables.of(GenerationParams(**READ_TEXT[name]), [])
    assert tables.change_logits and not tables.only_ban


def test_no_settings_change_nothing() -> None:
    tables = TokenTables.of(GenerationParams(renormalize_logits=True), [])
    assert not tables.change_logits and tables.banned == []
