"""The answer to a request does not depend on other requests or on how its tokens are divided into steps.

Every request of a mixed batch is first answered alone. Then all are answered together: in chunks, preempted, with
prefix cache hits, and in another order. The tokens are the same each time.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Collection
from functools import cache

import pytest

from server.ipc.wire.params import RequiredTerm
from server.ipc.wire.sections import AnswerSection
from tests.engine.grammars import json_grammar, regex_grammar
from tests.engine.harness import generate, run
from tests.engine.tiny_checkpoints import GENERATING, HYBRIDS, SEQ2SEQ
from tests.ipc.one_row import id_of
from tests.parity.checkpoints import random_ids
from tests.rare_families import RARE_IDS

LENGTHS = [1, 3, 8, 17, 30, 44, 2, 5, 12, 26, 9, 40, 7, 21, 33, 4, 15, 6]


def mixed_requests(pair) -> list:
    """Greedy, sampled and beam requests with prompts of many lengths, with and without processors."""
    chooser = random.Random(7)
    integers = AnswerSection(grammar=json_grammar({"type": "array", "items": {"type": "integer"}}))
    words = AnswerSection(grammar=regex_grammar("[a-z]{5,}(,[0-9]+)*"))
    scored = {"prompt_logprobs": True, "top_logprobs": 2} if not pair.starts else {}
    requests = []
    for i, prompt in enumerate(random_ids(97, LENGTHS, seed=11)):
        settings = [
            {},
            {"do_sample": True, "seed": 100 + i},
            {"do_sample": True, "seed": i, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
            {"do_sample": True, "seed": i, "top_p": 0.7, "min_p": 0.02, "repetition_penalty": 1.3},
            {"num_beams": 3, "num_return_sequences": 3},
            {"num_beams": 4, "no_repeat_ngram_size": 2, "early_stopping": True},
            {"no_repeat_ngram_size": 2, "min_new_tokens": 9, "logprobs": True},
            {"do_sample": True, "seed": i, "typical_p": 0.8, "top_k": 60, "presence_penalty": 0.7},
            {"frequency_penalty": 0.9, "encoder_no_repeat_ngram_size": 2, "logit_bias": {5: 1.5, 90: -100.0}},
            {"num_beams": 2, "allowed_token_ids": list(range(2, 97, 3)), "frequency_penalty": -0.4},
            {"do_sample": True, "seed": i, "allowed_token_ids": list(range(60)), "typical_p": 0.5, **scored},
            {"do_sample": True, "seed": i, "sections": [integers]},
            {"num_beams": 3, "num_return_sequences": 2, "sections": [words]},
            {"num_beams": 4, "num_return_sequences": 2, "terms": [RequiredTerm([("!-/", [3, 15, 17])])]},
        ][i % 14]
        requests.append(generate(pair, i, prompt, max_new_tokens=chooser.randint(8, 18), **settings))
    return requests


@pytest.fixture(scope="module", params=GENERATING)
def pair(request, pairs):
    return pairs(request.param)


def sizes(names: str, *combinations: tuple[int, ...], once: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test of every family with several sizes.

    A rare family runs with only one of the combinations, because its code does not depend on the sizes.

    names: names of the arguments. combinations: values of the arguments. once: further families that run only once.
    """
    cases = []
    for number, name in enumerate(GENERATING):
        one = combinations[number % len(combinations)]
        cases += [(name, *own) for own in ([one] if name in once or RARE_IDS.match(name) else combinations)]
    return pytest.mark.parametrize(f"pair, {names}", cases, indirect=["pair"])


@pytest.fixture
def alone(pair, shared_directory):
    """The result of `answers_alone`, stored in a file for all test processes.

    Processes that need it at the same time may each compute it.
    """
    file = shared_directory / f"answers of {pair.name}.json"
    if not file.exists():
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(list(answers_alone(pair).items())))
        unfinished.rename(file)
    return dict(json.loads(file.read_text()))


@cache
def answers_alone(pair) -> dict:
    """The answers of a checkpoint to each request alone."""
    found = {}
    for request in mixed_requests(pair):
        found[id_of(request)] = run(pair.engine(), [request]).texts(id_of(request))
    assert sum(len(text) for texts in found.values() for text in texts) > 200
    return found


def continued_requests(pair) -> list:
    """Requests whose prompts are the prompts of `mixed_requests`, each followed by its answer."""
    return [
        generate(pair, id_of(request), [*request.prompts[0], *answers_alone(pair)[id_of(request)][0]], max_new_tokens=9)
        for request in mixed_requests(pair)
    ]


@cache
def answers_to_continued(pair) -> dict:
    """The answers to `continued_requests` of an engine without the prefix cache."""
    return answers(run(pair.engine(prefix_cache=False), continued_requests(pair)))


NUM_GROWN = 28
"""Number of new tokens of each request in `growing_requests`."""


def growing_requests(pair, count: int) -> list:
    """Requests with one prompt token each. They all start in the same step, and grow together to the same length.

    With `mixed_requests`, the number that run together depends on time, because some wait for masks of grammars.
    """
    settings = {"max_new_tokens": NUM_GROWN, "end_token_ids": []}
    return [generate(pair, 1000 + i, [3 + i], **settings) for i in range(count)]


@cache
def answers_to_growing(pair, count: int) -> dict:
    """The answers to `growing_requests` with a KV pool that has room for all of them."""
    return answers(run(pair.engine(), growing_requests(pair, count)))


def answers(results) -> dict:
    assert not results.failed
    return {sequence_id: results.texts(sequence_id) for sequence_id in results.finished}


def test_in_a_mixed_batch(pair, alone):
    assert answers(run(pair.engine(), mixed_requests(pair))) == alone


def test_arriving_one_after_the_other_in_another_order(pair, alone):
    requests = mixed_requests(pair)
    random.Random(3).shuffle(requests)
    assert answers(run(pair.engine(), requests, every=2)) == alone


@sizes("max_batch_tokens, block_size", (5, 4), (16, 1), (64, 32))
def test_in_chunks(pair, alone, max_batch_tokens, block_size):
    one = pair.engine(max_batch_tokens=max_batch_tokens, block_size=block_size)
    assert answers(run(one, mixed_requests(pair), every=1)) == alone


@sizes("max_batch_tokens", (512,), (24,))
def test_preempted_and_computed_again(pair, alone, max_batch_tokens):
    """Answers stay the same if requests are preempted.

    The KV pool has room for the longest request only, so not all of `growing_requests` can stay in it.
    """
    one = pair.engine(max_batch_tokens=max_batch_tokens)
    scheduler = one.models[pair.name].generation.scheduler
    pool = scheduler.blocks.self_pool
    needed = max(
        request.params.num_beams
        * pool.blocks_for(len(request.rows[0].decoder_token_ids or request.prompts[0]) + request.rows[0].max_new_tokens)
        for request in mixed_requests(pair)
    )
    scheduler.blocks.self_pool = type(pool)(needed, pool.block_size)
    growing = growing_requests(pair, needed // pool.blocks_for(NUM_GROWN) + 1)
    assert len(growing) <= min(needed, max_batch_tokens), "they do not begin together"
    found = answers(run(one, [*growing, *mixed_requests(pair)]))
    assert {number: found.pop(number) for number in map(id_of, growing)} == answers_to_growing(pair, len(growing))
    assert found == alone
    assert scheduler.num_preemptions > 0, "the pool is too large to cause a preemption"


# Encoder-decoder models share no prefixes, and hybrid models need longer prompts. These families have no cache hits
# here, so each runs with only one of the sizes.
@sizes("max_batch_tokens, block_size", (512, 4), (24, 1), (10, 8), once={*SEQ2SEQ, *HYBRIDS})
def test_with_prefix_cache_hits(pair, alone, max_batch_tokens, block_size):
    """Answers stay the same with prefix cache hits: requests are repeated, then continued after their answers."""
    one = pair.engine(max_batch_tokens=max_batch_tokens, block_size=block_size)
    scheduler = one.models[pair.name].generation.scheduler
    run(one, mixed_requests(pair))
    again = run(one, mixed_requests(pair), every=3)
    assert answers(again) == alone
    assert answers(run(one, continued_requests(pair))) == answers_to_continued(pair)
    cached = sum(end.cached_tokens for end in again.finished.values())
    if pair.starts:
        assert scheduler.blocks.num_prefix_hits == cached == 0, "these keys must not be shared"
        return
    if pair.loaded.model.transformer.mixers():
        # Snapshots need 64 tokens; `tests/engine/test_states.py` has longer prompts.
        assert scheduler.blocks.num_prefix_hits == cached == 0
        return
    assert scheduler.blocks.num_prefix_hits > cached > 100
    for request in mixed_requests(pair):
        found = again.finished[id_of(request)].cached_tokens
        whole = (len(request.prompts[0]) - 1) // block_size * block_size
        assert found == (0 if request.rows[0].prompt_logprobs else whole)


@pytest.mark.parametrize("pair", ["llama", "gemma2", "llama-dynamic", "deepseek-v3", "qwen3_5", "t5"], indirect=True)
def test_without_the_cache_no_tokens_are_cached(pair):
    """Negative control of the test above: without the prefix cache, no cached tokens are reported."""
    one = pair.engine(prefix_cache=False)
    run(one, mixed_requests(pair))
    assert not any(end.cached_tokens for end in run(one, mixed_requests(pair)).finished.values())
    scheduler = one.models[pair.name].generation.scheduler
    assert scheduler.blocks.num_prefix_queries == scheduler.blocks.num_prefix_hits == 0


def test_different_seeds_give_different_samples(pair):
    """Negative control: other seeds give other answers."""
    prompts = random_ids(97, [6], seed=2) * 8
    settings = {"do_sample": True, "max_new_tokens": 20, "end_token_ids": []}
    requests = [generate(pair, i, prompt, seed=i, **settings) for i, prompt in enumerate(prompts)]
    results = run(pair.engine(), requests)
    assert len({tuple(results.texts(i)[0]) for i in range(8)}) == 8
