"""Each logits processor equals its counterpart in transformers, alone and in a batch with different settings.

transformers has no presence and frequency penalties; they are compared with the formula of the OpenAI API reference.
"""

from __future__ import annotations

import random

import pytest
import torch
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from server.engine.choosing.logits_processors import ProcessorRow, is_needed, process
from server.engine.sequences.token_tables import TokenTables
from server.ipc.wire.params import GenerationParams

VOCAB = 40
ENDS, STOPS = [1, 2], [3]
SOURCE = [3, 6, 7, 7, 8, 9, 3, 6, 9, 30, 8, 7, 3, 3, 6, 8]


def openai_penalties(params: GenerationParams, generated: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Apply the penalties of the OpenAI API reference, token by token.

    Formula: mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence.
    """
    changed = logits.clone()
    for j in range(VOCAB):
        c = generated.count(j)
        changed[j] = logits[j] - c * params.frequency_penalty - float(c > 0) * params.presence_penalty
    return changed


def oracle(row: ProcessorRow, logits: torch.Tensor) -> torch.Tensor:
    params, prompt = row.params, len(row.tokens) - row.num_generated
    ends = [*params.end_token_ids, *params.stop_token_ids]
    ids = torch.tensor([row.tokens])
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias.items()}))
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    logits = openai_penalties(params, row.tokens[prompt:], processors(ids, logits[None].clone())[0])
    processors = LogitsProcessorList()
    if params.allowed_token_ids:
        processors.append(PrefixConstrainedLogitsProcessor(lambda batch, ids: params.allowed_token_ids, 1))
    if params.encoder_no_repeat_ngram_size:
        processors.append(
            EncoderNoRepeatNGramLogitsProcessor(params.encoder_no_repeat_ngram_size, torch.tensor([SOURCE]))
        )
    if params.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.bad_words_ids:
        processors.append(NoBadWordsLogitsProcessor(params.bad_words_ids, params.end_token_ids))
    if params.min_new_tokens and ends:
        processors.append(MinNewTokensLengthLogitsProcessor(prompt, params.min_new_tokens, ends))
    if params.forced_bos_token_id is not None and prompt == 1:
        processors.append(ForcedBOSTokenLogitsProcessor(params.forced_bos_token_id))
    if params.forced_eos_token_id is not None:
        last = prompt + row.max_new_tokens
        processors.append(ForcedEOSTokenLogitsProcessor(last, params.forced_eos_token_id))
    if params.suppress_token_ids:
        processors.append(SuppressTokensLogitsProcessor(params.suppress_token_ids))
    return processors(ids, logits[None])[0]


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
    "presence": {"presence_penalty": 1.5},
    "presence below zero": {"presence_penalty": -2.0},
    "frequency": {"frequency_penalty": 0.7},
    "presence and frequency": {"presence_penalty": -0.5, "frequency_penalty": 2.0},
    "bias": {"logit_bias": {0: -100.0, 7: 100.0, 8: 0.25, 39: -1.5}},
    "allowed": {"allowed_token_ids": [3, 8, 39, 3]},
    "allowed but forced": {"allowed_token_ids": [3, 8], "forced_eos_token_id": 2},
    "source unigrams": {"encoder_no_repeat_ngram_size": 1},
    "source bigrams": {"encoder_no_repeat_ngram_size": 2},
    "source trigrams": {"encoder_no_repeat_ngram_size": 3},
    "n-grams longer than the source": {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 17},
    "everything": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.3,
        "logit_bias": {3: 1.0, 20: 50.0, 4: -3.0},
        "allowed_token_ids": list(range(1, 30)),
        "no_repeat_ngram_size": 2,
        "encoder_no_repeat_ngram_size": 3,
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
    """Rows with the same settings and random texts of many lengths, in which n-grams repeat."""
    chooser = random.Random(seed)
    params = GenerationParams(**settings)
    rows = []
    for generated in range(8):
        for prompt in (1, 40):
            tokens = [chooser.choice([3, 6, 7, 8, 9]) for _ in range(prompt + generated)]
            if settings.get("forced_bos_token_id") is None or prompt == 1:
                rows.append(ProcessorRow(params, 8, tokens, generated, TokenTables.of(params, SOURCE)))
    return rows


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_transformers(name):
    rows = rows_of(SETTINGS[name], seed=1)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([oracle(row, logits[i]) for i, row in enumerate(rows)])
    changed = not torch.equal(expected, logits)
    assert changed == is_needed(rows[0].params), "the processor changes no logit in this case"
    process(logits, rows)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=0)


def test_rows_with_different_settings_share_a_batch():
    rows = [row for name in SETTINGS for row in rows_of(SETTINGS[name], seed=2)]
    random.Random(3).shuffle(rows)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(2))
    expected = torch.stack([oracle(row, logits[i]) for i, row in enumerate(rows)])
    process(logits, rows)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=0)


def test_tokens_without_a_logit_are_ignored():
    beyond = VOCAB + 5
    params = GenerationParams(
        repetition_penalty=2.0,
        presence_penalty=1.0,
        no_repeat_ngram_size=1,
        encoder_no_repeat_ngram_size=1,
        logit_bias={beyond: 5.0},
    )
    row = ProcessorRow(params, 8, [3, beyond], 1, TokenTables.of(params, [beyond]))
    logits = torch.ones(1, VOCAB)
    process(logits, [row])
    assert logits[0, 3] == -torch.inf and (logits[0, 4:] == 1).all()


def test_the_prompt_does_not_count_for_presence_and_frequency():
    params = GenerationParams(presence_penalty=1.0, frequency_penalty=1.0)
    tables = TokenTables.of(params, [])
    logits = torch.zeros(2, VOCAB)
    process(
        logits, [ProcessorRow(params, 8, [3, 3, 4], 0, tables), ProcessorRow(params, 8, [3, 3, 4, 4, 4, 5], 3, tables)]
    )
    assert not logits[0].any()
    assert logits[1].nonzero()[:, 0].tolist() == [4, 5] and logits[1, [4, 5]].tolist() == [-3.0, -2.0]


def test_rows_without_settings_are_not_changed(monkeypatch):
    params = GenerationParams()
    row = ProcessorRow(params, 8, [3, 3], 1, TokenTables.of(params, SOURCE))
    monkeypatch.setattr("server.engine.choosing.logits_processors.torch", None)
    process(torch.zeros(1, VOCAB), [row])
