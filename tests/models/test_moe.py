"""A mixture of experts equals its definition, and each expert computes only the tokens that use it."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional as F

from models.backends import choice
from models.checkpoint.loader import load_model
from models.config import FeedForwardConfig, MixtureOfExpertsConfig, RouterConfig
from models.layers.moe import MixtureOfExperts
from tests.parity.checkpoints import load, save

EXPERT = FeedForwardConfig(12, "silu", gated=True, bias=False)


def random_moe(num_experts=5, per_token=2, normalized=True, shared=None) -> MixtureOfExperts:
    torch.manual_seed(0)
    config = MixtureOfExpertsConfig(
        EXPERT, num_experts, per_token, RouterConfig(normalized), shared, shared_gate=shared is not None
    )
    moe = MixtureOfExperts(config, 8)
    for parameter in moe.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    return moe.eval()


def expected_output(moe: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """The reference: every expert computes every token, with weight 0 if the token does not use the expert."""
    probabilities = F.softmax(x @ moe.router.weight.T, dim=-1)
    smallest = probabilities.topk(moe.config.experts_per_token).values[:, -1:]
    expert_weights = probabilities.where(probabilities >= smallest, 0.0)
    if moe.config.router.normalized:
        expert_weights = expert_weights / expert_weights.sum(-1, keepdim=True)
    outputs = torch.stack([expert(x) for expert in moe.experts], dim=1)
    y = (outputs * expert_weights[..., None]).sum(1)
    return y if moe.shared is None else y + torch.sigmoid(x @ moe.shared_gate.weight.T) * moe.shared(x)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("shared", [None, FeedForwardConfig(6, "silu", gated=True, bias=False)], ids=["", "shared"])
@pytest.mark.parametrize("per_token", [1, 2, 5])
@torch.inference_mode()
def test_output_equals_its_definition(normalized, shared, per_token):
    moe, x = random_moe(per_token=per_token, normalized=normalized, shared=shared), torch.randn(17, 8)
    torch.testing.assert_close(moe(x), expected_output(moe, x), atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_each_expert_computes_only_its_own_tokens():
    moe, x = random_moe(num_experts=8), torch.randn(6, 8)
    counts = [0] * 8
    for index, expert in enumerate(moe.experts):
        expert.register_forward_pre_hook(lambda _, inputs, at=index: counts.__setitem__(at, len(inputs[0])))
    moe(x)
    assert sum(counts) == 6 * 2
    assert counts == torch.bincount(moe.router.choose(x)[1].flatten(), minlength=8).tolist()
    assert moe(x[:0]).shape == (0, 8)


@torch.inference_mode()
def test_token_in_a_batch_equals_the_token_alone():
    moe, x = random_moe(), torch.randn(23, 8)
    alone = torch.cat([moe(row[None]) for row in x])
    torch.testing.assert_close(moe(x), alone, atol=1e-5, rtol=1e-5)
    # Negative control: if tokens get the expert weights of other tokens, the outputs differ.
    expert_weights, experts = moe.router.choose(x)
    moe.router.choose = lambda _: (expert_weights.roll(1, 0), experts)
    assert not torch.allclose(moe(x), alone, atol=1e-2)


@torch.inference_mode()
def test_non_finite_token_changes_no_other_token():
    moe, x = random_moe(), torch.randn(9, 8)
    expected = moe(x)
    x[4] = torch.nan
    found = moe(x)
    assert found[4].isnan().all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    torch.testing.assert_close(found[others], expected[others])


_SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe"])
def test_separate_and_fused_expert_tensors_load_alike(family, tmp_path):
    """Checkpoints with a tensor per expert and matrix equal checkpoints with two fused tensors.

    transformers saves separate tensors, but its modules and some published files have fused tensors.
    """
    experts = {"num_local_experts": 4} if family == "Mixtral" else {"num_experts": 4, "moe_intermediate_size": 16}
    config = getattr(transformers, f"{family}Config")(**_SIZES, **_HEADS, **experts, num_experts_per_tok=2)
    oracle = save(tmp_path, config, f"{family}ForCausalLM")
    with choice.using("torch"):
        separate = load(tmp_path, torch.device("cpu")).transformer
    fused = {name: tensor.contiguous() for name, tensor in oracle.state_dict().items()}
    assert any(name.endswith("experts.gate_up_proj") for name in fused)
    save_file(fused, tmp_path / "model.safetensors")
    with choice.using("torch"):
        from_fused = load(tmp_path, torch.device("cpu")).transformer
    for (name, parameter), (_, other) in zip(separate.named_parameters(), from_fused.named_parameters(), strict=True):
        assert torch.equal(parameter, other), name


def test_the_correction_of_a_router_is_float32_in_every_dtype(tmp_path):
    """The correction of a router stays in float32, because rounding it would change which experts a token uses.

    The choice of experts depends on the correction; the shares do not.
    """
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 0, "num_experts_per_tok": 2}
    oracle = save(tmp_path, transformers.Glm4MoeConfig(**_SIZES, **_HEADS, **experts), "Glm4MoeForCausalLM")
    expected = oracle.model.layers[1].mlp.gate.e_score_correction_bias
    for dtype in (torch.bfloat16, torch.float32):
        moe = load(tmp_path, torch.device("cpu"), dtype).transformer.decoder.layers[1].feed_forward
        assert moe.router.correction.dtype == torch.float32 and torch.equal(moe.router.correction, expected)
    x = torch.randn(30, 32)
    shares, chosen = moe.router.choose(x)
    moe.router.correction[3] += 10
    others, experts = moe.router.choose(x)
    assert (experts == 3).any(1).all() and not (chosen == 3).any(1).all()
    stays = (chosen == 3).any(1)
    torch.testing.assert_close(shares[stays].sum(1), torch.ones(int(stays.sum())))
    torch.testing.assert_close(others.sum(1), torch.ones(30))


def test_int8_keeps_the_router_unquantised(saved):
    """int8 quantises all experts, but neither the router nor the gate of the shared expert."""
    experts = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20}
    config = transformers.Qwen2MoeConfig(**_SIZES, **_HEADS, **experts, num_experts_per_tok=2)
    directory = saved(config, "Qwen2MoeForCausalLM")
    with choice.using("torch"):
        plain = load(directory, torch.device("cpu")).transformer
    quantized = load_model(directory, torch.float32, torch.device("cpu"), quantization="int8").transformer
    x = torch.randn(40, 32)
    for ours, theirs in zip(quantized.decoder.layers, plain.decoder.layers, strict=True):
        for name in ("router", "shared_gate"):
            kept, gate = getattr(ours.feed_forward, name), getattr(theirs.feed_forward, name).weight
            assert torch.equal(kept.packed.rows(torch.arange(len(gate))), gate)
        with torch.inference_mode():
            expected = theirs.feed_forward(x)
            difference = (ours.feed_forward(x) - expected).abs().mean()
            assert 0 < difference < 0.03 * expected.std()
