"""Falcon with ALiBi equals transformers with its default attention, which rounds the bias of a position to bfloat16.

The tests do not use the eager attention of transformers, because it adds the bias twice.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from models.config import AlibiConfig
from models.layers.positions import Alibi
from models.stack import Stack
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from tests.engine.harness import Pair, generate, reference, run
from tests.parity.checkpoints import load, random_ids, write_model
from tests.parity.paged import Rows, chunked, one_by_one, one_shot

VOCAB = 97
LENGTHS = (1, 7, 33, 300, 12)
_BASE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "alibi": True, "eos_token_id": 2}
SHAPES = {
    "in-turn-biases": {"num_attention_heads": 4, "bias": True, "multi_query": False, "parallel_attn": False},
    "side-by-side-six-heads": {"hidden_size": 36, "num_attention_heads": 6},
    "grouped": {"num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True},
}


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device):
    directory = tmp_path_factory.mktemp(request.param)
    config = transformers.FalconConfig(**{**_BASE, **SHAPES[request.param]}, max_position_embeddings=512)
    write_model(directory, config, "FalconForCausalLM")
    oracle = transformers.FalconForCausalLM.from_pretrained(directory, attn_implementation="sdpa").eval().to(device)
    spec = ModelSpec("falcon", str(directory), "float32")
    return Pair("falcon", oracle, LoadedCheckpoint(spec, load(directory, device), torch.float32, device, 0.0))


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
@torch.inference_mode()
def test_logits(pair, way):
    model, texts = pair.loaded.model.transformer, random_ids(VOCAB, LENGTHS)
    for text, hidden in zip(texts, way(Rows(model, num_blocks=256), texts), strict=True):
        expected = pair.oracle(torch.tensor([text], device=model.device)).logits[0]
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 4}], ids=["greedy", "beams"])
def test_answers(pair, settings):
    prompts = random_ids(VOCAB, (1, 9, 30, 280))
    requests = [generate(pair, i, prompt, max_new_tokens=20, **settings) for i, prompt in enumerate(prompts)]
    results = run(pair.engine(max_batch_tokens=64), requests)
    for i, prompt in enumerate(prompts):
        assert results.texts(i) == reference(pair, prompt, max_new_tokens=20, **settings)[0]


@torch.inference_mode()
def test_unrounded_alibi_is_detected(pair, monkeypatch):
    """Negative control: with an unrounded bias, as in the ALiBi paper, logits differ by more than the tolerance."""
    model, (text,) = pair.loaded.model.transformer, random_ids(VOCAB, (300,))
    lines = model.config.decoder.score_bias

    def by_distance(self, length):
        return lines.scale * Alibi(AlibiConfig(lines.slopes))(length, torch.float32, model.device)

    monkeypatch.setattr(Stack, "bias", by_distance)
    (hidden,) = one_shot(Rows(model), [text])
    expected = pair.oracle(torch.tensor([text], device=model.device)).logits[0]
    assert (model.logits(hidden) - expected).abs().max() > 1e-3
