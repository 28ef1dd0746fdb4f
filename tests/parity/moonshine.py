"""Write tiny random checkpoints of Moonshine: published configurations with smaller sizes, and a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import MoonshineConfig, MoonshineStreamingConfig

from tests.parity.checkpoints import write_model

START, END = 1, 2
LETTERS = "▁etaoinshrdlucmfwypvbgkjqxz',.?!"
TOKENS = ("<unk>", "<s>", "</s>", *LETTERS)
_BASE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 48,
    "intermediate_size": 64,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": START,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}
SHAPES: dict[str, Any] = {
    "moonshine-tiny": MoonshineConfig(**_BASE, partial_rotary_factor=0.9, pad_head_dim_to_multiple_of=8),
    "moonshine-base": MoonshineConfig(
        **{**_BASE, "hidden_size": 52, "encoder_num_hidden_layers": 3, "attention_bias": True},
        partial_rotary_factor=0.62,
    ),
}
_STREAMING: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 40,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1600,
    "bos_token_id": START,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}
_ENCODER: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "sliding_windows": [[16, 4], [16, 0], [5, 3]],
}
SHAPES |= {
    "moonshine-streaming-tiny": MoonshineStreamingConfig(
        **_STREAMING, encoder_config=_ENCODER, pad_head_dim_to_multiple_of=8
    ),
    "moonshine-streaming-small": MoonshineStreamingConfig(
        **{**_STREAMING, "hidden_size": 48, "head_dim": 10, "tie_word_embeddings": True},
        encoder_config={**_ENCODER, "hidden_size": 52, "num_hidden_layers": 2, "sliding_windows": [[3, 9], [16, 1]]},
    ),
}
GENERATION = {"bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START, "max_length": 64}


def write(directory: Path, shape: str, seed: int = 0) -> Any:
    """Write a checkpoint with its tokenizer and feature extractor.

    Returns the model that transformers loads from it.
    """
    architecture = f"{type(SHAPES[shape]).__name__.removesuffix('Config')}ForConditionalGeneration"
    write_model(directory, SHAPES[shape], architecture, seed=seed, change=_strengthen_audio)
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    write_text_files(directory)
    cls = getattr(transformers, architecture)
    return cls.from_pretrained(directory, attn_implementation="eager").eval()


def inputs(oracle: Any, samples: torch.Tensor) -> dict[str, torch.Tensor]:
    """The inputs of transformers' model for a recording. samples: [samples].

    The streaming variant gets a whole number of frames of 5 ms, and an attention mask, without which its encoder would
    not use windows.
    """
    if oracle.config.model_type == "moonshine":
        return {"input_values": samples[None]}
    mask = torch.ones(1, len(samples), dtype=torch.int64, device=samples.device)
    found = {"input_values": samples[None], "attention_mask": mask}
    return {name: torch.nn.functional.pad(value, (0, -len(samples) % 80)) for name, value in found.items()}


def write_text_files(directory: Path) -> None:
    """Write a tokenizer of letters, and the settings of the feature extractor."""
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(TOKENS)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    features = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 16_000}
    for name, content in {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", **roles},
        "preprocessor_config": {**features, "do_normalize": False, "padding_value": 0.0, "return_attention_mask": True},
    }.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def _strengthen_audio(model: Any) -> None:
    """Scale weights so that audio and position influence the next token more, and recordings give different texts."""
    for layer in model.model.decoder.layers:
        layer.encoder_attn.v_proj.weight.mul_(4)
        layer.encoder_attn.q_proj.weight.mul_(3)
        layer.self_attn.q_proj.weight.mul_(2)
