"""Speculative decoding: drafted and accepted tokens, KV blocks, errors, and the distribution of samples."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from models.backends.logits import LogitsRequest
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.choosing import selection
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler
from tests.engine.harness import generate, reference, run
from tests.engine.simulation import Simulation
from tests.engine.speculative import accepting_all_drafts, counts, every_prediction, perturbed, speculating
from tests.engine.test_prefix_cache import run_random_interleaving
from tests.ipc.one_row import id_of
from tests.parity.checkpoints import random_ids

__all__ = ["every_prediction"]

PROMPTS = random_ids(97, [1, 5, 11, 30], seed=3)


@pytest.mark.parametrize("kind", ["n-grams", "itself", "perturbed", "another family"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_greedy_equals_transformers(pairs, name, kind):
    pair = pairs(name)
    other = pairs({"gpt2": "llama", "llama": "gpt2"}[name]).loaded
    draft = {"itself": pair.loaded, "perturbed": perturbed(pair.loaded), "another family": other}.get(kind)
    one = speculating(pair, draft)
    prompts = [*PROMPTS, PROMPTS[1] * 5]
    results = run(one, [generate(pair, i, prompt, max_new_tokens=40) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        (text,), _ = reference(pair, prompt, max_new_tokens=40)
        assert results.texts(i) == [text] and results.tokens[i] == text
    drafted, accepted = counts(one)
    assert drafted > 0 and (accepted > 0 or kind == "another family")
    assert (one.models[name].generation.drafter.pool is None) == (draft is None)


def test_logprobs_and_events_equal_those_of_plain_decoding(pairs):
    pair = pairs("llama")
    settings = {"logprobs": True, "top_logprobs": 2, "max_new_tokens": 30, "prompt_logprobs": True}
    requests = [generate(pair, i, prompt, **settings) for i, prompt in enumerate([PROMPTS[1] * 3, PROMPTS[2]])]
    plain, guessed = run(pair.engine(), requests), run(speculating(pair, perturbed(pair.loaded)), requests)
    for i in range(2):
        ours, theirs = guessed.finished[i].hypotheses[0], plain.finished[i].hypotheses[0]
        assert [entry.token_id for entry in ours.logprobs] == ours.token_ids == theirs.token_ids
        assert [e.logprob for e in ours.logprobs] == pytest.approx([e.logprob for e in theirs.logprobs], abs=1e-4)
        assert [[t for t, _ in e.top] for e in ours.logprobs] == [[t for t, _ in e.top] for e in theirs.logprobs]
        assert [e.logprob for e in guessed.prompts[i]] == pytest.approx([e.logprob for e in plain.prompts[i]], abs=1e-4)
        told = [entry for event in guessed.token_events[i] for entry in event.logprobs]
        assert told == list(ours.logprobs) and any(len(event.token_ids) > 1 for event in guessed.token_events[i])


@pytest.mark.parametrize(
    "settings",
    [
        {"end_token_ids": list(range(0, 97, 9))},
        {"end_token_ids": [], "max_new_tokens": 2},
        {"min_new_tokens": 10, "end_token_ids": list(range(2, 50))},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4},
        {"forced_eos_token_id": 2, "max_new_tokens": 9},
        {"bad_words_ids": [[i, j] for i in range(30) for j in range(30)]},
        {"do_sample": True, "seed": 4, "temperature": 0.7, "top_p": 0.8},
    ],
)
def test_settings_apply_to_every_draft_token(pairs, settings):
    pair = pairs("gpt2")
    requests = [
        generate(pair, i, prompt * 4, **{"max_new_tokens": 24, **settings}) for i, prompt in enumerate(PROMPTS[:3])
    ]
    plain = run(pair.engine(), requests)
    for draft in (None, perturbed(pair.loaded)):
        results = run(speculating(pair, draft), requests)
        for i in range(len(requests)):
            assert results.finished[i].hypotheses == plain.finished[i].hypotheses


def requests_with_known_distribution(pairs) -> tuple:
    pair = pairs("gpt2")
    few = {"allowed_token_ids": [5, 6, 7, 8], "do_sample": True, "max_new_tokens": 3, "end_token_ids": []}
    requests = [generate(pair, i, [5, 6, 7, 5, 6], seed=7000 + i, temperature=3.0, **few) for i in range(3000)]
    prompt = torch.tensor([5, 6, 7, 5, 6])
    expected = {}
    with torch.inference_mode():
        for first in few["allowed_token_ids"]:
            for second in few["allowed_token_ids"]:
                text = torch.cat([prompt, torch.tensor([first, second])])[None]
                logits = pair.oracle(text.to(pair.loaded.device)).logits[0, 4:6, few["allowed_token_ids"]].cpu()
                shares = (logits.double() / 3.0).softmax(-1)
                expected[first, second] = float(shares[0, first - 5] * shares[1, second - 5])
    return pair, requests, expected


def chi_square(results, expected: dict, count: int) -> float:
    seen = Counter(tuple(results.texts(i)[0][:2]) for i in range(count))
    return sum((seen[pair] - share * count) ** 2 / (share * count) for pair, share in expected.items())


@pytest.mark.parametrize("kind", ["n-grams", "another family"])
def test_samples_keep_their_distribution(pairs, kind):
    """Sampled tokens have the right distribution with drafts: a chi-square test of two tokens for 3,000 seeds.

    37.7 is the 99.9th percentile for 15 degrees of freedom.
    """
    pair, requests, expected = requests_with_known_distribution(pairs)
    one = speculating(pair, pairs("llama").loaded if kind == "another family" else None)
    results = run(one, requests)
    assert chi_square(results, expected, len(requests)) < 37.7
    assert 100 < counts(one)[1] < counts(one)[0] - 100, "nearly all drafts are accepted, or nearly none"
    assert [results.texts(i) for i in range(200)] == [run(pair.engine(), [r]).texts(id_of(r)) for r in requests[:200]]


def test_accepting_every_draft_changes_the_distribution(pairs, monkeypatch):
    """Negative control: if every draft token is accepted, the chi-square test fails."""
    pair, requests, expected = requests_with_known_distribution(pairs)
    monkeypatch.setattr(selection, "choose", accepting_all_drafts(selection.choose))
    results = run(speculating(pair), requests)
    assert chi_square(results, expected, len(requests)) > 37.7


def test_drafts_are_verified_by_the_program_of_the_model(pairs, monkeypatch):
    pair = pairs("llama")
    one = speculating(pair, speculative_tokens=15)
    request = generate(pair, 0, PROMPTS[1] * 4, max_new_tokens=60, end_token_ids=[], allowed_token_ids=[7])
    expected = run(one, [request]).texts(0)

    def eager(*_):
        raise AssertionError("a layer runs eagerly")

    if pair.loaded.device.type == "cpu":
        monkeypatch.setattr(type(pair.loaded.model.transformer.decoder), "run_layers", eager)
    results = run(one, [request])
    assert not results.failed and results.texts(0) == expected and counts(one)[1] > 80


class ConstantDrafter:
    """A drafter that always drafts `length` times the same token."""

    pool = None
    costs = None

    def __init__(self, length: int) -> None:
        self.length = length

    def propose(self, requests, num_rows: int) -> None:
        for request in requests:
            request.sequences[0].draft = [3] * min(self.length, request.max_new_tokens - request.num_generated - 1)

    def forget(self, request) -> None:
        pass


@pytest.mark.parametrize("blocks", [12, 13, 200])
def test_rejected_drafts_free_their_blocks(pairs, blocks):
    pair = pairs("gpt2")
    one = pair.engine()
    generation = one.models["gpt2"].generation
    generation.drafter = ConstantDrafter(13)
    scheduler: Scheduler = generation.scheduler
    scheduler.blocks.self_pool = type(scheduler.blocks.self_pool)(blocks, 4)
    requests = [generate(pair, i, PROMPTS[2], max_new_tokens=30) for i in range(3)]
    for request in requests:
        one.add(request)
    texts = []
    while one.has_work:
        output = one.step()
        texts += output.finished if output is not None else []
        pool = scheduler.blocks.self_pool
        assert pool.free_blocks + pool.used_blocks == blocks
        assert pool.used_blocks == len({block for r in scheduler.running for block in r.sequences[0].block_table})
        for request in scheduler.running:
            if request.num_generated:
                assert len(request.sequences[0].block_table) == pool.blocks_for(
                    request.sequences[0].num_computed_tokens
                )
            assert not request.sequences[0].draft
    (expected,), _ = reference(pair, PROMPTS[2], max_new_tokens=30)
    assert [end.hypotheses[0].token_ids for end in texts] == [expected] * 3
    assert scheduler.blocks.self_pool.used_blocks == 0


def test_drafts_respect_the_token_limit_of_a_step(pairs):
    one = pairs("gpt2").engine(max_batch_tokens=10)
    generation = one.models["gpt2"].generation
    generation.drafter = ConstantDrafter(8)
    widths: list[int] = []
    honest = generation.runner.run

    def watched(schedule: Schedule, logits: LogitsRequest | None):
        widths.append(schedule.num_tokens)
        return honest(schedule, logits)

    generation.runner.run = watched
    run(one, [generate(pairs("gpt2"), i, PROMPTS[1], max_new_tokens=20) for i in range(4)])
    assert max(widths) == 10


def test_a_draft_with_non_finite_values_changes_nothing(pairs, monkeypatch):
    """If only a draft token has NaN values, the step is repeated without drafts, and the text is unchanged."""
    pair = pairs("gpt2")
    plain = run(
        pair.engine(), [generate(pair, i, PROMPTS[2], max_new_tokens=20, suppress_token_ids=[66]) for i in range(3)]
    )
    transformer = pair.loaded.model.transformer
    embedding = transformer.decoder.embedding
    forward = type(embedding).forward

    def poisoned(self, token_ids, *rest):
        hidden = forward(self, token_ids, *rest).clone()
        hidden[token_ids == 66] = torch.nan
        return hidden

    monkeypatch.setattr(type(embedding), "forward", poisoned)

    class PoisonedDrafter(ConstantDrafter):
        def propose(self, requests, num_rows: int) -> None:
            for request in requests:
                if request.sequence_id == 1 and request.num_generated == 4:
                    request.sequences[0].draft = [66, 5, 66]

    one = pair.engine()
    generation = one.models["gpt2"].generation
    generation.drafter = PoisonedDrafter(3)
    requests = [generate(pair, i, PROMPTS[2], max_new_tokens=20, suppress_token_ids=[66]) for i in range(3)]
    # Programs from earlier tests contain the original embedding. New programs start after the replaced embedding.
    monkeypatch.setattr(transformer._executors[transformer.decoder], "_programs", {})
    results = run(one, requests)
    assert not results.failed and [results.texts(i) for i in range(3)] == [plain.texts(i) for i in range(3)]
    assert generation.scheduler.num_preemptions == 1
    cache = generation.runner.self_cache
    generation.runner.clear(*generation.scheduler.blocks.take_blocks_to_clear())
    assert all(torch.isfinite(tensor).all() for tensor in cache.tensors)


def test_a_failing_drafter_stops_drafting(pairs, caplog):
    pair = pairs("gpt2")
    one = speculating(pair, perturbed(pair.loaded))
    drafter = one.models["gpt2"].generation.drafter

    def broken(schedule):
        raise torch.OutOfMemoryError("no room")

    drafter.runner.run = broken
    results = run(one, [generate(pair, i, prompt, max_new_tokens=20) for i, prompt in enumerate(PROMPTS)])
    assert [results.texts(i) for i in range(4)] == [reference(pair, prompt, max_new_tokens=20)[0] for prompt in PROMPTS]
    assert "continue without drafts" in caplog.text and drafter.pool.used_blocks == 0


def test_a_draft_model_with_non_finite_logits_stops_drafting(pairs):
    pair = pairs("gpt2")
    draft = perturbed(pair.loaded)
    draft.model.transformer.decoder.layers[0].attention_norms.input.weight.data.fill_(torch.nan)
    one = speculating(pair, draft)
    results = run(one, [generate(pair, i, prompt, max_new_tokens=20) for i, prompt in enumerate(PROMPTS)])
    assert [results.texts(i) for i in range(4)] == [reference(pair, prompt, max_new_tokens=20)[0] for prompt in PROMPTS]
    assert counts(one) == (0, 0)
    cache = one.models["gpt2"].generation.drafter.runner.self_cache
    assert all(torch.isfinite(tensor).all() for tensor in cache.tensors)


def test_a_full_draft_pool_leaves_requests_without_drafts(pairs):
    pair = pairs("gpt2")
    one = speculating(pair, pair.loaded)
    drafter = one.models["gpt2"].generation.drafter
    drafter.pool = type(drafter.pool)(6, 4)
    requests = [generate(pair, i, PROMPTS[2], max_new_tokens=20, end_token_ids=[]) for i in range(6)]
    results = run(one, requests)
    assert len({tuple(results.texts(i)[0]) for i in range(6)}) == 1
    assert 0 < counts(one)[0] < 6 * 15


def test_beam_search_gets_no_drafts(pairs):
    pair = pairs("gpt2")
    one = speculating(pair)
    run(one, [generate(pair, i, PROMPTS[1] * 4, num_beams=2, max_new_tokens=30) for i in range(3)])
    assert counts(one) == (0, 0)


def test_stats_count_drafts_by_model(pairs):
    pair = pairs("gpt2")
    one = speculating(pair, pair.loaded)
    one.add(generate(pair, 0, PROMPTS[1], max_new_tokens=21, end_token_ids=[]))
    one.step(), one.step()
    assert one.stats().kv_blocks_used["draft"] > 0
    while one.has_work:
        one.step()
    stats = one.stats()
    assert stats.kv_blocks_used["draft"] == 0
    assert counts(one) == (16, 16) and stats.drafts == {"gpt2": (12, 12)}
    assert one.stats().drafts == {"gpt2": (0, 0)}


def plant_rejected_drafts_count_as_computed(monkeypatch):
    honest = Scheduler.append

    def append_and_count_rejected(self, request, tokens):
        wrong = len(request.sequences[0].draft) - len(tokens) + 1
        honest(self, request, tokens)
        request.sequences[0].num_computed_tokens += min(wrong, 1)

    monkeypatch.setattr(Scheduler, "append", append_and_count_rejected)


def plant_unverified_blocks_are_not_cleared(monkeypatch):
    honest = BlockTables._release_sequences
    monkeypatch.setattr(BlockTables, "_release_sequences", lambda self, request, suspect: honest(self, request, False))


def plant_rejected_drafts_keep_their_blocks(monkeypatch):
    honest = BlockManager.release
    monkeypatch.setattr(BlockManager, "release", lambda self, blocks: honest(self, blocks) if len(blocks) > 1 else [])


@pytest.mark.parametrize(
    "bug",
    [
        plant_rejected_drafts_count_as_computed,
        plant_unverified_blocks_are_not_cleared,
        plant_rejected_drafts_keep_their_blocks,
    ],
)
def test_planted_bugs_are_noticed(bug, monkeypatch):
    """Negative control: random interleavings detect each planted bug of speculative decoding."""
    bug(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        for seed in range(8):
            run_random_interleaving(Simulation(random.Random(seed), cross=False, prefix=True, drafts=True))
