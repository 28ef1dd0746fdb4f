"""Make random quantised matrices in published formats, one value at a time.

Each function returns the stored tensors of one layer, by the ending of their names, and the weights that they stand
for, [out, in] in float64. Bits are written with Python integers, so that the code has nothing in common with our
readers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]


def words(numbers: Sequence[int], bits: int) -> list[int]:
    """Pack integers of `bits` bits into signed 32-bit words, from the lowest bit on."""
    stream = sum(number << (index * bits) for index, number in enumerate(numbers))
    count = -(-len(numbers) * bits // 32)
    unsigned = [(stream >> (32 * index)) & 0xFFFFFFFF for index in range(count)]
    return [word - (1 << 32) if word >> 31 else word for word in unsigned]


def packed_columns(codes: Tensor, bits: int) -> Tensor:
    """Pack the codes of each column: [rows, columns] → [rows * bits / 32, columns], int32."""
    return torch.tensor([words(column.tolist(), bits) for column in codes.T], dtype=torch.int32).T.contiguous()


def packed_rows(codes: Tensor, bits: int) -> Tensor:
    """Pack the codes of each row: [rows, columns] → [rows, columns * bits / 32], int32."""
    return torch.tensor([words(row.tolist(), bits) for row in codes], dtype=torch.int32)


def random_codes(out: int, width: int, bits: int, groups: int, symmetric: bool, seed: int) -> tuple[Tensor, ...]:
    """Random codes, [out, in], scales rounded to float16, [out, groups], and zero points, [out, groups]."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (out, width), generator=generator)
    scales = (torch.rand(out, groups, generator=generator) * 0.02 + 0.002) * 8 / (1 << bits)
    zeros = torch.full((out, groups), 1 << (bits - 1))
    if not symmetric:
        # A zero point of 0 cannot be stored by version 1 of GPTQ.
        zeros = torch.randint(1, 1 << bits, (out, groups), generator=generator)
    return codes, scales.half(), zeros


def gptq(
    out: int,
    width: int,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    version: int = 1,
    act_order: bool = False,
    seed: int = 0,
) -> Stored:
    """GPTQ, as AutoGPTQ stores it. act_order: the groups follow a random order of the inputs (`desc_act`)."""
    groups = -(-width // group)
    codes, scales, zeros = random_codes(out, width, bits, groups, symmetric, seed)
    index = torch.arange(width) // group
    if act_order:
        index = index[torch.randperm(width, generator=torch.Generator().manual_seed(seed))]
    weights = (codes - zeros[:, index]).double() * scales.double()[:, index]
    return {
        "qweight": packed_columns(codes.T, bits),
        "qzeros": packed_rows(zeros.T - (1 if version == 1 else 0), bits),
        "scales": scales.T.contiguous(),
        "g_idx": index.int(),
    }, weights


def awq(out: int, width: int, group: int = 32, seed: int = 0) -> Stored:
    """AWQ, as AutoAWQ's version `gemm` stores it."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    codes, scales, zeros = random_codes(out, width, 4, -(-width // group), False, seed)
    index = torch.arange(width) // group

    def reordered(numbers: Tensor) -> Tensor:
        return torch.stack([numbers[:, 8 * (place // 8) + order[place % 8]] for place in range(out)], 1)

    return {
        "qweight": packed_rows(reordered(codes.T), 4),
        "qzeros": packed_rows(reordered(zeros.T), 4),
        "scales": scales.T.contiguous(),
    }, (codes - zeros[:, index]).double() * scales.double()[:, index]


def fp8(out: int, width: int, block: tuple[int, int] | None = None, channel: bool = False, seed: int = 0) -> Stored:
    """fp8 with a scale per `block`, per output (`channel`), or for the whole matrix."""
    generator = torch.Generator().manual_seed(seed)
    numbers = (torch.randn(out, width, generator=generator) * 40).to(torch.float8_e4m3fn)
    rows, columns = block or ((1, width) if channel else (out, width))
    scales = torch.rand(-(-out // rows), -(-width // columns), generator=generator) * 1e-3 + 1e-4
    wide = scales.double().repeat_interleave(rows, 0)[:out].repeat_interleave(columns, 1)[:, :width]
    name = "weight_scale_inv" if block else "weight_scale"
    stored = scales if block or channel else scales.reshape(())
    return {"weight": numbers, name: stored}, numbers.double() * wide


def compressed(out: int, width: int, arguments: dict[str, Any], name: str, seed: int = 0) -> Stored:
    """compressed-tensors, written and read back by that package.

    arguments: the settings `weights` in a group of `config_groups`. name: the package's name for the format, for
        example `pack-quantized`.
    """
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, width, generator=generator) * 0.05
    group, block = arguments.get("group_size"), arguments.get("block_structure")
    shapes = {"group": (out, -(-width // (group or width))), "channel": (out, 1), "tensor": (1,)}
    blocks = None if block is None else (-(-out // block[0]), -(-width // block[1]))
    shape = blocks or shapes[arguments["strategy"]]
    most = 448 if arguments["type"] == "float" else 1 << (arguments["num_bits"] - 1)
    scales = (torch.rand(shape, generator=generator) * 0.5 + 0.75) * 0.2 / most
    module = {"weight": weight, "weight_scale": scales.bfloat16().float()}
    if not arguments["symmetric"]:
        module["weight_zero_point"] = torch.randint(-3, 4, shape, generator=generator, dtype=torch.int8)
    compressor = BaseCompressor.get_value_from_registry(name)
    stored = compressor.compress(module, scheme)
    return {key: value.contiguous() for key, value in stored.items()}, compressor.decompress(stored, scheme)[
        "weight"
    ].double()


def mxfp4(
    experts: int, out: int, width: int, exponents_from: int = 110, exponents_to: int = 140, seed: int = 0
) -> Stored:
    """MXFP4 experts, as GPT-OSS stores them. Returns the weights as [experts, out, in]."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 16, (experts, out, width // 32, 32), generator=generator)
    exponents = torch.randint(exponents_from, exponents_to, (experts, out, width // 32), generator=generator)
    signs, powers, fractions = numbers >> 3, (numbers >> 1) & 3, numbers & 1
    # Sign, two bits of exponent with bias 1, one bit of fraction. With exponent 0, the fraction counts 1/2.
    sizes = torch.where(powers == 0, fractions * 0.5, (1 + fractions * 0.5) * 2.0 ** (powers - 1))
    weights = (1 - 2 * signs) * sizes.double() * 2.0 ** (exponents - 127).double()[..., None]
    return {
        "_blocks": (numbers[..., ::2] | (numbers[..., 1::2] << 4)).to(torch.uint8),
        "_scales": exponents.to(torch.uint8),
    }, weights.flatten(-2)


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
"""Absolute values of 4-bit floating-point numbers by their low three bits. The highest bit is the sign."""


def nvfp4(out: int, width: int, seed: int = 0, *, divides: bool = False) -> Stored:
    """NVFP4 as Model Optimizer stores it. divides: as compressed-tensors does, with a global scale that divides."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (out, width), generator=generator)
    scales = (torch.rand(out, width // 16, generator=generator) * 300 + 1).to(torch.float8_e4m3fn)
    factor = torch.tensor(3e-4)
    table = torch.tensor([*E2M1, *(-size for size in E2M1)], dtype=torch.float64)
    weights = table[codes] * scales.double().repeat_interleave(16, 1)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    if divides:
        inverse = torch.tensor([1 / float(factor)])
        stored = {"weight_packed": packed.byte(), "weight_scale": scales, "weight_global_scale": inverse}
        return stored, weights / inverse.double()
    stored = {"weight": packed.byte(), "weight_scale": scales, "weight_scale_2": factor}
    return stored, weights * factor.double()


_NEGATIVE = (-1.0, -0.69619, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105)
NF4 = (*_NEGATIVE, 0.0, 0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1.0)
"""The 16 values of NF4, in the order of their codes, to five decimals."""


def nested_nf4(out: int, width: int, block: int = 64, nested: int = 4, seed: int = 0) -> Stored:
    """NF4 with quantised scales, as bitsandbytes stores it. nested: number of scales that share a scale."""
    generator = torch.Generator().manual_seed(seed)
    count = out * width
    blocks = -(-count // block)
    codes = torch.randint(0, 16, (count + count % 2,), generator=generator)
    scale_codes = torch.randint(0, 256, (blocks,), generator=generator)
    units = torch.rand(-(-blocks // nested), generator=generator) * 0.02 + 0.01
    values, offset = torch.linspace(-1, 1, 256), 0.0625
    scales = [float(values[code]) * float(units[i // nested]) + offset for i, code in enumerate(scale_codes.tolist())]
    table = torch.tensor(NF4)
    weights = [float(table[code]) * scales[i // block] for i, code in enumerate(codes[:count].tolist())]
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [out, width]}
    state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": offset}
    return {
        "weight": (codes[::2] << 4 | codes[1::2]).byte()[:, None],
        "weight.absmax": scale_codes.byte(),
        "weight.quant_map": table,
        "weight.nested_absmax": units,
        "weight.nested_quant_map": values,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }, torch.tensor(weights, dtype=torch.float64).view(out, width)


def llm_int8(out: int, width: int, seed: int = 0) -> Stored:
    """int8 with a scale per output, as bitsandbytes stores it."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (out, width), generator=generator, dtype=torch.int8)
    largest = torch.rand(out, generator=generator) * 0.1 + 0.01
    parts = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, codes.double() * largest.double()[:, None] / 127
