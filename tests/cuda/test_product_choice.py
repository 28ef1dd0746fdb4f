"""From how many rows on products round their rows: chosen by measured times, which these tests inject."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from models.backends import choice, linear_weights
from models.backends.cuda import product_choice
from models.backends.cuda.product_choice import NEVER, ROW_COUNTS, crossover, read_or_measure
from models.backends.torch.quantization import quantize_int4, quantize_int8, round_rows
from tests.cuda.test_backend import DEVICE
from weights.quantized_matrix import QuantizedMatrix


def times(rounded: dict[int, float]):
    """Times of rounded rows by their number. All other products take one second."""
    return lambda rows, rounds: rounded.get(rows, 1.0) if rounds else 1.0


@pytest.mark.parametrize(
    ("rounded", "expected"),
    [
        ({}, NEVER),
        (dict.fromkeys(ROW_COUNTS, 0.5), 2),
        (dict.fromkeys((64, 128, 256, 512), 0.5), 64),
        # Faster at 16, slower at 64: rows are rounded from 128 on only.
        (dict.fromkeys((16, 128, 256, 512), 0.5), 128),
        (dict.fromkeys((128, 256), 0.5), NEVER),
        (dict.fromkeys(ROW_COUNTS, 0.99), NEVER),
    ],
    ids=["never", "always", "many rows", "not at 64", "not at 512", "by too little"],
)
def test_rows_are_rounded_from_where_it_is_always_faster(rounded: dict[int, float], expected: int) -> None:
    assert crossover(times(rounded)) == expected


def test_each_card_is_measured_once(tmp_path: Path) -> None:
    path, measured = tmp_path / "cache" / "products.json", []

    def time_of(rows: int, rounds: bool) -> float:
        measured.append(rows)
        return 0.5 if rounds and rows >= 64 else 1.0

    assert read_or_measure(path, "card", "int8", time_of) == 64 and measured
    measured.clear()
    assert read_or_measure(path, "card", "int8", time_of) == 64 and not measured
    assert read_or_measure(path, "card", "int4", times({})) == NEVER
    assert read_or_measure(path, "other card", "int8", time_of) == 64 and measured
    assert json.loads(path.read_text()) == {"card": {"int8": 64, "int4": NEVER}, "other card": {"int8": 64}}
    assert not [one for one in path.parent.iterdir() if one != path], "scratch files are renamed"


@pytest.mark.parametrize("content", ["", "[]", '{"card": 3}', '{"card": {"int8": "x"}}', '{"card": null}'])
def test_a_damaged_file_is_measured_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "products.json"
    path.write_text(content)
    assert read_or_measure(path, "card", "int8", times({})) == NEVER
    assert json.loads(path.read_text())["card"]["int8"] == NEVER


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    found = read_or_measure(tmp_path / "file" / "products.json", "card", "int8", times(dict.fromkeys(ROW_COUNTS, 0.1)))
    assert found == 2 and "cannot keep the measured crossover" in caplog.text


def test_without_a_device_rows_are_never_rounded() -> None:
    assert product_choice.rounds_from("int8", torch.device("cpu"), False) == NEVER


@pytest.mark.parametrize("quantization", ["int8", "int8-fast", "int4-32", "fp8"])
@torch.inference_mode()
def test_a_weight_rounds_as_many_rows_as_the_table_says(monkeypatch: pytest.MonkeyPatch, quantization: str) -> None:
    kinds = {"int4-32": "int4"}
    monkeypatch.setattr(
        product_choice,
        "rounds_from",
        lambda kind, device, of_experts: 4 if kind == kinds.get(quantization, quantization) and not of_experts else 1,
    )
    dense, x = torch.randn(40, 256, device=DEVICE), torch.randn(5, 256, device=DEVICE)
    x[:, 7] *= 60.0
    if quantization == "fp8":
        from tests.cuda.test_quantized_weights import fp8_matrix

        matrix = fp8_matrix(40, 256, 128)
    elif quantization == "int4-32":
        matrix = quantize_int4(dense, 32)
    else:
        codes, scales = quantize_int8(dense)
        matrix = QuantizedMatrix(codes, 8, 256, scales[:, None])
    with choice.using("cuda"):
        packer = linear_weights.packer(torch.float32, DEVICE, None if quantization == "fp8" else quantization)
        weight = packer(matrix, None)
        few, many = weight.multiply(x[:3]), weight.multiply(x)
    values = matrix.dequantized(torch.float32).double()
    kind, terms = ("fp8", 1) if quantization == "fp8" else ("int8", 1 if quantization == "int8-fast" else 2)
    exact, rounded = (rows.double() @ values.T for rows in (x, round_rows(x, kind, terms, 128)))
    torch.testing.assert_close(few.double(), exact[:3], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(many.double(), rounded, rtol=1e-5, atol=1e-4)
    with choice.using("cuda", batch_invariant=True):
        weight = linear_weights.packer(torch.float32, DEVICE, None if quantization == "fp8" else quantization)(
            matrix, None
        )
        torch.testing.assert_close(weight.multiply(x).double(), exact, rtol=1e-5, atol=1e-4)
