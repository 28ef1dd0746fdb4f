"""The `attention` of an answer equals the cross-attention of transformers, with and without beams."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from server.engine.choosing import alignment_queue
from tests.engine.harness import generate, run
from tests.engine.tiny_checkpoints import SEQ2SEQ
from tests.parity.checkpoints import random_ids
from tests.rare_families import in_turn

SOURCES = random_ids(97, [1, 7, 12], seed=3)


def attention_matrix(hypothesis, source: list[int]) -> np.ndarray:
    return np.frombuffer(hypothesis.attention, "<f4").reshape(-1, len(source))


@torch.inference_mode()
def expected(pair, source: list[int], tokens: list[int]) -> np.ndarray:
    """Cross-attention of transformers for a whole text: [tokens, source tokens].

    Row i has the weights with which token i is predicted, so its query is token i - 1.
    """
    # With its cache on, transformers' FSMT does not mask later tokens.
    cache = {"use_cache": False} if pair.oracle.config.model_type == "fsmt" else {}
    output = pair.oracle(
        input_ids=torch.tensor([source]),
        decoder_input_ids=torch.tensor([pair.starts + tokens[:-1]]),
        output_attentions=True,
        **cache,
    )
    return output.cross_attentions[-1][0].mean(0)[-len(tokens) :].numpy()


SETTINGS = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 2.0, "num_return_sequences": 4},
}


@pytest.mark.parametrize("name, kind", in_turn(SEQ2SEQ, SETTINGS))
def test_equals_the_cross_attention_of_the_reference(pairs, name, kind):
    pair, settings = pairs(name), SETTINGS[kind]
    requests = [generate(pair, i, source, attention=True, **settings) for i, source in enumerate(SOURCES)]
    plain = [generate(pair, 10 + i, source, **settings) for i, source in enumerate(SOURCES)]
    results = run(pair.engine(), requests + plain)
    for i, source in enumerate(SOURCES):
        hypotheses = results.finished[i].hypotheses
        assert len(hypotheses) == settings.get("num_return_sequences", 1)
        for hypothesis in hypotheses:
            ours = attention_matrix(hypothesis, source)
            assert ours.shape == (len(hypothesis.token_ids), len(source))
            np.testing.assert_allclose(ours, expected(pair, source, hypothesis.token_ids), atol=1e-5)
            np.testing.assert_allclose(ours.sum(1), 1.0, atol=1e-5)
        assert results.texts(10 + i) == results.texts(i)
        assert results.finished[10 + i].hypotheses[0].attention is None


@torch.inference_mode()
def test_equals_the_attention_of_each_generate_step(pairs):
    pair, source = pairs("bart"), SOURCES[2]
    made = pair.oracle.generate(
        torch.tensor([source]),
        max_new_tokens=12,
        do_sample=False,
        num_beams=1,
        eos_token_id=pair.ends,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    steps = [step[-1][0, :, -1].mean(0) for step in made.cross_attentions]
    hypothesis = run(pair.engine(), [generate(pair, 0, source, attention=True)]).finished[0].hypotheses[0]
    assert hypothesis.token_ids == made.sequences[0, len(pair.starts) :].tolist()
    np.testing.assert_allclose(attention_matrix(hypothesis, source), torch.stack(steps).numpy(), atol=1e-5)
    # Negative control: the matrix shifted by one token is a different one.
    assert np.abs(attention_matrix(hypothesis, source)[1:] - torch.stack(steps).numpy()[:-1]).max() > 1e-2


@pytest.mark.parametrize("broken", ["raises", "not finite"])
def test_an_attention_error_fails_its_request_alone(pairs, monkeypatch, broken):
    pair = pairs("t5")
    engine = pair.engine()
    model = engine.models[pair.name].generation.runner.model

    def align(source, target):
        if broken == "raises":
            raise RuntimeError("out of memory")
        return [torch.full(sizes, torch.nan) for sizes in zip(target.lengths, source.lengths, strict=True)]

    monkeypatch.setattr(model, "align", align)
    requests = [generate(pair, i, SOURCES[2], attention=i == 1) for i in range(3)]
    results = run(engine, requests)
    assert results.failed[1].code == "engine_error" and "attention" in results.failed[1].message
    assert results.finished.keys() == {0, 2} and results.texts(0) == results.texts(2)


@pytest.mark.parametrize("broken", ["raises", "not finite"])
def test_an_error_in_a_batch_fails_one_request(pairs, monkeypatch, broken):
    pair = pairs("bart")
    engine = pair.engine()
    model = engine.models[pair.name].generation.runner.model
    align = model.align

    def align_without_sevens(source, target):
        bad = [length == 7 for length in source.lengths]
        if broken == "raises" and any(bad):
            raise RuntimeError("out of memory")
        return [own * torch.nan if is_bad else own for own, is_bad in zip(align(source, target), bad, strict=True)]

    monkeypatch.setattr(model, "align", align_without_sevens)
    results = run(engine, [generate(pair, i, source, attention=True) for i, source in enumerate(SOURCES)])
    assert results.failed.keys() == {1} and results.finished.keys() == {0, 2}
    np.testing.assert_allclose(
        attention_matrix(results.finished[2].hypotheses[0], SOURCES[2]),
        expected(pair, SOURCES[2], results.finished[2].hypotheses[0].token_ids),
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_groups_are_aligned_together(pairs, monkeypatch, name):
    """Groups of a call that end at different times are aligned in few passes, with the same weights as alone."""
    pair = pairs(name)
    sources = random_ids(97, [1, 3, 5, 7, 9, 11, 12, 12], seed=4)
    requests = [
        replace(generate(pair, i, source, attention=True, max_new_tokens=3 + i), call_id=99)
        for i, source in enumerate(sources)
    ]
    engine = pair.engine()
    model = engine.models[pair.name].generation.runner.model
    batches = []
    align = model.align

    def counted(source, target):
        batches.append(len(target.lengths))
        return align(source, target)

    monkeypatch.setattr(model, "align", counted)
    together = run(engine, requests)
    assert sum(batches) == len(sources) and len(batches) <= 2, batches
    assert not engine.has_work
    for i, request in enumerate(requests):
        alone = run(pair.engine(), [request]).finished[i].hypotheses[0]
        assert together.finished[i].hypotheses[0].token_ids == alone.token_ids
        np.testing.assert_allclose(
            attention_matrix(together.finished[i].hypotheses[0], sources[i]),
            attention_matrix(alone, sources[i]),
            atol=1e-5,
        )


class _NothingKept(dict):
    """A dictionary that stores nothing."""

    def __setitem__(self, key, value) -> None: ...


def test_sources_are_encoded_once(pairs, monkeypatch):
    """On a CPU, the encoder output of a source is kept for its attention weights. Computed again, it is the same."""
    pair = pairs("bart")
    requests = [generate(pair, i, source, attention=True) for i, source in enumerate(SOURCES)]
    engine = pair.engine()
    runner = engine.models[pair.name].generation.runner
    encoded = []
    encode = runner.model.encode

    def counted(batch):
        encoded.append(len(batch.lengths))
        return encode(batch)

    monkeypatch.setattr(runner.model, "encode", counted)
    kept = run(engine, requests)
    assert sum(encoded) == len(SOURCES) * (1 if runner.device.type == "cpu" else 2)
    encoded.clear()
    forgetful = pair.engine()
    monkeypatch.setattr(forgetful.models[pair.name].generation.runner, "_encoded", _NothingKept())
    again = run(forgetful, requests)
    assert sum(encoded) == 2 * len(SOURCES)
    for i, source in enumerate(SOURCES):
        np.testing.assert_allclose(
            attention_matrix(again.finished[i].hypotheses[0], source),
            attention_matrix(kept.finished[i].hypotheses[0], source),
            atol=1e-6,
        )


@pytest.mark.parametrize(("calls", "limit"), [((8, 8), "MAX_WAIT_STEPS"), ((8, 9), "MAX_FOREIGN_WAIT_STEPS")])
def test_an_ended_group_waits_for_a_few_steps_only(pairs, monkeypatch, calls, limit):
    """An ended group waits a limited number of steps for others to be aligned together with it.

    It waits longer for groups of its own call, because its client needs their results too.
    """
    pair = pairs("t5")
    assert alignment_queue.MAX_FOREIGN_WAIT_STEPS < alignment_queue.MAX_WAIT_STEPS
    steps = {}
    for wait in (1, 7):
        monkeypatch.setattr(alignment_queue, limit, wait)
        engine = pair.engine()
        for i, (call, tokens) in enumerate(zip(calls, (2, 30), strict=True)):
            message = generate(pair, i, SOURCES[2], attention=True, max_new_tokens=tokens, end_token_ids=[])
            engine.add(replace(message, call_id=call))
        ended, steps[wait] = [], 0
        while engine.has_work and not ended:
            output = engine.step()
            ended += [end.sequence_id for end in output.finished] if output is not None else []
            steps[wait] += 1
        assert ended == [0] and engine.has_work
        engine.abort(1)
        while engine.has_work:
            engine.step()
    assert steps[7] - steps[1] == 6


def test_a_dropped_request_is_not_aligned(pairs, monkeypatch):
    pair = pairs("t5")
    engine = pair.engine()
    monkeypatch.setattr(engine.models[pair.name].generation.runner.model, "align", None)
    engine.add(generate(pair, 0, SOURCES[2], attention=True, max_new_tokens=1))
    engine.add(generate(pair, 1, SOURCES[2], attention=True, max_new_tokens=30))
    engine.step()
    for sequence_id in (0, 1):
        engine.abort(sequence_id)
    assert not engine.has_work


def test_a_decoder_has_no_attention(pairs):
    pair = pairs("gpt2")
    assert "source text" in run(pair.engine(), [generate(pair, 0, [5, 6], attention=True)]).failed[0].message
