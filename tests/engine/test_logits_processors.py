"""Each processor equals its counterpart in transformers, alone and with all the others in one mixed batch."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.generation.logits_process import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from server.engine.logits_processors import ProcessorRow, is_needed, process
from server.ipc.messages import GenerationParams

VOCAB = 40
ENDS, STOPS = [1, 2], [3]


def oracle(row: ProcessorRow, logits: torch.Tensor) -> torch.Tensor:
    params, prompt = row.params, len(row.tokens) - row.num_generated
    ends = [*params.end_token_ids, *params.stop_token_ids]
    processors = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.bad_words_ids:
        processors.append(NoBadWordsLogitsProcessor(params.bad_words_ids, params.end_token_ids))
    if params.min_new_tokens and ends:
        processors.append(MinNewTokensLengthLogitsProcessor(prompt, params.min_new_tokens, ends))
    if params.forced_bos_token_id is not None and prompt == 1:
        processors.append(ForcedBOSTokenLogitsProcessor(params.forced_bos_token_id))
    if params.forced_eos_token_id is not None:
        last = prompt + params.max_new_tokens
        processors.append(ForcedEOSTokenLogitsProcessor(last, params.forced_eos_token_id))
    if params.suppress_token_ids:
        processors.append(SuppressTokensLogitsProcessor(params.suppress_token_ids))
    return processors(torch.tensor([row.tokens]), logits[None].clone())[0]


SETTINGS = {
    "none": {},
    "repetition": {"repetition_penalty": 1.7},
    "repetition below one": {"repetition_penalty": 0.6},
    "unigrams": {"no_repeat_ngram_size": 1},
    "bigrams": {"no_repeat_ngram_size": 2},
    "trigrams": {"no_repeat_ngram_size": 3},
    "bad words": {"bad_words_ids": [[5], [6, 7], [8, 9, 10], [1], [3, 3]], "end_token_ids": ENDS},
    "min new tokens": {"min_new_tokens": 4, "end_token_ids": ENDS, "stop_token_ids": STOPS},
    "suppress": {"suppress_token_ids": [0, 11, 12, 39]},
    "forced bos": {"forced_bos_token_id": 9, "min_new_tokens": 1, "end_token_ids": ENDS},
    "forced eos": {"forced_eos_token_id": 2},
    "forced and suppressed": {"forced_eos_token_id": 2, "suppress_token_ids": [2, 5]},
    "everything": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[5], [6, 7]],
        "min_new_tokens": 3,
        "suppress_token_ids": [20],
        "forced_bos_token_id": 4,
        "forced_eos_token_id": 2,
        "end_token_ids": ENDS,
        "stop_token_ids": STOPS,
    },
}


def rows_of(settings: dict, seed: int) -> list[ProcessorRow]:
    """The same settings at many points of a text, from its first token to its last; few tokens, so much repeats."""
    chooser = random.Random(seed)
    params = GenerationParams(max_new_tokens=8, **settings)
    rows = []
    for generated in range(8):
        for prompt in (1, 40):
            tokens = [chooser.choice([3, 6, 7, 8, 9]) for _ in range(prompt + generated)]
            if settings.get("forced_bos_token_id") is None or prompt == 1:
                rows.append(ProcessorRow(params, tokens, generated))
    return rows


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_transformers(name):
    rows = rows_of(SETTINGS[name], seed=1)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([oracle(row, logits[i]) for i, row in enumerate(rows)])
    changed = not torch.equal(expected, logits)
    assert changed == is_needed(rows[0].params), "the case does not exercise its processor"
    process(logits, rows)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=0)


def test_rows_with_different_settings_share_a_batch():
    rows = [row for name in SETTINGS for row in rows_of(SETTINGS[name], seed=2)]
    random.Random(3).shuffle(rows)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(2))
    expected = torch.stack([oracle(row, logits[i]) for i, row in enumerate(rows)])
    process(logits, rows)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=0)


def test_tokens_beyond_the_logits_are_left_alone():
    row = ProcessorRow(GenerationParams(8, repetition_penalty=2.0, no_repeat_ngram_size=1), [3, VOCAB + 5], 1)
    logits = torch.ones(1, VOCAB)
    process(logits, [row])
    assert logits[0, 3] == -torch.inf and (logits[0, 4:] == 1).all()
