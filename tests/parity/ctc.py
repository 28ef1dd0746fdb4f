"""Write tiny random checkpoints with CTC heads: published configurations with smaller sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.parity.checkpoints import write_model

CHARACTERS = "|ETAONIHSRDLUMWCFGYPBVK'XJQZ"
VOCABULARY = {token: at for at, token in enumerate(("<pad>", "<s>", "</s>", "<unk>", *CHARACTERS))}
"""The vocabulary of wav2vec2-base-960h."""
_BASE: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16, 24, 24, 16, 20],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "pad_token_id": 0,
}
_LARGE = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True, "num_hidden_layers": 3}
_SHORT = {"conv_dim": [12, 16, 20], "conv_kernel": [10, 4, 3], "conv_stride": [8, 8, 4], "num_conv_pos_embeddings": 9}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2-base": ("Wav2Vec2", {}),
    "wav2vec2-large-lv60": ("Wav2Vec2", _LARGE),
    "wav2vec2-short": ("Wav2Vec2", {**_SHORT, "feat_extract_norm": "layer"}),
    "hubert-base": ("Hubert", {"feat_proj_layer_norm": False}),
    "hubert-large": ("Hubert", _LARGE),
    "unispeech": ("UniSpeech", {}),
    "unispeech-large": ("UniSpeech", _LARGE),
    "unispeech-sat": ("UniSpeechSat", {}),
    "unispeech-sat-large": ("UniSpeechSat", _LARGE),
    "wavlm-base": ("WavLM", {"num_buckets": 32, "max_bucket_distance": 40}),
    "wavlm-large": (
        "WavLM",
        {**_LARGE, "num_buckets": 20, "max_bucket_distance": 60, "hidden_size": 64, "intermediate_size": 96},
    ),
}
"""By published checkpoint: the start of its class names in transformers, and its settings. A name without a size means
the base checkpoint."""


def config(shape: str) -> Any:
    stem, settings = SHAPES[shape]
    return getattr(transformers, f"{stem}Config")(
        **{**_BASE, "num_feat_extract_layers": 7, **_count(settings), **settings}
    )


def _count(settings: dict[str, Any]) -> dict[str, int]:
    return {"num_feat_extract_layers": len(settings["conv_dim"])} if "conv_dim" in settings else {}


def write(directory: Path, shape: str) -> Any:
    """Write a checkpoint with its tokenizer. Returns the model that transformers loads from it."""
    stem, _ = SHAPES[shape]
    write_model(directory, config(shape), f"{stem}ForCTC", change=_spread)
    write_tokenizer(directory)
    cls = getattr(transformers, f"{stem}ForCTC")
    return cls.from_pretrained(directory, attn_implementation="eager").eval()


def write_tokenizer(directory: Path, **settings: Any) -> None:
    """Write `vocab.json` and the settings files of the tokenizer and the feature extractor."""
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "word_delimiter_token": "|", **roles, **settings}
    features = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 16_000}
    for name, content in {
        "vocab": VOCABULARY,
        "tokenizer_config": tokenizer,
        "preprocessor_config": {**features, "do_normalize": True, "padding_value": 0.0},
    }.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def _spread(model: Any) -> None:
    """Scale weights so that a recording gets various labels, including blanks and spaces but not `<s>`."""
    for name, tensor in model.named_parameters():
        if name.endswith("bias"):
            tensor.mul_(0.1)
        if name.endswith("out_proj.weight"):
            tensor.mul_(0.2)
        if "rel_attn_embed" in name or "gru_rel_pos" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5)) / 2)
    model.lm_head.weight.mul_(3)
    model.lm_head.bias[[VOCABULARY["<pad>"], VOCABULARY["|"]]] += 8
    model.lm_head.bias[[VOCABULARY[token] for token in ("<s>", "</s>", "<unk>")]] -= 30
