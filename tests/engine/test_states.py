"""Models with recurrent mixers in the engine: exact answers with prefix cache, preemption and speculative decoding.

With the compiled kernels, log-probabilities are compared bit for bit. With torch, their last bits depend on the number
of rows.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import cache

import msgspec
import pytest
import torch

from models.backends import choice
from models.config import CHUNK_TOKENS
from models.steps.state_memory import StateMemory
from server.engine.cache.state_tables import REWRITTEN_TOKENS
from server.engine.loading.kv_memory import AGENT_SLOTS
from server.engine.loading.load import LoadError
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.speculation import find_drafts
from server.ipc.wire.descriptions import ModelSpec, Speculation, state_slots
from tests.engine.harness import Pair, Results, generate, reference, run
from tests.engine.speculative import counts, speculating
from tests.ipc.one_row import id_of
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.hybrid_cases import HYBRIDS, remember

NAMES = [
    "qwen3_5",
    *(pytest.param(name, marks=pytest.mark.rare_family) for name in ("lfm2", "granitemoehybrid", "mamba2")),
]
LENGTHS = [1, 63, 64, 65, 127, 128, 150, 200, 10, 90]
TEXTS = random_ids(97, LENGTHS, seed=5)
SETTINGS = [
    {"logprobs": True, "top_logprobs": 2},
    {"do_sample": True, "seed": 3, "logprobs": True},
    {"num_beams": 3, "num_return_sequences": 3, "logprobs": True},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 9, "prompt_logprobs": True},
]


@cache
def pair_of(name: str, directory, device: torch.device) -> Pair:
    architecture, config = HYBRIDS[name]
    oracle = save(directory, config, architecture, change=remember).to(device)
    spec = ModelSpec(name, str(directory), "float32")
    return Pair(name, oracle, LoadedCheckpoint(spec, load(directory, device), torch.float32, device, 0.0))


@pytest.fixture(scope="session")
def checkpoint_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("hybrids")


@pytest.fixture(params=NAMES)
def pair(request, checkpoint_directory, device):
    return pair_of(request.param, checkpoint_directory / request.param, device)


@pytest.fixture
def one_pair(checkpoint_directory, device):
    return pair_of("qwen3_5", checkpoint_directory / "qwen3_5", device)


def requests(pair: Pair) -> list:
    """Greedy, sampled and other requests. Their prompts end shortly before and after the boundary of a state chunk.

    The last two prompts repeat a text, so that n-gram drafts are found.
    """
    prompts = [*TEXTS, TEXTS[8] * 12, TEXTS[9] * 2]
    return [
        generate(pair, number, prompt, max_new_tokens=10 + number, **SETTINGS[number % 4])
        for number, prompt in enumerate(prompts)
    ]


def answers(results) -> dict:
    """The texts of all answers, with the compiled kernels also their scores and log-probabilities."""
    assert not results.failed
    if not choice.kernels_are_built or os.environ.get("TRIPTYCH_TEST_DEVICE", "cpu") != "cpu":
        return {number: results.texts(number) for number in results.finished}
    found = {number: end.hypotheses for number, end in results.finished.items()}
    return {number: (hypotheses, results.prompts.get(number)) for number, hypotheses in found.items()}


@cache
def alone(pair: Pair) -> dict:
    """The answers when each request runs alone, without the prefix cache."""
    found = {}
    for request in requests(pair):
        found |= answers(run(pair.engine(prefix_cache=False), [request]))
    return found


def tables(engine):
    (model,) = engine.models.values()
    return model.generation.scheduler.blocks


def test_greedy_and_beams_equal_transformers(pair):
    one = pair.engine()
    prompts = [TEXTS[number] for number in (0, 2, 3, 6, 8)]
    greedy = run(one, [generate(pair, number, prompt, max_new_tokens=30) for number, prompt in enumerate(prompts)])
    beams = run(one, [generate(pair, number, prompt, num_beams=4) for number, prompt in enumerate(prompts)])
    for number, prompt in enumerate(prompts):
        assert greedy.texts(number) == reference(pair, prompt, max_new_tokens=30)[0]
        texts, scores = reference(pair, prompt, num_beams=4, max_new_tokens=12)
        assert beams.texts(number) == texts
        assert beams.finished[number].hypotheses[0].score == pytest.approx(scores[0], abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"max_batch_tokens": 5}, {"max_batch_tokens": 100, "block_size": 48}])
def test_a_mixed_batch_gives_the_bits_of_each_request_alone(pair, options):
    every = 2 if options else 0
    assert answers(run(pair.engine(**options), requests(pair), every=every)) == alone(pair)


@pytest.mark.parametrize("options", [{}, {"prefix_cache": False, "max_batch_tokens": 100}])
def test_preempted_requests_get_the_same_bits(pair, options):
    one, found = pair.engine(**options), Results()
    scheduler = one.models[pair.name].generation.scheduler
    for request in requests(pair):
        one.add(request)
    while one.has_work:
        found.take(one.step())
        found.steps += 1
        if found.steps % 5 == 0 and len(scheduler.running) > 1:
            scheduler._preempt(scheduler.running[found.steps % len(scheduler.running)])
    assert answers(found) == alone(pair)
    assert scheduler.num_preemptions > 2 and not any(pool.used_blocks for pool in scheduler.blocks.pools.values())


def test_few_slots_are_enough(one_pair):
    one = one_pair.engine()
    tables(one).state_pool = type(tables(one).state_pool)(state_slots(3), 1)
    assert answers(run(one, requests(one_pair))) == alone(one_pair)


def test_prefix_cache_hits_give_the_same_bits(pair):
    one = pair.engine()
    results = [run(one, requests(pair), every=3) for _ in range(3)]
    assert all(answers(each) == alone(pair) for each in results)
    for request in requests(pair):
        number, length = id_of(request), len(request.prompts[0])
        expected = 0 if request.rows[0].prompt_logprobs else (length - 1) // CHUNK_TOKENS * CHUNK_TOKENS
        assert results[2].finished[number].cached_tokens == expected


def test_a_prompt_that_leaves_the_text_of_another_one_leaves_a_snapshot(one_pair):
    one, text = one_pair.engine(), TEXTS[7]
    prompts = [text[:170], text[:170], text[:100] + TEXTS[5][:60], text[:90] + TEXTS[6][:70], text]
    cached = []
    for number, prompt in enumerate(prompts):
        message = generate(one_pair, number, prompt, logprobs=True)
        found = run(one, [message])
        assert answers(found) == answers(run(one_pair.engine(prefix_cache=False), [message]))
        cached.append(found.finished[number].cached_tokens)
    assert cached == [0, 128, 0, 64, 128]


@pytest.mark.parametrize("length, replaced, cached", [(150, 22, 128), (150, 23, 64), (159, 32, 64), (160, 32, 128)])
def test_the_next_turn_may_replace_the_end_of_a_prompt(one_pair, length, replaced, cached):
    """The next turn of a conversation finds cached states although the last tokens of the prompt have changed.

    A chat template may write the beginning of an answer differently in the next turn.

    length: prompt tokens of the first turn. replaced: how many of its last tokens change. cached: tokens found.
    """
    one, text = one_pair.engine(), TEXTS[7]
    run(one, [generate(one_pair, 0, text[:length], max_new_tokens=2)])
    message = generate(one_pair, 1, text[: length - replaced] + TEXTS[6][:100], logprobs=True)
    found = run(one, [message])
    assert found.finished[1].cached_tokens == cached
    assert answers(found) == answers(run(one_pair.engine(prefix_cache=False), [message]))


def test_requests_that_arrive_together_share_the_state_of_their_beginning(one_pair):
    one, text = one_pair.engine(max_batch_tokens=64), TEXTS[7][:140]
    messages = [generate(one_pair, number, [*text, *TEXTS[number]], logprobs=True) for number in (0, 1, 8)]
    found = run(one, messages)
    assert answers(found) == answers(run(one_pair.engine(prefix_cache=False), messages))
    assert [found.finished[number].cached_tokens for number in (0, 1, 8)] == [0, 128, 128]


def test_the_answer_of_an_earlier_turn_is_computed_as_part_of_the_prompt(one_pair):
    one = one_pair.engine()
    first = run(one, [generate(one_pair, 0, TEXTS[4], max_new_tokens=80, end_token_ids=[])])
    text = [*TEXTS[4], *first.texts(0)[0], 5, 6]
    message = generate(one_pair, 1, text, logprobs=True)
    again = run(one, [message])
    assert again.finished[1].cached_tokens == 64
    assert answers(again) == answers(run(one_pair.engine(prefix_cache=False), [message]))
    assert run(one, [message]).finished[1].cached_tokens == 192


def test_snapshots_give_way_and_are_charged_to_the_budget(one_pair):
    """The least recently used state snapshots are dropped first. The size of their pool follows from the settings."""
    one = one_pair.engine(max_batch_rows=4)
    pool = tables(one).state_pool
    assert pool.num_blocks == 2 * 4
    texts = [random_ids(97, [80], seed=number)[0] for number in range(12)]
    for number, text in enumerate(texts):
        run(one, [generate(one_pair, number, text, max_new_tokens=2)])
    cached = []
    for number in (11, 10, 9, 0):
        found = run(one, [generate(one_pair, number, texts[number], max_new_tokens=2)])
        cached.append(found.finished[number].cached_tokens)
    assert cached == [64, 64, 64, 0]
    stats = one.stats()
    assert stats.kv_blocks_total["state"] == 8 and stats.kv_blocks_used["state"] == 0


def test_a_conversation_survives_short_requests_between_its_turns(one_pair):
    """Each turn of a conversation finds its cached state, even with two other requests after each turn.

    The state pool has the smallest size that the default memory can give.
    """
    one, rng, text = one_pair.engine(block_size=32), random.Random(4), TEXTS[7][:150]
    tables(one).state_pool = type(tables(one).state_pool)(AGENT_SLOTS, 1)
    others = iter(random_ids(97, [100 + 7 * number for number in range(20)], seed=9))
    equal = 0
    for number in range(5):
        found = run(one, [generate(one_pair, number, text, max_new_tokens=2)])
        assert found.finished[number].cached_tokens > equal - CHUNK_TOKENS
        equal = len(text) - rng.randint(0, REWRITTEN_TOKENS)
        text = text[:equal] + random_ids(97, [rng.randint(30, 40)], seed=number)[0]
        for other in (next(others), next(others)):
            run(one, [generate(one_pair, 99, other, max_new_tokens=2)])
    assert len(text) > 200


def test_speculation_gives_the_same_texts(pair):
    """Speculative decoding gives the same texts.

    Only few tokens are allowed, so that texts repeat themselves, and drafts are accepted in part or as a whole.
    """
    allowed = {"allowed_token_ids": [7, 8, 9], "end_token_ids": [], "max_new_tokens": 60}
    settings = [
        {},
        {"do_sample": True, "seed": 4},
        {"temperature": 0.2, "do_sample": True},
        {"repetition_penalty": 1.1},
    ]
    messages = [
        generate(pair, number, TEXTS[prompt], **allowed, **settings[number])
        for number, prompt in enumerate((0, 3, 5, 6))
    ]
    plain = run(pair.engine(), messages)
    one = speculating(pair)
    found = run(one, messages)
    drafted, accepted = counts(one)
    assert [found.texts(number) for number in range(4)] == [plain.texts(number) for number in range(4)]
    assert 20 < accepted < drafted
    assert found.steps < plain.steps


def test_a_draft_model_of_another_kind_gives_the_same_texts(one_pair, pairs):
    messages = [generate(one_pair, number, TEXTS[number], max_new_tokens=20) for number in (0, 3, 8)]
    one = speculating(one_pair, pairs("llama").loaded)
    assert answers(run(one, messages)) == answers(run(one_pair.engine(), messages))
    assert counts(one)[0] > 0


def test_a_draft_model_with_mixers_is_refused(one_pair, pairs):
    spec = msgspec.structs.replace(pairs("llama").loaded.spec, speculation=Speculation(draft_directory="somewhere"))
    target = replace(pairs("llama").loaded, spec=spec)
    with pytest.raises(LoadError, match="states of whole texts, which cannot drop rejected tokens"):
        find_drafts([target], lambda spec: one_pair.loaded)


def test_memory_without_room_for_the_states_of_a_request_is_refused(one_pair):
    slot_bytes = StateMemory.slot_bytes(one_pair.loaded.model.transformer.mixers().values())
    with pytest.raises(
        LoadError, match=rf"room for 1 of the 2 states that a request needs \({slot_bytes:,} bytes each"
    ):
        one_pair.engine(kv_cache_bytes=slot_bytes + slot_bytes // 2)


def test_more_beams_than_slots_are_refused(one_pair):
    one = one_pair.engine(max_batch_rows=6)
    tables(one).state_pool = type(tables(one).state_pool)(4, 1)
    found = run(one, [generate(one_pair, 0, TEXTS[0], num_beams=4)])
    assert "4 rows need 7 state slots; there are 4" in found.failed[0].message


def test_random_orders_of_shared_beginnings(one_pair):
    """Prompts with common prefixes of random lengths have the right answers in a small engine with a prefix cache."""
    rng = random.Random(2)
    one = one_pair.engine(max_batch_rows=5, max_batch_tokens=70)
    messages = [
        generate(
            one_pair, number, TEXTS[7][: rng.randint(1, 200)] + TEXTS[5][: rng.randint(0, 30)], **SETTINGS[number % 3]
        )
        for number in range(14)
    ]
    expected = answers(run(one_pair.engine(prefix_cache=False), messages))
    assert answers(run(one, messages, every=3)) == expected
    assert tables(one).num_prefix_hits > 0
