"""Mixtures of experts in the compiled kernels equal the reference, and have the same bits in every batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.backends import linear_weights
from models.backends.choice import backend
from models.backends.torch.backend import TORCH
from models.checkpoint.pack_weights import CountingPacker
from models.config import FeedForwardConfig, MixtureOfExpertsConfig, RouterConfig
from models.layers.linear import Linear, set_parameter
from models.layers.moe import MixtureOfExperts
from tests.models.group_reference import ReferenceGroupWeight, ReferenceInt4Weight, ReferenceInt8GroupWeight
from tests.models.int8_reference import ReferenceInt8Weight
from tests.models.test_group_weight import FORMATS, flat

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
PLAIN = MixtureOfExpertsConfig(FeedForwardConfig(24, "silu", gated=True, bias=False), 5, 2, RouterConfig(True))
WIDE = MixtureOfExpertsConfig(FeedForwardConfig(70, "gelu", gated=True, bias=True), 9, 4, RouterConfig(False))
UNGATED = MixtureOfExpertsConfig(FeedForwardConfig(33, "relu", gated=False, bias=True), 3, 1, RouterConfig(False))
SHARED = replace(PLAIN, shared=FeedForwardConfig(40, "silu", gated=True, bias=False), shared_gate=True)
GROUPED = RouterConfig(True, "sigmoid", bias=True, correction=True, groups=3, groups_per_token=2, group_members=2)
SHARED_ALWAYS = MixtureOfExpertsConfig(
    FeedForwardConfig(24, "relu_squared"), 9, 3, GROUPED, FeedForwardConfig(40, "silu", gated=True, bias=False)
)
CLIPPED = MixtureOfExpertsConfig(
    FeedForwardConfig(70, "gelu_quick", gated=True, limit=0.5, up_offset=1.0), 5, 2, RouterConfig(True)
)
CONFIGS = {
    "plain": PLAIN,
    "wide": WIDE,
    "ungated": UNGATED,
    "shared": SHARED,
    "shared always": SHARED_ALWAYS,
    "clipped": CLIPPED,
}
HIDDEN = 45
REFERENCES = {"int8": ReferenceInt8GroupWeight, "int8-fast": ReferenceInt8Weight, "int4-128": ReferenceInt4Weight}


pytestmark = pytest.mark.usefixtures("kernels")


def random_moe(config, dtype, hidden=HIDDEN) -> MixtureOfExperts:
    torch.manual_seed(0)
    moe = MixtureOfExperts(config, hidden)
    for parameter in moe.parameters():
        parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    return moe.to(dtype).eval()


def packed(moe: MixtureOfExperts, quantization=None) -> MixtureOfExperts:
    dtype = moe.router.weight.dtype
    packers = [CountingPacker(linear_weights.packer(dtype, CPU, kind), dtype) for kind in (quantization, None)]
    packers.append(CountingPacker(linear_weights.packer(dtype, CPU, out_dtype=torch.float32), torch.float32))
    moe.pack(packers[0], packers[0], *packers)
    assert {name for name, _ in moe.named_parameters()} <= {"router.correction"} and packers[0].packed_bytes > 0
    return moe


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@torch.inference_mode()
def test_float_experts_equal_the_reference(isa, dtype, config):
    """Experts with float weights equal a reference in float64."""
    moe, x = packed(random_moe(config, dtype)), torch.randn(230, HIDDEN).to(dtype)
    expected = random_moe(config, dtype).double()
    for rows in (1, 7, 230):
        # The reference uses the same experts, because rounded logits may choose other experts than exact ones.
        expected.router.choose = lambda _, rows=rows: moe.router.choose(x[:rows])
        found = moe(x[:rows])
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.double(), expected(x[:rows].double()), atol=BOUNDS[dtype] * 2, rtol=BOUNDS[dtype]
        )


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@torch.inference_mode()
def test_quantized_experts_equal_the_reference(isa, dtype, config, kind):
    """Quantised experts equal a reference with the same rounding and exact sums."""
    moe, x = packed(random_moe(config, dtype), kind), torch.randn(50, HIDDEN).to(dtype)
    expected = random_moe(config, dtype)
    for module in [module for expert in expected.experts for module in expert.modules()]:
        if isinstance(module, Linear):
            module.use_packed(REFERENCES[kind](module.weight, module.bias))
    if expected.shared is not None:
        for linear in expected.shared.children():
            linear.use_packed(REFERENCES[kind](linear.weight, linear.bias))
    expected.router.choose = moe.router.choose
    difference = (moe(x).float() - expected(x).float()).abs()
    # Activations in the kernel and in torch differ in the last bit, so that some are rounded to another integer.
    assert difference.mean() < BOUNDS[dtype] / 4 and difference.max() < 0.05


STORED = {
    "Q4_K and Q6_K": (256, FORMATS["Q4_K"], FORMATS["Q6_K"]),
    "Q8_0 and Q4_0": (96, FORMATS["Q8_0"], lambda out, width: flat(out, width)),
    "GPTQ": (128, FORMATS["GPTQ"], FORMATS["symmetric GPTQ"]),
    "MXFP4": (64, FORMATS["MXFP4"], FORMATS["MXFP4"]),
    "int8 channels": (64, FORMATS["channels"], FORMATS["channels"]),
}


OFTEN_CLIPPED = replace(CLIPPED, expert=replace(CLIPPED.expert, limit=0.05))


@pytest.mark.parametrize("config", [WIDE, UNGATED, OFTEN_CLIPPED], ids=["wide", "ungated", "clipped"])
@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
@torch.inference_mode()
def test_experts_of_quantized_checkpoints_are_packed_as_they_are_stored(isa, config, stored):
    """Experts of quantised checkpoints equal products of dequantised weights and rounded activations.

    Their bits do not depend on the batch.
    """
    width, first, last = stored
    config = replace(config, expert=replace(config.expert, intermediate_size=width))
    moe, expected = random_moe(config, torch.float32, width), random_moe(config, torch.float32, width)
    dense_bytes = sum(parameter.nbytes for parameter in moe.experts.parameters())
    for expert, other in zip(moe.experts, expected.experts, strict=True):
        for name, linear in expert.named_children():
            matrix = (last if name == "down" else first)(width, width)
            set_parameter(linear, "weight", matrix)
            other.get_submodule(name).use_packed(ReferenceGroupWeight(matrix, linear.bias))
    x = torch.randn(40, width)
    packed(moe)
    assert sum(weight.nbytes for weight in (moe.packed._inner, moe.packed._outer)) < dense_bytes / 3
    expected.router.choose = moe.router.choose
    together = moe(x)
    reference = expected(x)
    # Activations that differ in their last bit may be rounded to another integer.
    assert (together - reference).norm() < 0.01 * reference.norm()
    for rows in (1, 2, 5):
        assert torch.equal(moe(x[rows : 2 * rows]), together[rows : 2 * rows])


@pytest.mark.parametrize("quantization", [None, *REFERENCES])
@pytest.mark.parametrize("config", [WIDE, SHARED], ids=["wide", "shared"])
@torch.inference_mode()
def test_bits_do_not_depend_on_other_tokens(isa, dtype, config, quantization):
    """The results of 400 tokens, which the kernel divides into tasks, equal those of 1 to 14 tokens."""
    moe, x = packed(random_moe(config, dtype), quantization), torch.randn(400, HIDDEN).to(dtype)
    together = moe(x)
    for rows in range(1, 15):
        assert torch.equal(moe(x[rows : 2 * rows]), together[rows : 2 * rows])


@torch.inference_mode()
def test_bits_do_not_depend_on_threads(dtype):
    config = MixtureOfExpertsConfig(FeedForwardConfig(512, "silu", gated=True, bias=False), 6, 2, RouterConfig(True))
    moe, x = packed(random_moe(config, dtype, 256)), torch.randn(33, 256).to(dtype)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(moe(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("quantization", [None, *REFERENCES])
@torch.inference_mode()
def test_experts_without_tokens_are_not_computed(dtype, quantization):
    """NaN in the weights of an expert that no token uses has no effect."""
    moe, x = random_moe(WIDE, dtype), torch.randn(1, HIDDEN).to(dtype)
    chosen = set(moe.router.choose(x)[1].flatten().tolist())
    expected = packed(random_moe(WIDE, dtype), quantization)(x)
    for index, expert in enumerate(moe.experts):
        if index not in chosen:
            expert.up.weight.fill_(torch.nan)
    assert len(chosen) < WIDE.num_experts
    assert torch.equal(packed(moe, quantization)(x), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("quantization", [None, *REFERENCES])
@torch.inference_mode()
def test_a_token_that_is_not_finite_affects_no_other_token(dtype, quantization, bad):
    moe, x = packed(random_moe(SHARED, dtype), quantization), torch.randn(9, HIDDEN).to(dtype)
    expected = moe(x)
    x[4, 7] = bad
    found = moe(x)
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert not found[4].isfinite().all() and torch.equal(found[others], expected[others])
    assert moe(x[:0]).shape == (0, HIDDEN)


ROUTERS = {
    "softmax": RouterConfig(False),
    "normalized": RouterConfig(True),
    "corrected": RouterConfig(True, correction=True, epsilon=1e-6),
    "sigmoid": RouterConfig(True, score="sigmoid", scale=2.5),
    "grouped": RouterConfig(
        True, score="sigmoid", correction=True, groups=4, groups_per_token=2, group_members=2, epsilon=1e-20
    ),
    "best of a group": RouterConfig(False, groups=2, groups_per_token=1, scale=16.0),
    "sparse mixer": RouterConfig(False, score="sparse_mixer", tolerance=0.1),
}


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize(("experts", "choices"), [(8, 2), (16, 4), (128, 8)])
def test_route(isa, dtype, experts, choices, router):
    """The kernel chooses the same experts and shares as the torch backend. Of equal logits, the first is chosen."""
    torch.manual_seed(0)
    logits = (torch.randn(90, experts + 3) * 3).round().div(2).to(dtype)[:, 1:-2]
    logits[5] = 0
    logits[6, 0] = 80
    correction = torch.randn(experts) if router.correction else None
    shares, chosen = backend(logits).route(logits, choices, router, correction)
    expected, indices = TORCH.route(logits, choices, router, correction)
    assert torch.equal(chosen, indices) and (router.correction or chosen[5].tolist() == list(range(choices)))
    torch.testing.assert_close(shares, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(backend(logits[7:8]).route(logits[7:8], choices, router, correction)[0], shares[7:8])


@pytest.mark.parametrize(("experts", "choices"), [(1, 1), (5, 2), (8, 8), (60, 4)])
@pytest.mark.parametrize("normalized", [True, False])
def test_route_to_any_number_of_experts(experts, choices, normalized):
    logits, router = torch.randn(40, experts), RouterConfig(normalized)
    found, expected = backend(logits).route(logits, choices, router, None), TORCH.route(logits, choices, router, None)
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
def test_route_of_logits_that_are_not_finite(isa, bad, router):
    """For logits with NaN or infinity, the indices of experts stay in range, and the shares are not finite."""
    logits, correction = torch.randn(4, 8), torch.zeros(8) if router.correction else None
    logits[1, 0] = logits[2, 5] = bad
    logits[3] = bad
    for computing in (backend(logits), TORCH):
        shares, experts = computing.route(logits, 3, router, correction)
        assert shares.isfinite().all(1).tolist() == [True, False, False, False] and not shares[1:].isfinite().any()
        assert all(len({*row}) == 3 and {*row} <= {*range(8)} for row in experts.tolist())
