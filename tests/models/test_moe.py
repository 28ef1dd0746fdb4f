"""A mixture of experts equals its definition, computes no expert for tokens that do not use it, and mixes no tokens."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional as F

from models.config import FeedForwardConfig, MixtureOfExpertsConfig
from models.layers.moe import MixtureOfExperts
from models.loader import load_model
from tests.parity.checkpoints import load, save

EXPERT = FeedForwardConfig(12, "silu", gated=True, bias=False)


def mixture(num_experts=5, per_token=2, normalized=True, shared=None) -> MixtureOfExperts:
    torch.manual_seed(0)
    made = MixtureOfExperts(MixtureOfExpertsConfig(EXPERT, num_experts, per_token, normalized, shared), 8)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    return made.eval()


def by_definition(made: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """Every expert for every token, those that were not chosen with a share of zero."""
    probabilities = F.softmax(x @ made.router.weight.T, dim=-1)
    least = probabilities.topk(made.config.experts_per_token).values[:, -1:]
    shares = probabilities.where(probabilities >= least, 0.0)
    if made.config.normalized:
        shares = shares / shares.sum(-1, keepdim=True)
    outputs = torch.stack([expert(x) for expert in made.experts], dim=1)
    y = (outputs * shares[..., None]).sum(1)
    return y if made.shared is None else y + torch.sigmoid(x @ made.shared_gate.weight.T) * made.shared(x)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("shared", [None, FeedForwardConfig(6, "silu", gated=True, bias=False)], ids=["", "shared"])
@pytest.mark.parametrize("per_token", [1, 2, 5])
@torch.inference_mode()
def test_the_definition(normalized, shared, per_token):
    made, x = mixture(per_token=per_token, normalized=normalized, shared=shared), torch.randn(17, 8)
    torch.testing.assert_close(made(x), by_definition(made, x), atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_each_expert_computes_its_own_tokens_and_no_others():
    made, x = mixture(num_experts=8), torch.randn(6, 8)
    seen = [0] * 8
    for index, expert in enumerate(made.experts):
        expert.register_forward_pre_hook(lambda _, inputs, at=index: seen.__setitem__(at, len(inputs[0])))
    made(x)
    assert sum(seen) == 6 * 2
    assert seen == torch.bincount(made.route(x)[1].flatten(), minlength=8).tolist()
    assert made(x[:0]).shape == (0, 8)


@torch.inference_mode()
def test_a_token_alone_equals_the_token_in_a_crowd():
    made, x = mixture(), torch.randn(23, 8)
    alone = torch.cat([made(row[None]) for row in x])
    torch.testing.assert_close(made(x), alone, atol=1e-5, rtol=1e-5)
    # Negative control: with the shares of other tokens it would not be equal.
    shares, chosen = made.route(x)
    made.route = lambda _: (shares.roll(1, 0), chosen)
    assert not torch.allclose(made(x), alone, atol=1e-2)


@torch.inference_mode()
def test_a_token_that_is_not_finite_spoils_no_other():
    made, x = mixture(), torch.randn(9, 8)
    clean = made(x)
    x[4] = torch.nan
    spoiled = made(x)
    assert spoiled[4].isnan().all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    torch.testing.assert_close(spoiled[others], clean[others])


_SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe"])
def test_the_experts_of_a_file_one_by_one_or_together(family, tmp_path):
    """transformers writes a tensor for each expert; its modules, and files saved from them as they are, have two."""
    experts = {"num_local_experts": 4} if family == "Mixtral" else {"num_experts": 4, "moe_intermediate_size": 16}
    config = getattr(transformers, f"{family}Config")(**_SIZES, **_HEADS, **experts, num_experts_per_tok=2)
    oracle = save(tmp_path, config, f"{family}ForCausalLM")
    apart = load(tmp_path, torch.device("cpu")).transformer
    fused = {name: tensor.contiguous() for name, tensor in oracle.state_dict().items()}
    assert any(name.endswith("experts.gate_up_proj") for name in fused)
    save_file(fused, tmp_path / "model.safetensors")
    together = load(tmp_path, torch.device("cpu")).transformer
    for (name, one), (_, other) in zip(apart.named_parameters(), together.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_rounding_the_weights_leaves_the_router_as_it_is(tmp_path):
    """int8 rounds every expert, but not the choice among them."""
    experts = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20}
    config = transformers.Qwen2MoeConfig(**_SIZES, **_HEADS, **experts, num_experts_per_tok=2)
    save(tmp_path, config, "Qwen2MoeForCausalLM")
    plain = load(tmp_path, torch.device("cpu")).transformer
    rounded = load_model(tmp_path, torch.float32, torch.device("cpu"), quantization="int8").transformer
    kept = dict(rounded.named_parameters())
    gates = {name: gate for name, gate in plain.named_parameters() if "router" in name or "shared_gate" in name}
    assert len(gates) == 2 * 2 and all(torch.equal(kept[name], gate) for name, gate in gates.items())
    assert not any("experts" in name for name in kept)
    x = torch.randn(40, 32)
    for ours, theirs in zip(rounded.decoder.layers, plain.decoder.layers, strict=True):
        with torch.inference_mode():
            expected = theirs.feed_forward(x)
            assert (ours.feed_forward(x) - expected).abs().mean() < 0.03 * expected.std()
