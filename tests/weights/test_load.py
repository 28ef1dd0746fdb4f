"""Strict loading of weights: conversion by rules, dtypes, progress, tied tensors, and one error for all mismatches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from weights.finite import is_finite
from weights.load import LoadReport, WeightsError, _checkpoint_name, load_weights
from weights.rules import Drop, Rename, Slice, Split, Transpose

RULES = (
    Rename(r"shared\.weight|lm_head\.weight", "tokens"),
    Split(r"h\.(\d+)\.qkv", (r"layers.\1.q", r"layers.\1.k", r"layers.\1.v")),
    Transpose(r"h\.(\d+)\.up", r"layers.\1.up"),
    Slice(r"positions", "positions", start=2),
    Drop(r"h\.\d+\.mask"),
)
EXPECTED = {
    "tokens": (5, 4),
    "positions": (3, 4),
    **{f"layers.{index}.{part}": (4, 4) for index in range(2) for part in "qkv"},
    **{f"layers.{index}.up": (8, 4) for index in range(2)},
}


def _checkpoint() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"shared.weight": (5, 4), "positions": (5, 4)}
    for index in range(2):
        shapes |= {f"h.{index}.qkv": (12, 4), f"h.{index}.up": (4, 8), f"h.{index}.mask": (9, 9)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def _load(directory: Path, tensors: dict[str, Tensor], dtype=torch.float32, **options) -> tuple[dict, LoadReport]:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    loaded: dict[str, Tensor] = {}
    report = load_weights(directory, RULES, EXPECTED, dtype, "cpu", loaded.__setitem__, **options)
    return loaded, report


def _refused(directory: Path, tensors: dict[str, Tensor]) -> str:
    with pytest.raises(WeightsError) as error:
        _load(directory, tensors)
    assert "\n" not in str(error.value) and str(directory) not in str(error.value)
    return str(error.value)


def test_every_expected_tensor_is_converted_by_its_rule(tmp_path: Path):
    tensors = _checkpoint()
    loaded, report = _load(tmp_path, tensors)
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == EXPECTED
    assert torch.equal(loaded["layers.1.k"], tensors["h.1.qkv"][4:8])
    assert torch.equal(loaded["layers.0.up"], tensors["h.0.up"].T)
    assert torch.equal(loaded["positions"], tensors["positions"][2:])
    assert all(tensor.is_contiguous() for tensor in loaded.values())
    parameters = sum(tensor.numel() for tensor in loaded.values())
    assert report == LoadReport(parameters=parameters, bytes=4 * parameters)


def test_loaded_tensors_share_no_memory_with_the_file(tmp_path: Path):
    loaded, _ = _load(tmp_path, _checkpoint())
    before = loaded["tokens"].clone()
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-400, 2)
        file.write(b"\0" * 400)
    assert torch.equal(loaded["tokens"], before)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_are_converted(tmp_path: Path, stored: torch.dtype, dtype: torch.dtype):
    tensors = {name: tensor.to(stored) for name, tensor in _checkpoint().items()}
    loaded, report = _load(tmp_path, tensors, dtype, keep_float32=lambda name: name.endswith(".up"))
    assert torch.equal(loaded["tokens"], tensors["shared.weight"].to(dtype))
    assert torch.equal(loaded["layers.0.up"], tensors["h.0.up"].T.to(torch.float32))
    assert report.bytes == sum(tensor.numel() * tensor.itemsize for tensor in loaded.values())


def test_progress_ends_at_the_total(tmp_path: Path):
    steps: list[tuple[int, int]] = []
    tensors = _checkpoint()
    _load(tmp_path, tensors, progress=lambda done, total: steps.append((done, total)))
    total = sum(tensor.numel() * 4 for name, tensor in tensors.items() if "mask" not in name)
    assert steps[-1] == (total, total) and {step[1] for step in steps} == {total}
    assert [step[0] for step in steps] == sorted({step[0] for step in steps})


@pytest.mark.parametrize("name", ["lm_head.weight", "shared.weight"])
def test_one_name_of_a_tied_tensor_is_enough(tmp_path: Path, name: str):
    tensors = _checkpoint()
    tied = tensors.pop("shared.weight")
    loaded, report = _load(tmp_path, {**tensors, name: tied})
    assert torch.equal(loaded["tokens"], tied)
    assert report.parameters == sum(tensor.numel() for tensor in loaded.values())


def test_both_names_of_a_tied_tensor_must_be_equal(tmp_path: Path):
    tensors = _checkpoint()
    tensors["lm_head.weight"] = tensors["shared.weight"].clone()
    _load(tmp_path, tensors)
    tensors["lm_head.weight"][0, 0] += 1
    message = _refused(tmp_path, tensors)
    assert "1 contradicting" in message and "shared.weight" in message and "lm_head.weight" in message


def test_all_errors_are_in_one_message(tmp_path: Path):
    tensors = _checkpoint()
    del tensors["h.1.qkv"], tensors["positions"]
    tensors["extra.bias"] = torch.ones(2)
    tensors["h.7.up"] = torch.ones(4, 8)
    tensors["h.0.up"] = torch.ones(4, 9)
    tensors["shared.weight"] = torch.ones(5, 4, dtype=torch.int8)
    message = _refused(tmp_path, tensors)
    assert "2 missing (positions, h.1.qkv)" in message
    assert "2 unexpected (extra.bias, h.7.up)" in message
    assert "2 misshapen" in message
    assert "h.0.up is [9, 4], not [8, 4]" in message and "shared.weight: dtype int8 is not supported" in message


def test_a_missing_tensor_of_the_only_layer_has_the_name_of_its_neighbour():
    stored_names = {"layers.0.down.bias": "model.layers.0.fc2.bias", "norm.weight": "model.scale"}
    assert _checkpoint_name("layers.0.down.weight", stored_names) == "model.layers.0.fc2.weight"
    assert _checkpoint_name("norm.bias", stored_names) == "norm.bias"


def test_shape_that_cannot_be_split_is_named(tmp_path: Path):
    tensors = _checkpoint()
    tensors["h.0.qkv"] = torch.ones(11, 4)
    assert "1 misshapen (h.0.qkv: shape [11, 4] cannot be rearranged)" in _refused(tmp_path, tensors)


def test_long_list_of_errors_is_shortened(tmp_path: Path):
    tensors = _checkpoint() | {f"extra.{index}": torch.ones(1) for index in range(50)}
    message = _refused(tmp_path, tensors)
    assert "50 unexpected" in message and "and 30 more" in message and message.count("extra.") == 20


def test_wrong_checkpoint_assigns_no_tensor(tmp_path: Path):
    tensors = _checkpoint()
    del tensors["positions"]
    save_file(tensors, tmp_path / "model.safetensors")
    assigned: list[str] = []
    with pytest.raises(WeightsError):
        load_weights(tmp_path, RULES, EXPECTED, torch.float32, "cpu", lambda name, _: assigned.append(name))
    assert assigned == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float):
    tensors = _checkpoint()
    tensors["h.1.qkv"][7, 2] = value
    tensors["shared.weight"][0, 0] = value
    message = _refused(tmp_path, tensors)
    assert "2 tensors contain NaN or infinity" in message and "h.1.qkv" in message and "shared.weight" in message
    assert "h.0.qkv" not in message


def test_a_tensor_that_is_not_used_may_contain_infinity(tmp_path: Path):
    tensors = _checkpoint()
    tensors["h.0.mask"][:] = -float("inf")
    _load(tmp_path, tensors)


def test_weights_too_large_for_float16_are_refused_with_the_setting_that_helps(tmp_path: Path):
    tensors = _checkpoint()
    tensors["h.0.up"][1, 1] = 1e6
    _load(tmp_path, tensors, torch.bfloat16)
    with pytest.raises(WeightsError, match=r"1 tensors .* too large for float16 \(h\.0\.up\).*--dtype bfloat16"):
        _load(tmp_path, tensors, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_position_of_a_tensor_is_checked(dtype: torch.dtype):
    for size in (1, 7, 100, 1000):
        tensor = torch.randn(size).to(dtype)
        assert is_finite(tensor)
        for position in {0, size // 2, size - 1}:
            for value in (float("nan"), float("inf"), -float("inf")):
                damaged = tensor.clone()
                damaged[position] = value
                assert not is_finite(damaged), (size, position, value)
    assert is_finite(torch.empty(0, dtype=dtype))
