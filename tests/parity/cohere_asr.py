"""Write tiny random checkpoints of Cohere ASR: the published configuration with smaller sizes, and its other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CohereAsrConfig

from tests.parity.checkpoints import write_model

LANGUAGES = ("de", "en", "ja")
_CONTROL = (
    "<|startofcontext|>",
    "<|startoftranscript|>",
    "<|emo:undefined|>",
    "<|pnc|>",
    "<|nopnc|>",
    "<|noitn|>",
    "<|notimestamp|>",
    "<|nodiarize|>",
    *(f"<|{code}|>" for code in LANGUAGES),
)
LETTERS = "▁etaoinshrdlucmfwypvbgkjqxz',.?!"
TOKENS = ("<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", *_CONTROL, *LETTERS)
START, END = TOKENS.index("▁"), TOKENS.index("<|endoftext|>")
_ENCODER: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "subsampling_conv_channels": 12,
    "num_mel_bins": 128,
}
_BASE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 72,
    "pad_token_id": TOKENS.index("<pad>"),
    "bos_token_id": START,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}
SHAPES: dict[str, CohereAsrConfig] = {
    "cohere-transcribe": CohereAsrConfig(**_BASE, encoder_config=_ENCODER),
    "cohere-transcribe-narrow": CohereAsrConfig(
        **{**_BASE, "hidden_size": 48, "head_dim": 8, "num_key_value_heads": 2, "attention_bias": False},
        encoder_config={**_ENCODER, "num_hidden_layers": 3, "conv_kernel_size": 5, "num_mel_bins": 80},
        hidden_act="silu",
        tie_word_embeddings=True,
    ),
}
GENERATION = {"bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START, "max_length": 64}


def prompt(language: str) -> list[int]:
    """The prompt that `CohereAsrProcessor` of transformers gives the decoder for a language."""
    names = ("▁", "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", f"<|{language}|>",
             f"<|{language}|>", "<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>")  # fmt: skip
    return [TOKENS.index(name) for name in names]


def write(directory: Path, shape: str, seed: int = 0) -> Any:
    """Write a checkpoint with its tokenizer and feature extractor.

    Returns the model that transformers loads from it.
    """
    write_model(directory, SHAPES[shape], "CohereAsrForConditionalGeneration", seed=seed, change=_spread)
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    write_text_files(directory, SHAPES[shape].encoder_config.num_mel_bins)
    cls = transformers.CohereAsrForConditionalGeneration
    return cls.from_pretrained(directory, attn_implementation="eager").eval()


def write_text_files(directory: Path, num_mels: int, **features: Any) -> None:
    """Write a tokenizer of letters with control tokens, and the settings of the feature extractor."""
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(TOKENS)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tokenizer.add_special_tokens([token for token in TOKENS if token.startswith("<")])
    tokenizer.save(str(directory / "tokenizer.json"))
    roles = {
        "bos_token": "<|startoftranscript|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    settings = {"feature_extractor_type": "CohereAsrFeatureExtractor", "feature_size": num_mels, **features}
    for name, content in {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", **roles},
        "preprocessor_config": {**settings, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 512},
    }.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def features(directory: Path, samples: torch.Tensor) -> dict[str, torch.Tensor]:
    """The inputs of transformers' model for a recording: its log-mel frames and mask.

    samples: [samples], at most 30 s.
    """
    extractor = transformers.AutoFeatureExtractor.from_pretrained(directory)
    found = extractor(samples.cpu().numpy(), sampling_rate=16_000, return_tensors="pt")
    return {name: found[name].to(samples.device) for name in ("input_features", "attention_mask")}


def _spread(model: Any) -> None:
    """Change weights so that all of them matter: audio and position then change the next token."""
    generator, bands = torch.Generator().manual_seed(9), model.config.encoder_config.num_mel_bins
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("running_var"):
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
        elif name.endswith(("running_mean", "bias_u", "bias_v", "bias")) and name != "proj_out.bias":
            tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator))
    model.proj_out.bias.copy_(0.05 * torch.randn(model.proj_out.bias.shape, generator=generator))
    for layer in model.model.decoder.layers:
        layer.encoder_attn.v_proj.weight.mul_(12)
        layer.encoder_attn.q_proj.weight.mul_(6)
        layer.self_attn.q_proj.weight.mul_(2)
    # The states of a random encoder differ little. The projection subtracts their mean and scales them up.
    states = model.eval().model.encoder(torch.randn(1, 400, bands, generator=generator)).last_hidden_state[0]
    projection = model.model.decoder.proj
    projection.weight.mul_(16)
    projection.bias.copy_(-(projection.weight @ states.mean(0)))
