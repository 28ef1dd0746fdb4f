"""Checkpoints of bitsandbytes: every matrix has the weights that the package reads, and damage is named."""

from __future__ import annotations

import pytest
import torch

from tests.weights import bitsandbytes_oracle
from tests.weights import quantized_recipes as recipes
from tests.weights.quantized_checks import MODULE, NF4_CONFIG, OUT, WIDTH, assert_weights, matrix, stored
from weights.quantized.formats import quantized_format
from weights.stored import StoredMatrix

INT8_CONFIG = {"quant_method": "bitsandbytes", "load_in_8bit": True}
ORACLE = bitsandbytes_oracle.load()


@pytest.mark.parametrize("case", ORACLE)
def test_bitsandbytes_has_the_weights_that_the_package_reads(case: str) -> None:
    tensors, expected = ORACLE[case]
    config = INT8_CONFIG if case == "int8" else {**NF4_CONFIG, "bnb_4bit_quant_type": case.split()[0]}
    found = matrix(config, tensors)
    assert tuple(found.layout.shape) == tuple(expected.shape) and found.layout.is_meta
    torch.testing.assert_close(found.read().dequantized(torch.float32), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("out", "width"), [(5, 96), (4, 256), (3, 33)])
def test_bitsandbytes_with_scales_that_are_codes(out: int, width: int) -> None:
    tensors, expected = recipes.nested_nf4(out, width)
    assert_weights(NF4_CONFIG, tensors, expected)


def test_bitsandbytes_codes_in_another_dtype() -> None:
    """With the setting `bnb_4bit_quant_storage`, a file stores the bytes of 4-bit codes as another dtype."""
    tensors, expected = recipes.nested_nf4(4, 96)
    tensors["weight"] = tensors["weight"].flatten().view(torch.bfloat16)[:, None]
    assert_weights(NF4_CONFIG, tensors, expected)


def test_bitsandbytes_int8_rounds_activations_in_blocks() -> None:
    tensors, expected = recipes.llm_int8(OUT, WIDTH)
    assert assert_weights(INT8_CONFIG, tensors, expected).layout.group == 128
    tensors, expected = recipes.llm_int8(OUT, 96)
    assert assert_weights(INT8_CONFIG, tensors, expected).layout.group == 32


def test_modules_that_bitsandbytes_left_out_stay_as_they_are() -> None:
    for config, recipe in ((NF4_CONFIG, recipes.nested_nf4), (INT8_CONFIG, recipes.llm_int8)):
        quantized = quantized_format({"quantization_config": config})
        assert quantized is not None
        plain = stored({"weight": torch.ones(4, 4)}, "lm_head")
        found = quantized.matrices(stored(recipe(OUT, WIDTH)[0]) | plain)
        assert found["lm_head.weight"] is plain["lm_head.weight"]
        assert isinstance(found[f"{MODULE}.weight"], StoredMatrix)


STATE = "weight.quant_state.bitsandbytes__nf4"
DAMAGED_STATES = {
    "quant_state.bitsandbytes__nf4 is not JSON": b"{",
    "has no shape of a matrix": b'{"shape": [96]}',
    "has no valid 'blocksize'": b'{"shape": [96, 128], "blocksize": 0}',
    "has no valid 'nested_blocksize'": b'{"shape": [96, 128], "blocksize": 64}',
    "no valid 'nested_offset'": b'{"shape": [96, 128], "blocksize": 64, "nested_blocksize": 4, "nested_offset": ""}',
    "absmax is": b'{"shape": [96, 128], "blocksize": 32, "nested_blocksize": 4}',
    "do not hold": b'{"shape": [96, 127], "blocksize": 64, "nested_blocksize": 4}',
}


@pytest.mark.parametrize("message", DAMAGED_STATES)
def test_damaged_states_of_bitsandbytes_are_named(message: str) -> None:
    tensors, _ = recipes.nested_nf4(OUT, WIDTH)
    tensors[STATE] = torch.tensor(list(DAMAGED_STATES[message]), dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        _ = matrix(NF4_CONFIG, tensors).layout


def test_int8_of_another_order_is_named() -> None:
    tensors, _ = recipes.llm_int8(OUT, WIDTH)
    tensors["weight_format"] = torch.tensor(2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="weight_format is not that of rows"):
        _ = matrix(INT8_CONFIG, tensors).layout
