"""Generation in the engine: tokens equal transformers, each request ends exactly once, and all blocks are freed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from models.backends.choice import backend
from server.engine.stepping import engine as engine_module
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from tests.engine.harness import as_transformers_settings, engine, generate, reference, run
from tests.engine.tiny_checkpoints import GENERATING
from tests.ipc.one_row import one_row
from tests.parity.checkpoints import random_ids

PROMPTS = random_ids(97, [1, 5, 11, 30], seed=3)


@pytest.mark.parametrize("name", GENERATING)
def test_greedy_equals_transformers(pairs, name):
    pair = pairs(name)
    requests = [generate(pair, i, prompt, max_new_tokens=20) for i, prompt in enumerate(PROMPTS)]
    results = run(pair.engine(), requests)
    for i, prompt in enumerate(PROMPTS):
        (text,), _ = reference(pair, prompt, max_new_tokens=20)
        assert results.texts(i) == [text] and results.tokens[i] == text
        (hypothesis,) = results.finished[i].hypotheses
        ended = text[-1] in pair.ends
        assert hypothesis.finish_reason == ("stop" if ended else "length")
        assert hypothesis.stop_token_id == (text[-1] if ended else None)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"frequency_penalty": -0.6, "presence_penalty": 0.3},
        {"no_repeat_ngram_size": 2},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 2},
        {"min_new_tokens": 10, "end_token_ids": list(range(2, 50))},
        {"suppress_token_ids": list(range(40))},
        {"allowed_token_ids": list(range(40, 60))},
        {"logit_bias": {token: token / 9 for token in range(50)}},
        {"bad_words_ids": [[i] for i in range(30)]},
        {"forced_eos_token_id": 2},
    ],
    ids=lambda value: "-".join(value),
)
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_processors_equal_transformers(pairs, name, settings):
    pair = pairs(name)
    results = run(pair.engine(), [generate(pair, i, prompt, **settings) for i, prompt in enumerate(PROMPTS)])
    for i, prompt in enumerate(PROMPTS):
        texts, _ = reference(pair, prompt, max_new_tokens=12, **as_transformers_settings(pair, prompt, settings))
        assert results.texts(i) == texts


def test_logprobs_are_those_of_the_raw_distribution(pairs):
    pair = pairs("gpt2")
    settings = {"do_sample": True, "temperature": 0.5, "top_k": 5, "repetition_penalty": 2.0, "seed": 3}
    requests = [generate(pair, 0, PROMPTS[1], **settings, logprobs=True, top_logprobs=3)]
    requests += [generate(pair, 1, PROMPTS[2], **settings)]
    requests += [generate(pair, 2, PROMPTS[2], logprobs=True)]
    results = run(pair.engine(), requests)
    assert results.finished[1].hypotheses[0].logprobs is None
    for number, prompt, top in ((0, PROMPTS[1], 3), (2, PROMPTS[2], 0)):
        (hypothesis,) = results.finished[number].hypotheses
        text = torch.tensor([prompt + hypothesis.token_ids], device=pair.loaded.device)
        with torch.inference_mode():
            expected = pair.oracle(text).logits[0, len(prompt) - 1 : -1].log_softmax(-1).cpu()
        assert len(hypothesis.logprobs) == len(hypothesis.token_ids)
        for entry, token, row in zip(hypothesis.logprobs, hypothesis.token_ids, expected, strict=True):
            assert entry.token_id == token and entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
            best = row.topk(top)
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        reported = [entry for event in results.token_events[number] for entry in event.logprobs]
        assert reported == list(hypothesis.logprobs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batch_tokens": 5},
        {"max_batch_tokens": 16, "block_size": 1},
        {"kv_cache_bytes": 1 << 16},
        {"kv_cache_bytes": 1 << 16, "max_batch_tokens": 16},
    ],
    ids=["whole", "in chunks", "small blocks", "preempted", "preempted, in chunks"],
)
@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_prompt_logprobs_equal_transformers(pairs, name, options):
    pair = pairs(name)
    prompts = [*PROMPTS, *random_ids(97, [70, 2, 90], seed=9)]
    kinds = [{"top_logprobs": 3}, {"num_beams": 2}, {"do_sample": True}, {"max_new_tokens": 1}]
    requests = [
        generate(pair, i, prompt, prompt_logprobs=True, **{"max_new_tokens": 25, **kinds[i % 4]})
        for i, prompt in enumerate(prompts)
    ]
    requests.append(generate(pair, 99, PROMPTS[2], max_new_tokens=25))
    one = pair.engine(**options)
    results = run(one, requests)
    assert "kv_cache_bytes" not in options or one.models[name].generation.scheduler.num_preemptions > 0
    assert set(results.prompts) == set(range(len(prompts))), "exactly the requests with prompt_logprobs must get them"
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt], device=pair.loaded.device)
        with torch.inference_mode():
            expected = pair.oracle(ids).logits[0].log_softmax(-1).cpu()
        assert [entry.token_id for entry in results.prompts[i]] == prompt[1:]
        for entry, token, row in zip(results.prompts[i], prompt[1:], expected[:-1], strict=True):
            assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
            best = row.topk(kinds[i % 4].get("top_logprobs", 0))
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_prompt_logprobs_that_are_not_finite_fail_their_request_alone(pairs, monkeypatch):
    pair = pairs("gpt2")
    transformer = pair.loaded.model.transformer
    honest = transformer.logits_top_k
    requests = [generate(pair, i, PROMPTS[2], prompt_logprobs=i == 1) for i in range(3)]

    def broken_prompt_logits(hidden, request):
        """Return NaN for the logits of the prompt. They are recognised by their number of rows."""
        logits, top_k = honest(hidden, request)
        if len(hidden) == len(PROMPTS[2]) - 1:
            logits = logits * torch.nan
            top_k = backend(logits).logits_top_k(logits, request.top_k, request.with_logsumexp)
        return logits, top_k

    monkeypatch.setattr(transformer, "logits_top_k", broken_prompt_logits)
    results = run(pair.engine(), requests)
    assert {i: end.code for i, end in results.failed.items()} == {1: "engine_error"}
    assert results.texts(0) == results.texts(2) == reference(pair, PROMPTS[2], max_new_tokens=12)[0]
    assert not results.prompts


def test_a_source_text_has_no_prompt_logprobs(pairs):
    results = run(pairs("t5").engine(), [generate(pairs("t5"), 0, [5, 6], prompt_logprobs=True)])
    assert "source" in results.failed[0].message


def test_a_stop_token_of_the_client_ends_the_text_and_is_reported(pairs):
    pair = pairs("gpt2")
    (text,), _ = reference(pair, PROMPTS[1], max_new_tokens=12)
    stop = text[4]
    results = run(pair.engine(), [generate(pair, 0, PROMPTS[1], stop_token_ids=[stop])])
    (hypothesis,) = results.finished[0].hypotheses
    assert hypothesis.token_ids == text[: text.index(stop) + 1]
    assert (hypothesis.finish_reason, hypothesis.stop_token_id) == ("stop", stop)


def test_abort_frees_all_blocks_without_an_event(pairs):
    for name in ("gpt2", "bart"):
        pair = pairs(name)
        one = pair.engine()
        for i in range(6):
            one.add(generate(pair, i, PROMPTS[2], num_beams=1 + i % 2, max_new_tokens=50))
        for _ in range(3):
            one.step()
        for i in (*range(6), 3, 99):
            one.abort(i)
        assert one.step() is None and not one.has_work
        assert set(one.stats().kv_blocks_used.values()) == {0}


def test_a_deadline_while_waiting_fails_and_while_running_finishes(pairs, monkeypatch):
    now = 100.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    pair = pairs("gpt2")
    one = pair.engine(max_batch_rows=4)
    one.add(one_row(0, "gpt2", PROMPTS[1], max_new_tokens=40, deadline=now - 1))
    one.add(one_row(1, "gpt2", PROMPTS[1], max_new_tokens=40, deadline=now + 1))
    one.add(one_row(2, "gpt2", PROMPTS[1], max_new_tokens=40, num_beams=3, deadline=now + 1))
    first = one.step()
    assert [(end.sequence_id, end.code) for end in first.failed] == [(0, "timeout")]
    one.step(), one.step()
    now += 2
    last = one.step()
    ends = {end.sequence_id: end for end in last.finished}
    assert ends[1].hypotheses[0].finish_reason == ends[2].hypotheses[0].finish_reason == "timeout"
    assert 0 < len(ends[1].hypotheses[0].token_ids) < 40
    assert len(ends[2].hypotheses) == 1 and ends[2].hypotheses[0].score is not None
    assert not one.has_work and one.stats().kv_blocks_used == {"self": 0}


def test_deadlines_that_pass_together_end_in_several_steps(pairs, monkeypatch):
    """If the deadlines of many requests pass together, each step ends only some of them.

    A message with all requests of sixteen large calls blocked the event loop of the HTTP process for 0.15 s.
    """
    monkeypatch.setattr(engine_module, "MAX_EXPIRED", 4)
    now = 100.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    one = pairs("gpt2").engine(max_batch_rows=2)
    for i in range(10):
        one.add(one_row(i, "gpt2", PROMPTS[1], max_new_tokens=40, deadline=now - 1))
    ended = []
    while one.has_work:
        output = one.step()
        ends = [end.sequence_id for end in (*output.failed, *output.finished)]
        assert len(ends) <= 4
        ended += ends
    assert sorted(ended) == list(range(10)) and one.stats().kv_blocks_used == {"self": 0}


def test_deadlines_of_ended_requests_are_removed(pairs, monkeypatch):
    now = 100.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    one = pairs("gpt2").engine()
    one.add(one_row(0, "gpt2", PROMPTS[1], max_new_tokens=40, deadline=now + 1))
    for i in range(1, 1000):
        one.add(one_row(i, "gpt2", PROMPTS[1], max_new_tokens=40, deadline=now + 2))
        one.abort(i)
    assert len(one._deadlines) < 100
    now += 1
    assert [end.sequence_id for end in one.step().failed] == [0] and not one.has_work


def test_reported_durations_are_consistent(pairs):
    pair = pairs("gpt2")
    started = time.monotonic()
    results = run(pair.engine(max_batch_rows=1), [generate(pair, i, PROMPTS[3]) for i in range(3)])
    total = time.monotonic() - started
    queued = [results.finished[i].queue_seconds for i in range(3)]
    assert queued == sorted(queued) and queued[2] > queued[0]
    for end in results.finished.values():
        assert end.prefill_seconds > 0 and end.decode_seconds > 0
        assert end.queue_seconds + end.prefill_seconds + end.decode_seconds <= total


@pytest.mark.parametrize(
    "change, code, words",
    [
        ({"max_new_tokens": 200}, "request_too_large", "context of 128"),
        ({"max_new_tokens": 100, "num_beams": 16}, "request_too_large", "KV blocks"),
        ({"num_beams": 9}, "request_too_large", "rows"),
        ({"suppress_token_ids": [97]}, "engine_error", "vocabulary"),
        ({"allowed_token_ids": [5, 97]}, "engine_error", "vocabulary"),
        ({"logit_bias": {97: 1.0}}, "engine_error", "vocabulary"),
        ({"logit_bias": {-1: 1.0}}, "engine_error", "vocabulary"),
        ({"num_beams": 2, "do_sample": True}, "engine_error", "sampled"),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(pairs, change, code, words):
    pair = pairs("gpt2")
    rows = 8 if words == "rows" else 64
    one = pair.engine(kv_cache_bytes=1 << 18, max_batch_rows=rows)
    results = run(one, [generate(pair, 0, PROMPTS[1], **change), generate(pair, 1, PROMPTS[1])])
    assert results.failed[0].code == code and words in results.failed[0].message
    assert 1 in results.finished


def test_invalid_token_ids_are_refused(pairs):
    pair = pairs("bart")
    for source, start in (([5, 97], [2]), ([5, -1], [2]), ([5], [97]), ([], [2]), ([5], [])):
        results = run(pair.engine(), [one_row(0, "bart", source, start, max_new_tokens=4)])
        assert results.failed[0].code == "engine_error"


def test_rows_of_one_message_get_the_same_answers_as_separate_messages(pairs):
    pair = pairs("gpt2")
    settings = {"end_token_ids": pair.ends, "do_sample": True, "temperature": 2.0}
    rows = [GenerateRow(index, 5 + index, index // 2, seed=index) for index in range(4)]
    prompts = [PROMPTS[1], PROMPTS[2]]
    together = run(pair.engine(), [Generate("gpt2", GenerationParams(**settings), prompts, rows)])
    alone = [
        one_row(
            row.sequence_id, "gpt2", prompts[row.prompt], max_new_tokens=row.max_new_tokens, seed=row.seed, **settings
        )
        for i, row in enumerate(rows)
    ]
    apart = run(pair.engine(), alone)
    assert [together.texts(index) for index in range(4)] == [apart.texts(index) for index in range(4)]
    assert len({tuple(together.texts(index)[0]) for index in range(4)}) > 1


def test_a_too_large_row_fails_alone_and_an_invalid_message_fails_all_rows(pairs):
    pair = pairs("gpt2")
    rows = [GenerateRow(0, 4), GenerateRow(1, 200)]
    results = run(pair.engine(), [Generate("gpt2", GenerationParams(), [PROMPTS[1]], rows)])
    assert set(results.finished) == {0} and results.failed[1].code == "request_too_large"
    rows = [GenerateRow(0, 4), GenerateRow(1, 4, prompt=1)]
    results = run(pair.engine(), [Generate("gpt2", GenerationParams(), [PROMPTS[1]], rows)])
    assert [results.failed[index].code for index in (0, 1)] == ["engine_error"] * 2
    results = run(pair.engine(), [Generate("absent", GenerationParams(), [PROMPTS[1]], rows)])
    assert set(results.failed) == {0, 1}


def test_zero_new_tokens_give_an_empty_answer(pairs):
    results = run(pairs("gpt2").engine(), [generate(pairs("gpt2"), 0, [5], max_new_tokens=0)])
    assert results.texts(0) == [[]] and results.finished[0].hypotheses[0].finish_reason == "length"


def test_the_answer_ends_if_no_token_is_possible(pairs):
    pair = pairs("gpt2")
    everything = list(range(97))
    requests = [generate(pair, 0, [5], suppress_token_ids=everything)]
    requests += [generate(pair, 1, [5], suppress_token_ids=everything, num_beams=3)]
    requests += [generate(pair, 2, [5], suppress_token_ids=everything, do_sample=True)]
    requests += [generate(pair, 3, [5])]
    results = run(pair.engine(), requests)
    assert [results.texts(i) for i in range(3)] == [[[]]] * 3
    assert results.texts(3) == reference(pair, [5], max_new_tokens=12)[0]


def test_models_of_all_kinds_share_an_engine(pairs):
    names = ["gpt2", "llama", "t5", "marian"]
    one = engine([pairs(name) for name in names], block_size=4, kv_cache_bytes=1 << 24)
    requests = [
        generate(pairs(name), 10 * n + i, prompt, num_beams=1 + 2 * (i % 2), max_new_tokens=20)
        for n, name in enumerate(names)
        for i, prompt in enumerate(PROMPTS)
    ]
    results = run(one, requests, every=2)
    for n, name in enumerate(names):
        for i, prompt in enumerate(PROMPTS):
            texts, _ = reference(pairs(name), prompt, num_beams=1 + 2 * (i % 2), max_new_tokens=20)
            assert results.texts(10 * n + i) == texts


def test_a_step_that_raises_fails_its_requests_and_no_others(pairs, monkeypatch):
    pair = pairs("gpt2")
    one = pair.engine(max_batch_rows=2)
    for i in range(3):
        one.add(generate(pair, i, PROMPTS[1]))
    one.step()
    with monkeypatch.context() as patch:
        patch.setattr(pair.loaded.model.transformer, "decode", lambda *given: 1 / 0)
        output = one.step()
    assert {end.sequence_id: end.code for end in output.failed} == {0: "engine_error", 1: "engine_error"}
    finished = []
    while one.has_work:
        output = one.step()
        finished += output.finished if output else []
    assert [end.sequence_id for end in finished] == [2]
    assert finished[0].hypotheses[0].token_ids == reference(pair, PROMPTS[1], max_new_tokens=12)[0][0]
    assert one.stats().kv_blocks_used == {"self": 0}


def test_stats_are_reset_after_each_report(pairs):
    pair = pairs("gpt2")
    one = pair.engine(kv_cache_bytes=1 << 15, max_batch_tokens=16)
    for i in range(8):
        one.add(generate(pair, i, PROMPTS[2], max_new_tokens=40))
    before = one.stats()
    assert before.waiting == 8 and before.running == 0 and before.queue_tokens == 8 * len(PROMPTS[2])
    while one.has_work:
        one.step()
    after = one.stats()
    assert after.preemptions > 0 and after.wasted_tokens > 0
    assert {timing.phase for timing in after.steps} >= {"prefill", "decode", "mixed"}
    needed = 8 * (len(PROMPTS[2]) + 39) - after.prefix_hits
    assert sum(timing.tokens for timing in after.steps) == needed + after.wasted_tokens
    assert (after.prefix_queries, after.prefix_hits) == (8 * len(PROMPTS[2]), 7 * 8)
    again = one.stats()
    assert again.preemptions == 0 and again.wasted_tokens == 0 and again.steps == []


def test_a_prompt_that_lacks_its_last_token_counts_as_a_decoding_row(pairs, monkeypatch):
    """If only the last token of a prompt is not cached, its step is measured as a decode step, not as prefill."""
    pair = pairs("gpt2")
    one, prompt = pair.engine(), [7] * 9
    observed = []
    budget = one.models[pair.name].generation.scheduler.prefill_budget
    monkeypatch.setattr(budget, "observe", lambda decode, prefill, seconds: observed.append((decode, prefill)))
    for sequence_id in range(2):
        run(one, [generate(pair, sequence_id, prompt, max_new_tokens=2)])
    assert observed == [(0, 9), (1, 0), (1, 0), (1, 0)]
