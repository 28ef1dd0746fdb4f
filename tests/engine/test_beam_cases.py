"""Beam search equals transformers' `generate` on 200 random cases, batched with greedy requests in one engine."""

from __future__ import annotations

import random

import pytest
import torch
import transformers

from server.engine.beams.beam_search import BeamSearch
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from tests.engine.harness import Pair, as_transformers_settings, generate, reference, run
from tests.parity.checkpoints import load, save

FAMILIES = ["gpt2", "llama", "t5", "bart", "marian", "mbart"]
NUM_CASES = 200
FIRST_ID = 3
"""Smallest token id that is not a special token in any of the families."""


def random_case(chance: random.Random, name: str, vocab: int = 97) -> tuple[list[int], dict]:
    """A random prompt with random beam search settings. Each logits processor is used in about half of the cases.

    name: name of the checkpoint. vocab: vocabulary size.
    """
    ids = range(FIRST_ID, vocab)
    prompt = chance.choices(ids, k=chance.randint(1, 20))
    beams = chance.randint(2, 8)
    limit = chance.choice([1, 2, 5, 8, 10, 12, 16])
    settings: dict = {
        "num_beams": beams,
        "num_return_sequences": chance.randint(1, beams),
        "max_new_tokens": limit,
        "length_penalty": chance.choice([-2.0, -0.7, 0.0, 0.6, 1.0, 1.8, 3.0, chance.uniform(-1.0, 2.0)]),
        "early_stopping": chance.choice([True, False, "never"]),
    }
    if chance.random() < 0.7:
        settings["end_token_ids"] = chance.sample(ids, k=chance.choice([1, 3, 9, 20]))
    if chance.random() < 0.4:
        settings["min_new_tokens"] = chance.randint(1, limit)
    if chance.random() < 0.4:
        settings["repetition_penalty"] = chance.choice([0.8, 1.2, 1.7])
    if chance.random() < 0.4:
        settings["no_repeat_ngram_size"] = chance.randint(1, 3)
    if chance.random() < 0.3:
        settings["encoder_no_repeat_ngram_size"] = chance.randint(1, 3)
    if chance.random() < 0.4:
        settings["bad_words_ids"] = [chance.choices(ids, k=chance.randint(1, 2)) for _ in range(12)]
    if chance.random() < 0.3:
        settings["suppress_token_ids"] = chance.sample(ids, k=5)
    if chance.random() < 0.3:
        settings["renormalize_logits"] = True
    if chance.random() < 0.3:
        settings["forced_eos_token_id"] = chance.choice(settings.get("end_token_ids") or [FIRST_ID])
    # With a decoder, transformers applies `forced_bos_token_id` to the first token of the prompt, not of the answer.
    if chance.random() < 0.4 and name not in ("gpt2", "llama"):
        settings["forced_bos_token_id"] = chance.choice(ids)
    # If a token is both forced and banned, no token is possible; `test_logits_processors` tests this case.
    forced = {settings.get("forced_bos_token_id"), settings.get("forced_eos_token_id")}
    settings["suppress_token_ids"] = [token for token in settings.get("suppress_token_ids", []) if token not in forced]
    return prompt, {name: value for name, value in settings.items() if value != []}


def random_cases(name: str, count: int) -> list[tuple[list[int], dict]]:
    chance = random.Random(f"beams of {name}")
    return [random_case(chance, name) for _ in range(count)]


def check(pair: Pair, cases: list[tuple[list[int], dict]]) -> list[int]:
    """Run cases in one batch. Returns the indices of the cases whose results differ from transformers.

    Greedy requests run in the same batch; their texts must be right too.
    """
    requests = [generate(pair, i, prompt, **settings) for i, (prompt, settings) in enumerate(cases)]
    plain = [generate(pair, 10_000 + i, prompt) for i, (prompt, _) in enumerate(cases[:6])]
    results = run(pair.engine(kv_cache_bytes=1 << 21), [*plain[:3], *requests, *plain[3:]], every=2)
    for i, (prompt, _) in enumerate(cases[:6]):
        assert results.texts(10_000 + i) == reference(pair, prompt, max_new_tokens=12)[0]
    wrong = []
    for i, (prompt, settings) in enumerate(cases):
        texts, scores = possible_hypotheses(
            *reference(pair, prompt, **as_transformers_settings(pair, prompt, settings)), settings
        )
        ours = [hypothesis.score for hypothesis in results.finished[i].hypotheses]
        if results.texts(i) != texts or ours != pytest.approx(scores, rel=1e-5, abs=2e-4):
            wrong.append(i)
    return wrong


def possible_hypotheses(texts, scores, settings) -> tuple[list[list[int]], list[float]]:
    """Remove impossible hypotheses from the results of the reference.

    transformers starts all beams but one with score -1e9, and returns them if there are too few other hypotheses.
    """
    power = settings.get("length_penalty", 1.0)
    real = [score * len(text) ** power > -1e8 for text, score in zip(texts, scores, strict=True)]
    assert real == sorted(real, reverse=True) and real[0]
    return texts[: sum(real)], scores[: sum(real)]


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(pairs, name):
    assert check(pairs(name), random_cases(name, -(-NUM_CASES // len(FAMILIES)))) == []


def test_the_cases_cover_all_settings():
    cases = [settings for name in FAMILIES for _, settings in random_cases(name, -(-NUM_CASES // len(FAMILIES)))]
    assert len(cases) >= NUM_CASES
    assert {settings["num_beams"] for settings in cases} == set(range(2, 9))
    assert {settings["early_stopping"] for settings in cases} == {True, False, "never"}
    assert min(s["length_penalty"] for s in cases) < 0 < max(s["length_penalty"] for s in cases)
    assert {len(settings.get("end_token_ids", [])) for settings in cases} == {0, 1, 3, 9, 20}
    often = ("min_new_tokens", "repetition_penalty", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id")
    assert all(sum(processor in settings for settings in cases) > 20 for processor in often)


@pytest.fixture(scope="module")
def small(tmp_path_factory, device) -> Pair:
    """A model with a vocabulary of 12 tokens, which is less than the number of candidates of 16 beams."""
    directory = tmp_path_factory.mktemp("small")
    config = transformers.LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, eos_token_id=2
    )
    oracle = save(directory, config, "LlamaForCausalLM").to(device)
    spec = ModelSpec("small", str(directory), "float32")
    return Pair("small", oracle, LoadedCheckpoint(spec, load(directory, device), torch.float32, device, 0.0))


@pytest.mark.parametrize("ends", [[2], [2, 4], list(range(2, 11))], ids=len)
@pytest.mark.parametrize("early", [True, False, "never"])
def test_more_candidates_than_tokens(small, early, ends):
    settings = {"num_beams": 16, "num_return_sequences": 16, "early_stopping": early, "end_token_ids": ends}
    settings["max_new_tokens"] = 10
    assert check(small, [([5], settings), ([3, 7, 7], {**settings, "length_penalty": -1.0})]) == []


def test_sixteen_beams(pairs):
    settings = {"num_beams": 16, "num_return_sequences": 16, "max_new_tokens": 12}
    cases = [([7, 8, 9], {**settings, "end_token_ids": ends}) for ends in ([2], [2, *range(20, 35)])]
    assert check(pairs("bart"), cases) == []


def test_stopping_too_early_is_noticed(pairs, monkeypatch):
    """Negative control: if early_stopping "never" is treated as False, results differ."""
    monkeypatch.setattr(BeamSearch, "_may_improve", _may_improve_at_the_current_length)
    assert check(pairs("bart"), random_cases("bart", 30)) != []


def test_a_length_that_is_wrong_by_one_is_noticed(pairs, monkeypatch):
    """Negative control: if the length penalty does not count the end token, results differ."""
    penalty = BeamSearch._penalty
    monkeypatch.setattr(BeamSearch, "_penalty", lambda self, length: penalty(self, max(length - 1, 1)))
    assert check(pairs("llama"), random_cases("llama", 10)) != []


def _may_improve_at_the_current_length(self) -> bool:
    if len(self.finished) < self.num_beams:
        return bool(self.running[0].score > -float("inf"))
    better = self.running[0].score / self._penalty(self.length) > self.finished[-1].score
    return self.early_stopping is not True and bool(better)
