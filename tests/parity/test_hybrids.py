"""Decoders with mixers, on texts of several chunks: results equal transformers, with the same bits for every split."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.backends import choice
from models.config import CHUNK_TOKENS
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.hybrid_cases import HYBRIDS, VOCAB, remember
from tests.parity.paged import Rows, encoder_batch, greedy, one_by_one

LENGTHS = (2 * CHUNK_TOKENS + 21, 5, CHUNK_TOKENS, CHUNK_TOKENS + 1)


@pytest.fixture(
    scope="module", params=["qwen3_5", "olmo_hybrid", "lfm2", "granitemoehybrid", "falcon_h1", "nemotron_h", "mamba2"]
)
def pair(request, tmp_path_factory, device):
    architecture, config = HYBRIDS[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    oracle = save(directory, config, architecture, change=remember).to(device)
    return oracle, load(directory, device).transformer


@torch.inference_mode()
def expected(oracle, text) -> torch.Tensor:
    return oracle(torch.tensor([text], device=oracle.device)).logits[0]


@torch.inference_mode()
def test_several_chunks(pair):
    """Results are the same for a prompt in one step, divided at multiples of `CHUNK_TOKENS`, and in encoder batches."""
    oracle, model = pair
    texts = random_ids(VOCAB, LENGTHS)
    rows = Rows(model)
    rows.expect(texts)
    whole = rows.feed(dict(enumerate(texts)))
    for text, hidden in zip(texts, whole, strict=True):
        torch.testing.assert_close(model.logits(hidden), expected(oracle, text), atol=2e-4, rtol=2e-4)
    cut = Rows(model)
    cut.expect(texts)
    parts = [cut.feed({0: texts[0][:CHUNK_TOKENS]})[0]]
    (first, second) = cut.feed({1: texts[1], 0: texts[0][CHUNK_TOKENS : 2 * CHUNK_TOKENS]})
    parts += [second, cut.feed({2: texts[2], 0: texts[0][2 * CHUNK_TOKENS :]})[1]]
    encoded = model.encode(encoder_batch(texts, model.device))
    # The products of other backends depend on the number of rows.
    atol = 0.0 if choice.runs_kernels(encoded) else 1e-4
    torch.testing.assert_close(first, whole[1], atol=atol, rtol=0.0)
    torch.testing.assert_close(torch.cat(parts), whole[0], atol=atol, rtol=0.0)
    torch.testing.assert_close(encoded, torch.cat(whole), atol=atol, rtol=0.0)


@torch.inference_mode()
def test_token_by_token(pair):
    """Mixers that take one token after the other equal transformers, from the start and after a chunked prompt."""
    oracle, model = pair
    texts = random_ids(VOCAB, (CHUNK_TOKENS + 9, 3))
    for text, hidden in zip(texts, one_by_one(Rows(model), texts), strict=True):
        torch.testing.assert_close(model.logits(hidden), expected(oracle, text), atol=2e-4, rtol=2e-4)
    prompts = random_ids(VOCAB, (CHUNK_TOKENS + 6, 2))
    for prompt, answer in zip(prompts, greedy(Rows(model), prompts, 12), strict=True):
        logits = expected(oracle, prompt + answer)
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@torch.inference_mode()
def test_published_convolutions_of_olmo_hybrid(tmp_path, device):
    """Published files have convolutions of different widths for queries, keys and values, and other names of norms.

    transformers reads them, but saves three equal parts.
    """
    architecture, config = HYBRIDS["olmo_hybrid"]
    config = type(config)(**{**config.to_dict(), "linear_value_head_dim": 10})
    save(tmp_path, config, architecture)
    tensors = load_file(tmp_path / "model.safetensors")
    published = {name: tensor for name, tensor in tensors.items() if "conv1d" not in name}
    for layer in (0, 1, 2):
        part = f"model.layers.{layer}.linear_attn.{{}}_conv1d.weight"
        joined = torch.cat([tensors[part.format(name)] for name in "qkv"])
        published |= {
            part.format(name): own.contiguous() for name, own in zip("qkv", joined.split((24, 24, 40)), strict=True)
        }
    published["model.layers.3.post_attention_layernorm.weight"] = published.pop(
        "model.layers.3.feedforward_layer_norm.weight"
    )
    save_file(published, tmp_path / "model.safetensors", {"format": "pt"})
    oracle = getattr(transformers, architecture).from_pretrained(tmp_path, attn_implementation="eager").to(device)
    model, (text,) = load(tmp_path, device).transformer, random_ids(VOCAB, (CHUNK_TOKENS + 9,))
    (hidden,) = one_by_one(Rows(model), [text])
    torch.testing.assert_close(model.logits(hidden), expected(oracle, text), atol=2e-4, rtol=2e-4)


@torch.inference_mode()
def test_limited_time_steps(tmp_path, device):
    """Nemotron-H limits time steps in the prompt only, so generation differs from one pass over the whole text."""
    architecture, config = HYBRIDS["nemotron_h"]
    config = transformers.NemotronHConfig(**{**config.to_dict(), "time_step_min": 1.5})
    oracle = save(tmp_path, config, architecture).to(device)
    prompts = random_ids(VOCAB, (9, 4))
    answers = greedy(Rows(load(tmp_path, device).transformer), prompts, 12)
    for prompt, answer in zip(prompts, answers, strict=True):
        settings = {"max_new_tokens": 12, "do_sample": False, "use_cache": True, "eos_token_id": VOCAB + 1}
        text = oracle.generate(torch.tensor([prompt], device=device), pad_token_id=0, **settings)
        assert answer == text[0, len(prompt) :].tolist()
