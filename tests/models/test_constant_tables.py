"""Tables of positions in a checkpoint are checked against the tables that the model computes, and are not loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import FSMTConfig, GPTJConfig, M2M100Config, MarianConfig, PegasusConfig, RoFormerConfig, XGLMConfig

from models.checkpoint.loader import load_model
from models.layers.positions import fairseq_sinusoids, sinusoids
from tests.parity.checkpoints import write_model
from weights.load import WeightsError

_WIDE = {"d_model": 16, "max_position_embeddings": 24}
_BART = {
    **_WIDE,
    "vocab_size": 30,
    "decoder_vocab_size": 30,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 0,
}


def _rotation(rows: int, width: int) -> torch.Tensor:
    """Rotary position table as RoFormer and GPT-J store it: sines, then cosines: [rows, width]."""
    return sinusoids(rows, width)


CASES = {
    "marian": (
        MarianConfig(**_BART),
        "MarianMTModel",
        "model.decoder.embed_positions.weight",
        lambda: sinusoids(24, 16),
    ),
    "pegasus": (
        PegasusConfig(**_BART),
        "PegasusForConditionalGeneration",
        "model.encoder.embed_positions.weight",
        lambda: sinusoids(24, 16),
    ),
    "m2m_100": (
        M2M100Config(**_BART),
        "M2M100ForConditionalGeneration",
        "model.encoder.embed_positions.weights",
        lambda: fairseq_sinusoids(26, 16, 0),
    ),
    "fsmt": (
        FSMTConfig(**_BART, src_vocab_size=30, tgt_vocab_size=30),
        "FSMTForConditionalGeneration",
        "model.decoder.embed_positions.weight",
        lambda: fairseq_sinusoids(26, 16, 0),
    ),
    "xglm": (
        XGLMConfig(vocab_size=30, ffn_dim=20, num_layers=1, attention_heads=2, pad_token_id=1, **_WIDE),
        "XGLMForCausalLM",
        "model.embed_positions.weights",
        lambda: fairseq_sinusoids(26, 16, 0),
    ),
    "roformer": (
        RoFormerConfig(
            vocab_size=30,
            hidden_size=16,
            embedding_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=20,
            max_position_embeddings=24,
        ),
        "RoFormerForMaskedLM",
        "roformer.encoder.embed_positions.weight",
        lambda: _rotation(24, 8),
    ),
    "gptj": (
        GPTJConfig(vocab_size=30, n_positions=24, n_embd=16, n_layer=2, n_head=2, rotary_dim=8),
        "GPTJForCausalLM",
        "transformer.h.1.attn.embed_positions",
        lambda: _rotation(24, 8),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, object]:
    config, architecture, name, table = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    write_model(directory, config, architecture)
    return directory, name, table


def _load_with(checkpoint, tmp_path: Path, table: torch.Tensor) -> None:
    directory, name, _ = checkpoint
    tensors = load_file(directory / "model.safetensors")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    save_file({**tensors, name: table.contiguous()}, tmp_path / "model.safetensors", {"format": "pt"})
    load_model(tmp_path, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_computed_table_is_accepted(checkpoint, tmp_path: Path, dtype: torch.dtype) -> None:
    _load_with(checkpoint, tmp_path, checkpoint[2]().to(dtype))


def test_a_table_of_another_length_is_compared_by_rows(checkpoint, tmp_path: Path) -> None:
    _load_with(checkpoint, tmp_path, checkpoint[2]()[:9])


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.index_put((torch.tensor(8), torch.tensor(3)), torch.tensor(0.05), accumulate=True),
        lambda table: table.roll(1, 0),
        lambda table: table.unflatten(1, (2, -1)).transpose(1, 2).flatten(1),  # sines and cosines alternate
        lambda table: table[:, :-2],
        lambda table: table.index_put((torch.tensor(8), torch.tensor(3)), torch.tensor(float("nan"))),
    ],
    ids=["one number", "rows", "pairs", "width", "nan"],
)
def test_another_table_is_refused_by_name(checkpoint, tmp_path: Path, change) -> None:
    with pytest.raises(WeightsError) as refused:
        _load_with(checkpoint, tmp_path, change(checkpoint[2]()))
    assert checkpoint[1] in str(refused.value)
