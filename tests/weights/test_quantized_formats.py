"""Formats of quantised checkpoints: matrices have the weights that the format defines, and errors name the damage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from models.families.shared.mixture_of_experts import unstack
from tests.weights import quantized_recipes as recipes
from tests.weights.quantized_checks import MODULE, NF4_CONFIG, OUT, WIDTH, assert_weights, matrix, stored
from weights.errors import WeightsError
from weights.quantized.formats import FORMATS, quantized_format
from weights.quantized.parts import unpack
from weights.quantized_matrix import QuantizedMatrix
from weights.rules import Rule
from weights.stored import StoredMatrix, StoredTensor

PACKED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}


def gptq_config(**settings: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, **settings}


def compressed_config(weights: dict[str, Any], name: str = "pack-quantized", **settings: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": groups, **settings}


def test_numbers_of_all_widths_are_unpacked() -> None:
    generator = torch.Generator().manual_seed(1)
    for bits in range(2, 9):
        for count in (1, 7, 32, 33, 100):
            numbers = torch.randint(0, 1 << bits, (3, count), generator=generator)
            assert torch.equal(unpack(recipes.packed_rows(numbers, bits), bits, count).long(), numbers), (bits, count)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq(bits: int, version: int, symmetric: bool) -> None:
    tensors, expected = recipes.gptq(OUT, WIDTH, bits, 32, symmetric, version)
    config = gptq_config(bits=bits, sym=symmetric, checkpoint_format="gptq" if version == 1 else "gptq_v2")
    layout = assert_weights(config, tensors, expected).layout
    assert (layout.group, layout.bits, layout.minimums is None) == (32, bits, symmetric)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_with_inputs_in_the_order_of_their_activations(symmetric: bool) -> None:
    tensors, expected = recipes.gptq(OUT, WIDTH, symmetric=symmetric, act_order=True)
    assert_weights(gptq_config(desc_act=True), tensors, expected)
    tensors, expected = recipes.gptq(OUT, WIDTH, symmetric=symmetric)
    assert assert_weights(gptq_config(desc_act=True), tensors, expected).layout.group == 32


def test_gptq_with_one_group_a_row_is_int8_as_the_kernels_have_it() -> None:
    tensors, expected = recipes.gptq(OUT, WIDTH, 8, WIDTH)
    layout = assert_weights(gptq_config(bits=8, group_size=-1), tensors, expected).layout
    assert layout.codes.dtype == torch.int8 and layout.scales.shape == (OUT, 1) and layout.minimums is None


def test_gptq_with_other_settings_for_some_modules() -> None:
    tensors, expected = recipes.gptq(OUT, WIDTH, 8, 64)
    dynamic = {"-:.*down_proj": {}, r"+:.*\.up_proj": {"bits": 8, "group_size": 64}}
    assert_weights(gptq_config(dynamic=dynamic), tensors, expected)


@pytest.mark.parametrize("group", [32, WIDTH])
def test_awq(group: int) -> None:
    tensors, expected = recipes.awq(OUT, WIDTH, group)
    config = {"quant_method": "awq", "bits": 4, "group_size": group if group < WIDTH else -1, "version": "GEMM"}
    assert_weights(config, tensors, expected)


@pytest.mark.parametrize("block", [(128, 128), (32, 64)])
@pytest.mark.parametrize("shape", [(96, 128), (130, 200)])
def test_fp8_in_blocks(block: tuple[int, int], shape: tuple[int, int]) -> None:
    tensors, expected = recipes.fp8(*shape, block)
    assert_weights({"quant_method": "fp8", "weight_block_size": list(block)}, tensors, expected)


@pytest.mark.parametrize("channel", [True, False])
@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8"])
def test_fp8_with_scales_of_rows_or_one_scale(channel: bool, method: str) -> None:
    tensors, expected = recipes.fp8(OUT, WIDTH, channel=channel)
    assert_weights({"quant_method": method}, tensors, expected)


def test_fp8_has_the_weights_that_transformers_dequantizes() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    tensors, _ = recipes.fp8(256, 384, (128, 128))
    theirs = Fp8Dequantize(None)._dequantize_one(tensors["weight"], tensors["weight_scale_inv"], torch.float32)
    found = matrix({"quant_method": "fp8", "weight_block_size": [128, 128]}, tensors)
    assert torch.equal(found.read().dequantized(torch.float32), theirs)


def mxfp4_matrices(tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    quantized = quantized_format({"quantization_config": {"quant_method": "mxfp4"}})
    assert quantized is not None
    return quantized.matrices(
        {
            f"experts.gate_up_proj{ending}": StoredTensor(
                tuple(tensor.shape), tensor.dtype, "model.safetensors", tensor.detach
            )
            for ending, tensor in tensors.items()
        }
    )


def test_mxfp4_has_the_weights_of_the_format_and_those_that_transformers_dequantizes() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, expected = recipes.mxfp4(3, 10, 64)
    found = mxfp4_matrices(tensors)["experts.gate_up_proj_blocks"]
    assert tuple(found.layout.shape) == (3, 10, 64) and found.layout.is_meta and found.layout.group == 32
    read = found.read().dequantized(torch.float64)
    assert torch.equal(read, expected)
    theirs = convert_moe_packed_tensors(tensors["_blocks"], tensors["_scales"], dtype=torch.float32)
    assert torch.equal(read.float().transpose(1, 2), theirs)


@pytest.mark.parametrize("shape", [(3, 10, 2, 8), (3, 10, 32)])
def test_mxfp4_of_another_shape_is_no_matrix(shape: tuple[int, ...]) -> None:
    tensors, _ = recipes.mxfp4(3, 10, 64)
    found = mxfp4_matrices({**tensors, "_blocks": torch.zeros(shape, dtype=torch.uint8)})
    with pytest.raises(ValueError, match="_blocks"):
        _ = found["experts.gate_up_proj_blocks"].layout


def test_mxfp4_without_a_scale_is_not_finite() -> None:
    tensors, _ = recipes.mxfp4(1, 2, 32)
    tensors["_scales"][0, 1, 0] = 255
    assert not mxfp4_matrices(tensors)["experts.gate_up_proj_blocks"].read().is_finite()


def test_fp8_experts_in_one_tensor() -> None:
    parts = [recipes.fp8(64, 128, (32, 64), seed=seed) for seed in range(3)]
    tensors = {
        "gate_up_proj": torch.stack([tensors["weight"].view(torch.uint8) for tensors, _ in parts]).view(
            torch.float8_e4m3fn
        ),
        "gate_up_proj_scale_inv": torch.stack([tensors["weight_scale_inv"] for tensors, _ in parts]),
    }
    quantized = quantized_format({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 64]}})
    assert quantized is not None
    (found,) = quantized.matrices(stored(tensors, "model.layers.0.mlp.experts")).values()
    expected = torch.stack([weights for _, weights in parts])
    assert isinstance(found, StoredMatrix)
    torch.testing.assert_close(found.read().dequantized(torch.float64), expected, rtol=3e-7, atol=1e-9)
    rule = Rule(".*", tuple("abcdef"), (unstack(3, 2),))
    assert all(tuple(part.shape) == (32, 128) for part in rule.change(found.layout))
    for ours, theirs in zip(rule.change(found.read()), expected.view(6, 32, 128), strict=True):
        assert isinstance(ours, QuantizedMatrix), "each expert keeps its codes"
        torch.testing.assert_close(ours.dequantized(torch.float64), theirs, rtol=3e-7, atol=1e-9)


PACKED_CASES = {
    "4 bits": PACKED,
    "8 bits": {**PACKED, "num_bits": 8},
    "3 bits": {**PACKED, "num_bits": 3},
    "zero points": {**PACKED, "symmetric": False},
    "zero points of 3 bits": {**PACKED, "num_bits": 3, "symmetric": False},
    "rows": {**PACKED, "strategy": "channel", "group_size": None},
}


@pytest.mark.parametrize("arguments", PACKED_CASES.values(), ids=PACKED_CASES)
def test_packed_compressed_tensors(arguments: dict[str, Any]) -> None:
    tensors, expected = recipes.compressed(OUT, WIDTH, arguments, "pack-quantized")
    assert_weights(compressed_config(arguments), tensors, expected)


def test_packed_compressed_tensors_of_other_versions() -> None:
    tensors, expected = recipes.compressed(OUT, WIDTH, PACKED_CASES["zero points"], "pack-quantized")
    zeros = torch.randint(-8, 8, (OUT, WIDTH // 32), dtype=torch.int8)
    codes = unpack(tensors["weight_packed"], 4, WIDTH).double() - 8
    index = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(2)) // 32
    expected = (codes - zeros.double()[:, index]) * tensors["weight_scale"].double()[:, index]
    tensors |= {"weight_zero_point": zeros, "weight_g_idx": index.int()}
    assert_weights(compressed_config({**PACKED, "symmetric": False, "actorder": "group"}), tensors, expected)


PLAIN_CASES = {
    "int8 rows": (INT8, "int-quantized"),
    "int8 tensor": ({**INT8, "strategy": "tensor"}, "int-quantized"),
    "int8 groups": ({**INT8, "strategy": "group", "group_size": 32}, "naive-quantized"),
    "int8 zero points": ({**INT8, "symmetric": False}, "int-quantized"),
    "fp8 rows": (FLOAT, "float-quantized"),
    "fp8 tensor": ({**FLOAT, "strategy": "tensor"}, "float-quantized"),
    "fp8 groups": ({**FLOAT, "strategy": "group", "group_size": 32}, "naive-quantized"),
    "fp8 blocks": ({**FLOAT, "strategy": "block", "block_structure": [32, 64]}, "float-quantized"),
}


@pytest.mark.parametrize(("arguments", "name"), PLAIN_CASES.values(), ids=PLAIN_CASES)
def test_plain_compressed_tensors(arguments: dict[str, Any], name: str) -> None:
    tensors, expected = recipes.compressed(OUT, WIDTH, arguments, name)
    assert_weights(compressed_config(arguments, name), tensors, expected)


def test_the_most_specific_target_of_a_module_applies() -> None:
    tensors, expected = recipes.compressed(OUT, WIDTH, {**PACKED, "group_size": 64}, "pack-quantized")
    other = {"targets": ["Linear"], "weights": PACKED}
    for target in (MODULE, r"re:.*up_proj$"):
        groups = {"group_0": other, "group_1": {"targets": [target], "weights": {**PACKED, "group_size": 64}}}
        assert_weights(compressed_config(PACKED, config_groups=groups), tensors, expected)
    groups = {"group_0": {**other, "targets": ["model.layers.0.mlp.up_proj"]}}
    with pytest.raises(ValueError, match="no target"):
        _ = matrix(compressed_config(PACKED, config_groups=groups), tensors).layout


def test_scales_of_activations_and_caches_are_left_out_and_named() -> None:
    tensors, _ = recipes.compressed(OUT, WIDTH, INT8, "int-quantized")
    tensors["input_scale"] = torch.ones(1)
    groups = {"g": {"targets": ["Linear"], "weights": INT8, "input_activations": {"dynamic": False, "num_bits": 8}}}
    config = compressed_config(INT8, "int-quantized", config_groups=groups, kv_cache_scheme={"num_bits": 8})
    quantized = quantized_format({"compression_config": config})
    assert quantized is not None
    assert quantized.unused == "static scales of activations and scales of keys and values"
    cache = stored({"k_scale": torch.ones(1), "v_scale": torch.ones(1)}, "model.layers.3.self_attn")
    assert list(quantized.matrices(stored(tensors) | cache)) == [f"{MODULE}.weight"]


def test_other_tensors_stay_as_they_are() -> None:
    tensors, _ = recipes.gptq(OUT, WIDTH)
    plain = stored({"weight": torch.ones(4), "bias": torch.ones(4)}, "model.norm")
    bias = stored({"bias": torch.zeros(OUT)})
    quantized = quantized_format({"quantization_config": gptq_config()})
    assert quantized is not None
    found = quantized.matrices(stored(tensors) | plain | bias)
    assert list(found) == [f"{MODULE}.weight", "model.norm.weight", "model.norm.bias", f"{MODULE}.bias"]
    added = found[f"{MODULE}.bias"]
    assert found["model.norm.bias"] is plain["model.norm.bias"]
    assert isinstance(added, StoredTensor) and added.unused_if_zero


MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
NVFP4_ARGUMENTS = {**FLOAT, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}


def test_nvfp4() -> None:
    tensors, expected = recipes.nvfp4(OUT, WIDTH)
    layout = assert_weights(MODELOPT, tensors, expected).layout
    assert (layout.bits, layout.group) == (4, 16)
    tensors, expected = recipes.nvfp4(OUT, WIDTH, divides=True)
    assert_weights(compressed_config(NVFP4_ARGUMENTS, "nvfp4-pack-quantized"), tensors, expected)


def test_nvfp4_has_the_weights_that_compressed_tensors_reads() -> None:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    tensors, _ = recipes.nvfp4(OUT, WIDTH, divides=True)
    numbers = unpack_fp4_from_uint8(tensors["weight_packed"], OUT, WIDTH, torch.float32)
    scales = tensors["weight_scale"].float() / tensors["weight_global_scale"]
    expected = numbers.double() * scales.double().repeat_interleave(16, 1)
    assert_weights(compressed_config(NVFP4_ARGUMENTS, "nvfp4-pack-quantized"), tensors, expected)


def test_model_optimizer_fp8() -> None:
    tensors, expected = recipes.fp8(OUT, WIDTH)
    found = assert_weights({"quant_method": "modelopt", "quant_algo": "FP8"}, tensors, expected)
    assert found.layout.bits == 8


def test_scales_that_model_optimizer_adds_to_activations_are_left_out() -> None:
    quantized = quantized_format({"quantization_config": {**MODELOPT, "kv_cache_quant_algo": "FP8"}})
    assert quantized is not None
    assert quantized.unused == "static scales of activations and scales of keys and values"
    more = stored({"input_scale": torch.ones(1), "k_scale": torch.ones(1), "pre_quant_scale": torch.ones(1)})
    found = quantized.matrices(stored(recipes.nvfp4(OUT, WIDTH)[0]) | more)
    # `pre_quant_scale` changes the result, so it stays, and loading refuses it.
    assert list(found) == [f"{MODULE}.weight", f"{MODULE}.pre_quant_scale"]


DAMAGE = {
    "scales is missing": ("scales", None),
    "qzeros is missing": ("qzeros", None),
    r"scales is \[4, 95\], not \[4, 96\]": ("scales", torch.ones(4, 95)),
    r"qzeros is \[5, 12\], not \[4, 12\]": ("qzeros", torch.zeros(5, 12, dtype=torch.int32)),
    "qweight has dtype float32, not int32": ("qweight", torch.zeros(16, 96)),
    "scales has dtype int32": ("scales", torch.zeros(4, 96, dtype=torch.int32)),
    r"qweight is \[16\], not of 2 dimensions": ("qweight", torch.zeros(16, dtype=torch.int32)),
    "g_idx has numbers that are no group": ("g_idx", torch.full((WIDTH,), 4, dtype=torch.int32)),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_parts_that_are_no_matrix_are_named(message: str) -> None:
    tensors, _ = recipes.gptq(OUT, WIDTH)
    name, replaced = DAMAGE[message]
    del tensors[name]
    tensors |= {} if replaced is None else {name: replaced}
    with pytest.raises(ValueError, match=message):
        _ = matrix(gptq_config(), tensors).layout


def test_packed_numbers_must_hold_the_shape() -> None:
    tensors, _ = recipes.compressed(OUT, WIDTH, PACKED, "pack-quantized")
    tensors["weight_shape"] = torch.tensor([OUT, WIDTH + 9])
    with pytest.raises(
        ValueError, match=r"weight_packed is \[96, 16\], which does not hold \[96, 137\] codes of 4 bits"
    ):
        _ = matrix(compressed_config(PACKED), tensors).layout


REFUSED = {
    "'hqq' is not supported, only gptq, awq, compressed-tensors, fp8": {"quant_method": "hqq"},
    "None is not supported": {"bits": 4},
    "must be an object": ["gptq"],
    "bits': 5 is not supported": gptq_config(bits=5),
    "checkpoint_format': 'marlin'": gptq_config(checkpoint_format="marlin"),
    "group_size' must be a positive|group_size': must be a positive": gptq_config(group_size=0),
    "'gemv' is not supported": {"quant_method": "awq", "version": "gemv"},
    "zero_point': False": {"quant_method": "awq", "zero_point": False},
    "'marlin-24' is not supported": compressed_config(PACKED, "marlin-24"),
    "quant_algo': 'W4A8_AWQ' is not supported": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
    "quant_algo': None is not supported": {"quant_method": "modelopt"},
    "only 16 is supported for NVFP4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32},
    "bnb_4bit_quant_type': 'int4'": {**NF4_CONFIG, "bnb_4bit_quant_type": "int4"},
    "'sparse-24-bitmask' is not supported": compressed_config(PACKED, sparsity_config={"format": "sparse-24-bitmask"}),
    "rotations of activations": compressed_config(
        PACKED, transform_config={"config_groups": {"u": {"type": "hadamard"}}}
    ),
    "strategy': 'channel'": compressed_config({**FLOAT, "num_bits": 4}),
    "group_size': only 16": compressed_config({**FLOAT, "num_bits": 4, "strategy": "tensor_group", "group_size": 32}),
    "'tensor_group' is not supported": compressed_config({**PACKED, "strategy": "tensor_group"}),
    "no regular expression": compressed_config(PACKED, config_groups={"g": {"targets": ["re:("], "weights": PACKED}}),
    "fmt': 'e5m2'": {"quant_method": "fp8", "fmt": "e5m2"},
    "weight_block_size': must be two positive": {"quant_method": "fp8", "weight_block_size": [128]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_are_not_supported_are_refused_by_name(message: str) -> None:
    with pytest.raises(WeightsError, match=message) as error:
        quantized_format({"quantization_config": REFUSED[message]})
    assert "\n" not in str(error.value)


def test_a_checkpoint_without_settings_is_not_quantized() -> None:
    assert quantized_format({}) is None and quantized_format({"quantization_config": None}) is None
    assert quantized_format({"text_config": {"quantization_config": gptq_config()}}) is not None


def test_every_format_describes_itself() -> None:
    configs = {"gptq": gptq_config(), "compressed-tensors": compressed_config(PACKED), "modelopt": MODELOPT}
    for name in FORMATS:
        quantized = quantized_format({"quantization_config": {"quant_method": name, **configs.get(name, {})}})
        assert quantized is not None and quantized.description and "\n" not in quantized.description
    static = quantized_format({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}})
    assert static is not None and static.unused == "static scales of activations"
