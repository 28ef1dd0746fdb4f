"""Sizes of a model with each setting, which are computed without reading weights, equal those of loaded models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import MixtralConfig

from models.backends.choice import Quantization
from models.checkpoint.loader import load_model
from models.checkpoint.setting_sizes import setting_sizes
from models.steps.batch import EncoderBatch
from server.commands import setting_sizes as command
from server.settings.settings import Settings
from tests.parity.checkpoints import write_model
from weights.demo.train.training import HOME

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mixture")
    config = MixtralConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        tie_word_embeddings=False,
    )
    write_model(directory, config, "MixtralForCausalLM")
    return directory


@pytest.mark.parametrize("name", ["story", "sentiment", "translator-en-fr", "mixture"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_are_those_of_loaded_models(name: str, dtype: torch.dtype, mixture: Path) -> None:
    directory = mixture if name == "mixture" else HOME / name
    sizes = setting_sizes(directory, dtype)
    assert sizes.keys() == {"float32", "bfloat16", *get_args(Quantization)}
    for setting in ("float32", "int8", "int8-fast", "int5", "int4", "int4-64-zero"):
        kind, quantization = (torch.float32, None) if setting == "float32" else (dtype, setting)
        assert sizes[setting] == load_model(directory, kind, CPU, quantization=quantization).weight_bytes, setting


@pytest.mark.parametrize("name", ["story", "mixture"])
def test_int4_gives_6_bits_to_the_weights_that_matter_most(name: str, mixture: Path) -> None:
    model = load_model(
        mixture if name == "mixture" else HOME / name, torch.float32, CPU, quantization="int4"
    ).transformer
    assert model.decoder is not None
    layer = model.decoder.layers[0]
    assert _bits(layer.attention.merged) == _bits(model.head.packed) == 6
    assert _bits(layer.attention.output.packed) == 4
    if name == "mixture":
        inner, outer = layer.feed_forward.packed._inner, layer.feed_forward.packed._outer
    else:
        inner, outer = layer.feed_forward.gate.packed, layer.feed_forward.down.packed
    assert (_bits(inner), _bits(outer)) == (4, 6)


@pytest.mark.parametrize("name", ["story", "sentiment", "mixture"])
def test_int5_gives_4_bits_to_the_products_before_activations_only(name: str, mixture: Path) -> None:
    """int5 stores the matrices before activations in 4 bits, and all others in 6 bits.

    These are the gate matrices, or the first matrices of a feed-forward without gates. In a mixture of experts, the
    gate and the up matrix are stored together.
    """
    model = load_model(
        mixture if name == "mixture" else HOME / name, torch.float32, CPU, quantization="int5"
    ).transformer
    stack = model.encoder if model.decoder is None else model.decoder
    assert stack is not None
    layer = stack.layers[0]
    assert _bits(layer.attention.merged) == _bits(layer.attention.output.packed) == 6
    if name == "mixture":
        inner, outer = layer.feed_forward.packed._inner, layer.feed_forward.packed._outer
    else:
        gate, up = layer.feed_forward.gate, layer.feed_forward.up
        assert (gate is None) == (name == "sentiment") and (gate is None or _bits(up.packed) == 6)
        inner, outer = (up if gate is None else gate).packed, layer.feed_forward.down.packed
    assert (_bits(inner), _bits(outer)) == (4, 6)
    if model.decoder is not None:
        assert _bits(model.head.packed) == 6


def test_experts_with_4_and_6_bits_stay_close(mixture: Path) -> None:
    tokens = torch.arange(90)
    exact, found = (
        load_model(mixture, torch.float32, CPU, quantization=quantization)
        .transformer.encode(EncoderBatch(tokens, (90,)))
        .detach()
        .clone()
        for quantization in (None, "int4")
    )
    # The median is used, because rounded inputs choose other experts for a few tokens.
    assert 0 < ((found - exact).norm(dim=1) / exact.norm(dim=1)).median() < 0.2


def _bits(weight: Any) -> int:
    return int(weight._layout.bits)


def test_dtypes_without_kernels_have_no_quantised_sizes() -> None:
    assert setting_sizes(HOME / "story", torch.float16).keys() == {"float32", "bfloat16"}


def test_the_rows_of_check() -> None:
    found = command.setting_sizes(str(HOME / "story"), Settings(models=[], dtype="auto"))
    rows = command.size_rows(found)
    assert [name for name, _ in rows] == ["sizes", "", "", ""]
    assert rows[0][1].startswith("float32 4.1 MiB, bfloat16 2.1 MiB, int8 1.1 MiB, ")
