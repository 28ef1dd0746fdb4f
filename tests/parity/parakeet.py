"""Write tiny random checkpoints of Parakeet-CTC: published configurations with smaller sizes, and their other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import ParakeetCTCConfig

from tests.parity.checkpoints import write_model

WORDS = [*"▁etaoinshrdlucmfw", *(f"▁{letter}" for letter in "taoiswc"), "▁the", "ing"]
TOKENS = ("<unk>", *WORDS, "<pad>")
BLANK = len(TOKENS) - 1
_ENCODER: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "subsampling_conv_channels": 12,
    "conv_kernel_size": 9,
    "num_mel_bins": 80,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "parakeet-ctc": _ENCODER,
    "parakeet-ctc-plain": {
        **_ENCODER,
        "hidden_size": 40,
        "attention_bias": False,
        "convolution_bias": False,
        "conv_kernel_size": 5,
        "num_mel_bins": 128,
        "subsampling_factor": 4,
        "scale_input": False,
        "num_hidden_layers": 3,
    },
}
"""Settings of the encoder of the first release, and of later encoders, which have no biases and no input scale."""


def config(shape: str) -> ParakeetCTCConfig:
    return ParakeetCTCConfig(vocab_size=len(TOKENS), pad_token_id=BLANK, encoder_config=ENCODERS[shape])


def write(directory: Path, shape: str) -> Any:
    """Write a checkpoint with its tokenizer and feature extractor.

    Returns the model that transformers loads from it.
    """
    write_model(directory, config(shape), "ParakeetForCTC", change=_spread)
    write_text_files(directory, ENCODERS[shape]["num_mel_bins"])
    return transformers.ParakeetForCTC.from_pretrained(directory, attn_implementation="eager").eval()


def write_text_files(directory: Path, num_mels: int, **features: Any) -> None:
    """Write a tokenizer of subwords, and the settings of the feature extractor."""
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(TOKENS)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tokenizer.add_special_tokens(["<unk>", "<pad>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": num_mels, **features}
    for name, content in {
        "tokenizer_config": {"tokenizer_class": "ParakeetTokenizer", "pad_token": "<pad>", "unk_token": "<unk>"},
        "preprocessor_config": {**settings, "sampling_rate": 16_000, "hop_length": 160, "win_length": 400},
    }.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def _spread(model: Any) -> None:
    """Change weights so that all of them matter, and a recording gets various labels, including blanks."""
    generator = torch.Generator().manual_seed(9)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("running_var"):
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
        elif name.endswith(("running_mean", "bias_u", "bias_v")):
            tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator))
    # The states of a random encoder differ little. The head subtracts the mean of the logits and scales them up.
    head, bands = model.ctc_head, model.config.encoder_config.num_mel_bins
    states = model.eval().encoder(torch.randn(1, 400, bands, generator=generator)).last_hidden_state[0]
    head.weight.mul_(60)
    head.bias.copy_(-(head.weight[..., 0] @ states.mean(0)))
    head.bias[BLANK] += 0.5
    head.bias[0] -= 100
