"""Weights of 8 and 4 bits for the Triton kernels, compared with products of the dequantised weights."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from models.backends import choice, linear_weights
from models.backends.torch.activations import activate
from models.backends.torch.quantization import quantize_int4, quantize_int8
from models.checkpoint.kept_quantized import kept_quantized
from models.checkpoint.loader import load_model
from models.checkpoint.pack_weights import CountingPacker, Packers, _pack
from models.config import FeedForwardConfig, MixtureOfExpertsConfig, RouterConfig
from models.layers.linear import Linear
from models.layers.moe import MixtureOfExperts
from tests.cuda.test_backend import DEVICE, hidden_states
from tests.engine.tiny_checkpoints import DECODERS
from weights.quantized.fp8 import TABLE
from weights.quantized_matrix import QuantizedMatrix

HALF = torch.float16


def random(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.3).to(DEVICE)


def int8_matrix(rows: int, width: int) -> QuantizedMatrix:
    codes, scales = quantize_int8(random(rows, width))
    return QuantizedMatrix(codes, 8, width, scales[:, None])


def unsigned_matrix(rows: int, width: int, group: int, with_minimums: bool) -> QuantizedMatrix:
    """Codes from 0 to 15, with scales that are no float16 numbers."""
    codes = torch.randint(0, 16, (rows, width), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    groups = -(-width // group)
    scales = random(rows, groups).abs() + 1e-3
    return QuantizedMatrix(codes.to(DEVICE), 4, group, scales, random(rows, groups) if with_minimums else None)


def fp8_matrix(rows: int, width: int, group: int) -> QuantizedMatrix:
    """All finite fp8 numbers, with scales per output feature and group as a block-scaled checkpoint has them."""
    bits = torch.randint(0, 127, (rows, width), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    bits += torch.randint(0, 2, (rows, width), generator=torch.Generator().manual_seed(2), dtype=torch.uint8) * 128
    scales = (random(rows, -(-width // group)).abs() + 0.1) / 448
    return QuantizedMatrix(bits.to(DEVICE), 8, group, scales, table=TABLE.to(DEVICE))


def grouped_int8_matrix(rows: int, width: int, group: int) -> QuantizedMatrix:
    codes = torch.randint(-127, 128, (rows, width), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    return QuantizedMatrix(codes.to(DEVICE), 8, group, (random(rows, -(-width // group)).abs() + 0.1) / 127)


MATRICES = {
    "int8": lambda: int8_matrix(48, 40),
    "int8 in groups of 32": lambda: grouped_int8_matrix(48, 96, 32),
    "fp8 in blocks of 128": lambda: fp8_matrix(48, 300, 128),
    "fp8 in blocks of 96": lambda: fp8_matrix(48, 192, 96),
    "fp8 with a scale per output": lambda: fp8_matrix(48, 40, 40),
    "groups of 128": lambda: quantize_int4(random(48, 256), 128),
    "zero points": lambda: quantize_int4(random(48, 64), 32, True),
    "a width that is no multiple of 64": lambda: quantize_int4(random(48, 96), 32),
    "a group for a whole row": lambda: unsigned_matrix(48, 40, 40, True),
    "codes without minimums": lambda: unsigned_matrix(48, 64, 32, False),
}


@pytest.mark.parametrize("name", MATRICES)
@torch.inference_mode()
def test_a_matrix_multiplies_as_its_dequantised_weights(name: str) -> None:
    matrix, bias = MATRICES[name](), random(48).to(HALF)
    with choice.using("cuda"):
        assert linear_weights.has_kernel(matrix, HALF, DEVICE)
        weight = linear_weights.packer(HALF, DEVICE)(matrix, bias)
        wide = linear_weights.packer(HALF, DEVICE, out_dtype=torch.float32)(matrix, None)
        dense, x = matrix.dequantized(HALF).float(), random(3, matrix.shape[1]).to(HALF)
        expected = x.float() @ dense.T + bias.float()
        close(weight.multiply(x), expected)
        multiplier = random(3, 48).to(HALF)
        close(weight.multiply(x, "silu", multiplier), activate(expected, "silu") * multiplier.float())
        close(weight.slice(16, 48).multiply(x), expected[:, 16:])
        close(weight.rows(torch.tensor([5, 0, 47], device=DEVICE)), dense[[5, 0, 47]])
        close(weight.multiply(x[:1]), expected[:1])
        memory = torch.empty(5, 48, device=DEVICE)
        product = wide.multiply(x, out=memory)
    assert product.data_ptr() == memory.data_ptr() and product.dtype == torch.float32
    close(product, expected - bias.float())
    assert weight.nbytes < matrix.numel() * 2.1 + bias.nbytes


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.float(), expected, rtol=4e-3, atol=4e-3)


def test_other_matrices_have_no_kernel() -> None:
    table = torch.arange(16.0, device=DEVICE)
    codes = torch.zeros(8, 64, dtype=torch.uint8, device=DEVICE)
    others = [
        QuantizedMatrix(codes, 4, 32, random(8, 2), table=table),
        QuantizedMatrix(codes, 4, 16, random(8, 4)),
        QuantizedMatrix(codes, 6, 32, random(8, 2)),
        QuantizedMatrix(codes, 8, 32, random(8, 2)),
        QuantizedMatrix(codes, 8, 32, random(8, 2), table=torch.arange(256.0, device=DEVICE)),
        QuantizedMatrix(codes.to(torch.int8), 8, 32, random(8, 2), random(8, 2)),
        QuantizedMatrix(codes, 8, 16, random(8, 4), table=TABLE.to(DEVICE)),
    ]
    with choice.using("cuda"):
        assert not any(linear_weights.has_kernel(matrix, HALF, DEVICE) for matrix in others)


@pytest.mark.many_shapes
@pytest.mark.parametrize("quantization", ["int8", "int4-32-zero"])
@torch.inference_mode()
def test_a_quantised_model_computes_with_the_rounded_weights(saved, quantization: str) -> None:
    architecture, config = DECODERS["llama"]
    directory = saved(config, architecture)
    with choice.using("cuda"):
        model = load_model(directory, HALF, DEVICE, quantization=quantization).transformer
    actual = hidden_states(model, "cuda")
    with choice.using("torch"):
        rounded = load_model(directory, torch.float32, DEVICE).transformer
        for linear in (module for module in rounded.decoder.modules() if isinstance(module, Linear)):
            linear.weight.copy_(dequantised(linear.weight.to(HALF), quantization))
        table = rounded.decoder.tokens.weight
        if rounded.head.weight is None:
            table.copy_(dequantised(table.to(HALF), "int8"))
    for one, other in zip(actual, hidden_states(rounded, "torch"), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)
    packed = model.decoder.layers[0].feed_forward
    assert packed.merged is not None and type(packed.down.packed).__name__ != "DenseWeight"


def dequantised(weight: torch.Tensor, quantization: str) -> torch.Tensor:
    if quantization == "int8":
        codes, scales = quantize_int8(weight)
        return codes.float() * scales[:, None]
    return linear_weights._rounded(weight, quantization).dequantized(torch.float32)


def random_experts(with_bias: bool) -> MixtureOfExperts:
    """A mixture of three gated experts, with a shared expert, dense and in float32."""
    expert = FeedForwardConfig(72, "silu", gated=True, bias=with_bias)
    config = MixtureOfExpertsConfig(expert, 3, 2, RouterConfig(normalized=True), shared=expert, shared_gate=True)
    mixture = MixtureOfExperts(config, 96).to(DEVICE)
    for parameter in mixture.parameters():
        parameter.copy_(random(*parameter.shape))
    return mixture


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("quantization", [None, "int8", "int4-32-zero", "int4"])
@torch.inference_mode()
def test_experts_compute_with_the_rounded_weights(quantization: str | None, with_bias: bool) -> None:
    mixture, x = random_experts(with_bias).to(HALF), random(11, 96).to(HALF)
    rounded = deepcopy(mixture).float()
    for name, linear in rounded.named_modules():
        is_rounded = isinstance(linear, Linear) and name not in ("router", "shared_gate")
        if is_rounded and quantization is not None:
            linear.weight.copy_(dequantised(linear.weight.to(HALF), quantization))
    with choice.using("torch"):
        expected = rounded(x.float())
    with choice.using("cuda"):
        packers = [
            CountingPacker(linear_weights.packer(HALF, DEVICE, kind, HALF), HALF) for kind in (quantization, None)
        ]
        _pack(nn.ModuleList([mixture]), Packers(*packers[:1] * 5, *packers[1:] * 2), merges=True)
        actual = mixture(x)
    torch.testing.assert_close(actual.float(), expected, rtol=2e-2, atol=2e-2)
    assert mixture.packed is not None and mixture.shared_gate.packed.nbytes == 2 * 96
    if quantization == "int8":
        assert packers[0].packed_bytes < 1.2 * 4 * 3 * 72 * 96


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_matrices_of_experts_are_kept(saved, kind: str) -> None:
    architecture, config = DECODERS["mixtral"]
    with choice.using("torch"):
        model = load_model(saved(config, architecture), HALF, DEVICE).transformer
    names = [
        name for name, parameter in model.named_parameters() if parameter.dim() == 2 and "decoder.layers.0" in name
    ]
    shapes = {name: model.get_parameter(name).shape for name in names}
    matrices = {
        name: int8_matrix(*shape) if kind == "int8" else quantize_int4(random(*shape), 32)
        for name, shape in shapes.items()
    }
    with choice.using("cuda"):
        kept = kept_quantized(model, HALF, DEVICE, matrices)
        assert set(kept) == {name for name in names if "router" not in name}
        some = {name: matrix for name, matrix in matrices.items() if "experts.1.up" not in name}
        kept = kept_quantized(model, HALF, DEVICE, some)
        assert not any("experts" in name and "down" not in name for name in kept), "all experts, or none"
