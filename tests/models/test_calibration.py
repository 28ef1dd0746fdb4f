"""Rounding weights with calibration makes products more exact, and other programs can read the written copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BartConfig, BertConfig, LlamaConfig, Qwen3MoeConfig

from benchmarks.quality.decoders import Decoder, compare
from models.backends import choice
from models.checkpoint.loader import load_model
from models.checkpoint.quantize_checkpoint import quantize_checkpoint
from models.checkpoint.quantizing.error_feedback import round_with_feedback
from models.checkpoint.quantizing.scale_search import find_steps, round_groups
from models.config import ConfigError
from server.cli import main
from tests.models.test_outlier_channels import enlarge
from tests.models.test_quantize_checkpoint import EXPERTS, SIZES, matrices
from tests.parity.checkpoints import random_ids, write_model
from tests.parity.quantized_checkpoints import relative_error
from weights.quantized.write_compressed_tensors import Scheme

VOCAB = 211
CONFIG = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=128,
)
TEXTS, OTHERS = random_ids(VOCAB, (100, 90, 80, 110, 90, 70)), random_ids(VOCAB, (100, 64, 91))
SCHEMES = [Scheme(4, 32), Scheme(4, 128), Scheme(6, 32), Scheme(8, 32)]


def inputs(count: int, width: int) -> Tensor:
    """Random inputs that are correlated, with one channel that is much larger than the others: [count, width]."""
    torch.manual_seed(1)
    x = torch.randn(count, width // 4) @ torch.randn(width // 4, width) * width**-0.5
    x[:, 5] *= 30
    return x + 0.1 * torch.randn(count, width)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_products_change_less_than_without_data(scheme: Scheme) -> None:
    x, weight = inputs(900, 256), torch.randn(96, 256)
    exact, others = x[:600], x[600:]
    found = round_with_feedback(weight, exact.T @ exact, scheme)
    plain = round_groups(weight, scheme)
    assert found.has_layout_of(plain) and found.codes.int().abs().max() <= 1 << (scheme.bits - 1)
    assert torch.equal(found.scales.half().float(), found.scales), "compressed-tensors stores float16"
    error, plain_error = (
        ((matrix.dequantized(torch.float32) - weight) @ others.T).square().mean() for matrix in (found, plain)
    )
    assert error < 0.7 * plain_error


def test_independent_inputs_of_one_size_leave_nothing_to_correct() -> None:
    """With uncorrelated inputs of equal size, calibration rounds each weight to the nearest multiple of the step."""
    weight, scheme = torch.randn(40, 64), Scheme(4, 32)
    found = round_with_feedback(weight, torch.eye(64) * 7, scheme)
    steps = find_steps(weight.view(-1, 32), torch.ones(32), 4).view(40, 2)
    assert torch.equal(found.scales, steps)
    assert torch.equal(found.codes.float(), (weight / steps.repeat_interleave(32, 1)).round().clamp(-8, 7))


def test_inputs_that_no_text_has_are_rounded_as_well() -> None:
    weight, moment = torch.randn(8, 64), torch.zeros(64, 64)
    zero = round_with_feedback(weight, moment, Scheme(4, 32))
    assert relative_error(zero.dequantized(torch.float32), weight) < 0.2
    moment[:32, :32] = torch.ones(32, 32)
    found = round_with_feedback(weight, moment, Scheme(4, 32))
    assert relative_error(found.dequantized(torch.float32)[:, 32:], weight[:, 32:]) < 0.2


def test_a_searched_step_is_at_least_as_good_as_that_of_the_largest_number() -> None:
    x = torch.randn(500, 32)
    largest = x.gather(1, x.abs().argmax(1, keepdim=True)) / -8
    plain = ((x / largest).round().clamp(-8, 7) * largest - x).square().sum()
    steps = find_steps(x, torch.ones(32), 4)[:, None]
    assert ((x / steps).round().clamp(-8, 7) * steps - x).square().sum() < 0.93 * plain


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a decoder whose matrix products have a few inputs that are much larger than the others."""
    directory = tmp_path_factory.mktemp("outliers") / "in"
    with torch.no_grad():
        write_model(directory, CONFIG, "LlamaForCausalLM", std=0.04, change=enlarge)
    return directory


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("precision", ["int4", "int4-128", "int6", "int8"])
def test_a_calibrated_copy_is_closer_to_the_model(outliers: Path, precision: Any, tmp_path: Path) -> None:
    plain = quantize_checkpoint(outliers, tmp_path / "plain", precision)
    seen: list[tuple[int, int]] = []
    report = quantize_checkpoint(
        outliers, tmp_path / "out", precision, lambda done, total: seen.append((done, total)), TEXTS
    )
    assert (plain.calibrated, report.calibrated, report.matrices) == (0, 21, 21)
    assert report.bytes_after == plain.bytes_after and report.description == plain.description
    assert seen[-1][0] == seen[-1][1] and seen == sorted(seen)
    exact = Decoder(outliers, torch.float32)
    found, without = (
        compare(exact, Decoder(tmp_path / name, torch.float32), OTHERS).mean_kl for name in ("out", "plain")
    )
    assert found < (0.8 if precision.startswith("int4") else 1.0) * without


def test_transformers_reads_a_calibrated_copy(outliers: Path, tmp_path: Path) -> None:
    quantize_checkpoint(outliers, tmp_path / "out", "int4", texts=TEXTS)
    assert {matrix.bits for matrix in matrices(tmp_path / "out").values()} == {4, 6}
    ids = torch.tensor([OTHERS[1]])
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()(ids).logits[0]
        # The compiled kernels round activations.
        with choice.using("torch"):
            ours = Decoder(tmp_path / "out", torch.float32).read(OTHERS[1])(0, len(OTHERS[1]))
    assert relative_error(ours, theirs) < 1e-4


def test_int4_has_six_bits_where_the_setting_has_them(outliers: Path, tmp_path: Path) -> None:
    quantize_checkpoint(outliers, tmp_path / "out", "int4")
    bits = {name.split(".", 3)[3]: matrix.bits for name, matrix in matrices(tmp_path / "out").items()}
    six = {name.split(".")[1] for name, count in bits.items() if count == 6}
    assert six == {"q_proj", "k_proj", "v_proj", "down_proj"} and len(bits) == 7


def test_experts_and_encoders(tmp_path: Path) -> None:
    config = Qwen3MoeConfig(**{**SIZES, "dtype": "float32"}, **EXPERTS)
    write_model(tmp_path / "moe", config, "Qwen3MoeForCausalLM", std=0.1)
    report = quantize_checkpoint(tmp_path / "moe", tmp_path / "moe4", "int4", texts=random_ids(70, (30, 25)))
    assert 2 * 4 < report.calibrated <= report.matrices == 2 * (4 + 4 * 3)
    load_model(tmp_path / "moe4", torch.float32, torch.device("cpu"))
    config = BertConfig(**{**SIZES, "dtype": "float32"}, num_labels=3)
    write_model(tmp_path / "bert", config, "BertForSequenceClassification", std=0.1)
    report = quantize_checkpoint(tmp_path / "bert", tmp_path / "bert8", "int8", texts=random_ids(70, (30, 25)))
    assert report.calibrated == 2 * 6


def test_refusals_name_the_reason(outliers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--calibrate is for int8, int6, int4 and int4-128"):
        quantize_checkpoint(outliers, tmp_path / "out", "fp8", texts=TEXTS)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = BartConfig(vocab_size=70, d_model=64, **layers, encoder_ffn_dim=96, decoder_ffn_dim=96)
    write_model(tmp_path / "bart", config, "BartForConditionalGeneration")
    with pytest.raises(ConfigError, match="it has an encoder and a decoder"):
        quantize_checkpoint(tmp_path / "bart", tmp_path / "out", "int8", texts=TEXTS)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    for name, message in (("absent.txt", "cannot be read"), ("binary.txt", "no text in UTF-8")):
        with pytest.raises(SystemExit) as end:
            main(["quantize", str(outliers), str(tmp_path / "o"), "--to", "int4", "--calibrate", str(tmp_path / name)])
        error = capsys.readouterr().err
        assert end.value.code == 2 and name in error and message in error and str(tmp_path) not in error
