"""Encoding texts in the engine: results equal transformers, alone and in a batch; large requests block no others."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import server.engine.stepping.engine as engine_module
from server.engine.encoding import encoder_engine as encoder_module
from server.engine.encoding import encoder_outputs
from server.engine.encoding.encode_queue import EncodeQueue, EncodeRequest
from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.scheduling.encoder_budget import ALLOWED_TOKEN_SECONDS
from server.engine.scheduling.scheduler import Scheduler
from server.engine.scheduling.token_costs import TRIALS, TokenCosts
from server.engine.stepping.fairness import DeficitRoundRobin
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.time_limits import NO_PROGRESS_SECONDS
from tests.engine.harness import engine, generate, run
from tests.parity.checkpoints import random_ids
from tests.parity.paged import encoder_batch

TEXTS = random_ids(97, [1, 30, 7, 64, 2, 15, 100, 3, 3, 40], seed=6)


def values(results, sequence_id: int, index: int) -> np.ndarray:
    return np.frombuffer(results.encoded[sequence_id, index], dtype="<f4")


def encode(sequence_id: int, texts, name: str = "bert", task: str = "embed", **settings) -> Encode:
    return Encode(sequence_id, name, task, [EncodeItem(text) for text in texts], **settings)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_alone_and_in_a_batch_equal_transformers(pairs, pooling, normalize):
    pair = pairs("bert")
    settings = {"pooling": pooling, "normalize": normalize}
    together = run(pair.engine(), [encode(0, TEXTS, **settings)])
    assert len(together.encoded) == len(TEXTS) and not together.failed
    for index, text in enumerate(TEXTS):
        alone = values(run(pair.engine(), [encode(0, [text], **settings)]), 0, 0)
        np.testing.assert_allclose(values(together, 0, index), alone, rtol=1e-4, atol=1e-5)
        with torch.inference_mode():
            hidden = pair.oracle(torch.tensor([text], device=pair.loaded.device)).last_hidden_state[0].cpu()
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "max": hidden.amax(0)}[pooling]
        if normalize:
            expected = expected / expected.norm()
        np.testing.assert_allclose(alone, expected.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_vectors_of_all_tokens_equal_transformers(pairs, normalize):
    pair = pairs("bert")
    mixed = [encode(0, TEXTS, task="embed_tokens", normalize=normalize), encode(1, TEXTS[:4], pooling="max")]
    results = run(pair.engine(max_encode_tokens=64), mixed)
    for index, text in enumerate(TEXTS):
        with torch.inference_mode():
            expected = pair.oracle(torch.tensor([text], device=pair.loaded.device)).last_hidden_state[0].cpu()
        if normalize:
            expected = expected / expected.norm(dim=-1, keepdim=True)
        assert results.rows[0, index] == len(text)
        found = values(results, 0, index).reshape(len(text), -1)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)
    assert {results.rows[1, index] for index in range(4)} == {1}


def test_class_logits_equal_transformers(pairs):
    pair = pairs("classifier")
    types = [[0] * (len(text) // 2) + [1] * (len(text) - len(text) // 2) for text in TEXTS]
    items = [EncodeItem(text, kind if i % 2 else None) for i, (text, kind) in enumerate(zip(TEXTS, types, strict=True))]
    results = run(pair.engine(max_encode_tokens=64), [Encode(0, "classifier", "classify", items)])
    for index, item in enumerate(items):
        kinds = torch.tensor([item.token_type_ids or [0] * len(item.token_ids)], device=pair.loaded.device)
        with torch.inference_mode():
            text = torch.tensor([item.token_ids], device=pair.loaded.device)
            expected = pair.oracle(text, token_type_ids=kinds).logits[0].cpu().numpy()
        np.testing.assert_allclose(values(results, 0, index), expected, rtol=1e-3, atol=1e-4)


def test_token_logits_equal_transformers(pairs):
    pair = pairs("tagger")
    results = run(pair.engine(max_encode_tokens=64), [encode(0, TEXTS, "tagger", "classify_tokens")])
    for index, text in enumerate(TEXTS):
        with torch.inference_mode():
            expected = pair.oracle(torch.tensor([text], device=pair.loaded.device)).logits[0].cpu().numpy()
        assert results.rows[0, index] == len(text)
        np.testing.assert_allclose(values(results, 0, index).reshape(expected.shape), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("targets", [[], [9, 70, 33, 4]])
def test_tokens_for_a_mask_equal_those_of_transformers(pairs, targets):
    pair = pairs("masked")
    items = [EncodeItem(text, mask_index=(3 * i) % len(text)) for i, text in enumerate(TEXTS)]
    ask = [Encode(k, "masked", "fill_mask", items, top_k=k, target_ids=targets) for k in (1, 6)]
    results = run(pair.engine(max_encode_tokens=64), [*ask, encode(0, TEXTS, name="masked")])
    for index, item in enumerate(items):
        with torch.inference_mode():
            logits = pair.oracle(torch.tensor([item.token_ids], device=pair.loaded.device)).logits[0, item.mask_index]
        scores = logits.softmax(-1).cpu()
        order = sorted(targets or range(97), key=lambda word: -scores[word])
        for k in (1, 6):
            assert results.words[k, index] == order[:k]
            np.testing.assert_allclose(values(results, k, index), scores[order[:k]].numpy(), rtol=1e-3, atol=1e-6)
    assert len(results.encoded) == 3 * len(TEXTS) and not results.failed


def test_invalid_masks_and_target_ids_are_refused(pairs):
    wrong = [
        Encode(0, "masked", "fill_mask", [EncodeItem([5, 6])]),
        Encode(1, "masked", "fill_mask", [EncodeItem([5, 6], mask_index=2)]),
        Encode(2, "masked", "fill_mask", [EncodeItem([5, 6], mask_index=-1)]),
        Encode(3, "masked", "fill_mask", [EncodeItem([5, 6], mask_index=0)], target_ids=[97]),
        Encode(4, "masked", "fill_mask", [EncodeItem([5, 6], mask_index=0)], top_k=0),
    ]
    results = run(pairs("masked").engine(), [*wrong, Encode(5, "masked", "fill_mask", [EncodeItem([5], mask_index=0)])])
    assert {i: results.failed[i].code for i in results.failed} == dict.fromkeys(range(5), "engine_error")
    assert len(results.words[5, 0]) == 5


@pytest.mark.parametrize("poolings", [["mean", "cls", "last", "max"], ["cls", "last", "cls"]])
def test_requests_with_different_pooling_share_a_step(pairs, poolings):
    pair = pairs("bert")
    items = [EncodeItem(TEXTS[1], prompt_tokens=4), EncodeItem(TEXTS[3])]
    requests = [Encode(i, "bert", "embed", items, pooling=pooling) for i, pooling in enumerate(poolings)]
    results = run(pair.engine(), requests)
    assert results.steps == 1
    every = pair.loaded.model.transformer.encode(encoder_batch(TEXTS[1:4:2], pair.loaded.device)).split([30, 64])
    for i, (request, pooling) in enumerate(zip(requests, poolings, strict=True)):
        alone = run(pair.engine(), [request])
        for index, (hidden, item) in enumerate(zip(every, items, strict=True)):
            np.testing.assert_allclose(values(results, i, index), values(alone, i, index), rtol=1e-4, atol=1e-5)
            if pooling in ("cls", "last"):
                token = hidden[item.prompt_tokens if pooling == "cls" else -1].float()
                unit = (token / token.norm()).cpu().numpy()
                np.testing.assert_allclose(values(results, i, index), unit, rtol=1e-4, atol=1e-5)


def test_a_large_list_does_not_block_a_small_request(pairs):
    pair = pairs("bert")
    one = pair.engine(max_encode_tokens=128)
    one.add(encode(0, [[5] * 20] * 300))
    one.step()
    one.add(encode(1, [[6] * 20]))
    first, second = one.step(), one.step()
    answered = [event.sequence_id for output in (first, second) for event in output.encoded]
    assert 1 in answered
    assert one.has_work


def test_a_step_has_at_most_the_budget_or_one_longer_text():
    queue = EncodeQueue()
    queue.add(EncodeRequest(encode(0, [[5] * n for n in (30, 10, 15, 80, 20, 20)])))
    assert queue.num_waiting_tokens == 175
    taken = []
    while len(queue):
        taken.append([len(request.message.items[index].token_ids) for request, index in queue.take(50)])
    assert taken == [[10, 30], [15], [80], [20, 20]]
    assert queue.num_waiting_tokens == 0 and queue.take(50) == []


def test_abort_and_deadline(pairs):
    pair = pairs("bert")
    one = pair.engine(max_encode_tokens=32)
    one.add(encode(0, [[5] * 20] * 5))
    one.add(encode(1, [[5] * 20] * 5, deadline=0.0))
    output = one.step()
    assert [(end.sequence_id, end.code) for end in output.failed] == [(1, "timeout")]
    assert [event.sequence_id for event in output.encoded] == [0]
    one.abort(0)
    assert one.step() is None and not one.has_work and one.stats().queue_tokens == 0


def test_invalid_requests_are_refused(pairs):
    pair = pairs("bert")
    bad = [encode(0, [[5] * 129]), encode(1, [[97]]), encode(2, [[]]), encode(3, [])]
    bad += [Encode(4, "bert", "embed", [EncodeItem([5, 6], [0])]), encode(5, [[5]], name="other")]
    results = run(pair.engine(), [*bad, encode(6, [[5]])])
    assert {i: results.failed[i].code for i in range(6)} == {
        i: "request_too_large" if i == 0 else "engine_error" for i in range(6)
    }
    assert (6, 0) in results.encoded


@pytest.mark.parametrize("kind", [2, 10**9])
def test_a_text_with_a_token_type_that_the_model_lacks_fails_alone(pairs, kind):
    """A text with an unknown token type id fails alone. The ids come from the post-processor of a checkpoint."""
    wrong = Encode(0, "bert", "embed", [EncodeItem([5, 6], [0, kind])])
    results = run(pairs("bert").engine(), [encode(1, [[5]]), wrong, encode(2, [[6]])])
    assert results.failed.keys() == {0} and "2 types" in results.failed[0].message
    assert results.encoded.keys() == {(1, 0), (2, 0)}


def test_a_text_with_non_finite_values_fails_alone(pairs, monkeypatch):
    pair = pairs("bert")
    transformer = pair.loaded.model.transformer
    encode_texts = transformer.encode

    def poisoned(batch):
        hidden = encode_texts(batch)
        hidden[batch.token_ids == 66] = torch.nan
        return hidden

    monkeypatch.setattr(transformer, "encode", poisoned)
    results = run(pair.engine(), [encode(i, [[66 if i == 2 else 5, 7, 8]]) for i in range(4)])
    assert list(results.failed) == [2] and len(results.encoded) == 3


def test_encoder_steps_are_short_while_a_decoder_runs(pairs, monkeypatch):
    # With this short quantum of compute time, the encoder runs long before the other request ends.
    monkeypatch.setattr(engine_module, "DeficitRoundRobin", partial(DeficitRoundRobin, quantum_seconds=0.001))
    both = [pairs("bert"), pairs("gpt2")]
    one = engine(both, block_size=4, kv_cache_bytes=1 << 22, max_batch_tokens=160, max_encode_tokens=160)
    one.add(generate(both[1], 1, [5, 6, 7], max_new_tokens=120, end_token_ids=[]))
    one.step()
    one.add(encode(0, [[5] * 10] * 100))
    while not (output := one.step()) or not output.encoded:
        pass
    one.abort(1)
    while one.has_work:
        one.step()
    sizes = [timing.tokens for timing in one.stats().steps if timing.phase == "encode"]
    assert sizes[0] == 20 and max(sizes) == 160 and sum(sizes) == 1000


def test_a_long_step_is_reported_before_it_and_then_cut(pairs, monkeypatch):
    """The worker announces a step that will take long, and makes later steps shorter.

    Every token takes 0.1 s of simulated time, so a step of 10 s has at most 100 tokens.
    """
    clock = [0.0]
    monkeypatch.setattr(encoder_module.time, "monotonic", lambda: clock[0])
    one = pairs("bert").engine(max_encode_tokens=400)
    encoding = one.models["bert"].encoding
    assert encoding.step_seconds == one.step_seconds == NO_PROGRESS_SECONDS
    reported, allowed = [], []
    one.send = lambda output: reported.append(output.computing)

    def slow(texts):
        allowed.append(one.step_seconds - NO_PROGRESS_SECONDS)
        tokens = sum(len(request.message.items[index].token_ids) for request, index in texts)
        clock[0] += 0.1 * tokens
        return run_texts(texts)

    run_texts = encoding._run
    monkeypatch.setattr(encoding, "_run", slow)
    one.add(encode(0, [[5] * 50] * 12))
    one.step()
    one.add(encode(1, [[6] * 120]))
    while one.has_work:
        one.step()
    sizes = [timing.tokens for timing in one.stats().steps if timing.phase == "encode"]
    assert sizes[0] == 400 and max(sizes[1:]) == 120 and sorted(sizes[1:])[-2] <= 100 and sum(sizes) == 720
    assert allowed == pytest.approx([ALLOWED_TOKEN_SECONDS * tokens for tokens in sizes])
    assert reported == [[0], [1]], "the first step is not measured, and one text is long"
    assert one.step_seconds == NO_PROGRESS_SECONDS


def test_encoding_and_generating_share_an_engine(pairs):
    both = [pairs("bert"), pairs("gpt2")]
    one = engine(both, block_size=4, kv_cache_bytes=1 << 22, max_batch_tokens=64, max_encode_tokens=64)
    requests = [encode(0, TEXTS * 5), *(generate(both[1], i, [5, 6, 7]) for i in range(1, 5))]
    results = run(one, requests)
    assert len(results.encoded) == len(TEXTS) * 5 and len(results.finished) == 4


def test_sparse_vectors_alone_and_in_a_batch_equal_transformers(pairs, monkeypatch):
    monkeypatch.setattr(encoder_outputs, "MAX_LOGITS_ROWS", 16)
    pair = pairs("masked")
    together = run(pair.engine(), [encode(0, TEXTS, "masked", "embed_sparse")])
    for index, text in enumerate(TEXTS):
        alone = run(pair.engine(), [encode(0, [text], "masked", "embed_sparse")])
        assert together.words[0, index] == alone.words[0, 0]
        np.testing.assert_allclose(values(together, 0, index), values(alone, 0, 0), rtol=1e-4, atol=1e-5)
        with torch.inference_mode():
            logits = pair.oracle(torch.tensor([text], device=pair.loaded.device)).logits[0].cpu()
        expected = torch.log1p(torch.relu(logits)).amax(0).numpy()
        found = np.zeros(97, np.float32)
        found[alone.words[0, 0]] = values(alone, 0, 0)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", None])
def test_spans_are_pooled_from_one_pass(pairs, pooling):
    pair = pairs("bert")
    items = [EncodeItem(TEXTS[1], spans=[(0, 30), (3, 4), (7, 20), (5, 9)]), EncodeItem(TEXTS[6], spans=[(90, 100)])]
    results = run(pair.engine(), [Encode(0, "bert", "embed_spans", items, pooling=pooling), encode(1, TEXTS)])
    for index, item in enumerate(items):
        with torch.inference_mode():
            text = torch.tensor([item.token_ids], device=pair.loaded.device)
            hidden = pair.oracle(text).last_hidden_state[0].cpu()
        expected = torch.stack([hidden[first:end].mean(0) for first, end in item.spans])
        expected = expected / expected.norm(dim=-1, keepdim=True)
        assert results.rows[0, index] == len(item.spans)
        found = values(results, 0, index).reshape(len(item.spans), -1)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_invalid_spans_are_refused(pairs):
    wrong = [[], [(2, 2)], [(-1, 1)], [(0, 4)]]
    requests = [Encode(i, "bert", "embed_spans", [EncodeItem([5, 6, 7], spans=spans)]) for i, spans in enumerate(wrong)]
    results = run(pairs("bert").engine(), requests)
    assert {i: results.failed[i].code for i in results.failed} == dict.fromkeys(range(4), "engine_error")


def test_beside_streams_a_decode_step_follows_every_encoder_step(pairs):
    both = engine([pairs("bert"), pairs("gpt2")])
    both.add(generate(pairs("gpt2"), 1, [5, 6, 7], max_new_tokens=60, end_token_ids=[]))
    both.step()
    both.add(encode(2, random_ids(90, [3] * 200, seed=1)))
    decoded, gap, gaps, sizes = 0, 0, [], []
    while not decoded or both.models["bert"].has_work:
        output = both.step()
        if output.tokens:
            decoded, gap = decoded + 1, 0
        if output.encoded:
            gap += 1
            gaps.append(gap)
            sizes.append(len(output.encoded))
        if not both.models["gpt2"].has_work:
            break
    assert decoded > 5 and set(gaps) == {1}, "two encoder steps between two tokens"
    while both.has_work:
        both.step()


def test_an_encoder_step_beside_streams_takes_three_quarters_of_a_decode_step(pairs):
    encoding = engine([pairs("bert")]).models["bert"].encoding
    assert encoding._max_step_tokens(0.01) == encoding.max_shared_tokens, "nothing is measured yet"
    encoding._costs.observe(100, 0.02)
    assert encoding._max_step_tokens(0.01) == 37, "75% of the decoder's step"
    assert encoding._max_step_tokens(0.0001) == 16, "a request must get on"
    assert encoding._max_step_tokens(10.0) == encoding.max_tokens
    assert encoding._max_step_tokens(None) == encoding.max_shared_tokens


def test_an_encoder_step_with_a_fixed_cost_takes_twice_this_cost(pairs):
    encoding = engine([pairs("bert")], max_encode_tokens=1024).models["bert"].encoding
    encoding._costs = TokenCosts(has_fixed_part=True)
    for _ in range(TRIALS):
        encoding._costs.observe(16, 0.006 + 16 * 0.0001)
    assert encoding._max_step_tokens(0.002) == 32, "the next size tells the two parts of the cost apart"
    for _ in range(TRIALS):
        encoding._costs.observe(32, 0.006 + 32 * 0.0001)
    assert encoding._max_step_tokens(0.002) == pytest.approx(60, abs=1), "as many tokens as take 6 ms"
    for _ in range(TRIALS):
        encoding._costs.observe(100, 0.006 + 100 * 0.0001)
    assert encoding._max_step_tokens(0.002) == pytest.approx(60, abs=1)
    assert encoding._max_step_tokens(0.02) == pytest.approx(90, abs=1), "15 ms, less the fixed 6 ms"


@pytest.mark.parametrize(("has_prefill", "expected"), [(False, 0.01), (True, 0.005)])
def test_an_encoder_step_is_shorter_while_prompts_lengthen_the_decode_steps(pairs, monkeypatch, has_prefill, expected):
    both = engine([pairs("bert"), pairs("gpt2")])
    both.add(generate(pairs("gpt2"), 1, [5, 6, 7], max_new_tokens=60, end_token_ids=[]))
    both.step()
    monkeypatch.setattr(Scheduler, "decode_seconds", 0.01)
    monkeypatch.setattr(Scheduler, "has_prefill", has_prefill)
    given = []
    monkeypatch.setattr(EncoderEngine, "step", lambda self, events, is_shared, seconds: given.append(seconds))
    both._encode("bert", both.models["bert"].encoding)
    assert given == [pytest.approx(expected)]
