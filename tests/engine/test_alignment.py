"""The `attention` of an answer equals the cross-attention of transformers, with and without beams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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

    Row i is computed while token i is predicted, so its query is the token before.
    """
    # With a cache, FSMT of transformers does not mask the later tokens of a text.
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
    # Negative control: a shift by one token gives another matrix.
    assert np.abs(attention_matrix(hypothesis, source)[1:] - torch.stack(steps).numpy()[:-1]).max() > 1e-2


@pytest.mark.parametrize("broken", ["raises", "not finite"])
def test_an_attention_error_fails_its_request_alone(pairs, monkeypatch, broken):
    pair = pairs("t5")
    engine = pair.engine()
    model = engine.models[pair.name].generation.runner.model

    def align(source, target):
        if broken == "raises":
            raise RuntimeError("out of memory")
        return torch.full((target.lengths[0], source.lengths[0]), torch.nan)

    monkeypatch.setattr(model, "align", align)
    requests = [generate(pair, i, SOURCES[2], attention=i == 1) for i in range(3)]
    results = run(engine, requests)
    assert results.failed[1].code == "engine_error" and "attention" in results.failed[1].message
    assert results.finished.keys() == {0, 2} and results.texts(0) == results.texts(2)


def test_a_decoder_has_no_attention(pairs):
    pair = pairs("gpt2")
    assert "source text" in run(pair.engine(), [generate(pair, 0, [5, 6], attention=True)]).failed[0].message
