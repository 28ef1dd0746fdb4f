"""Write tiny random Whisper checkpoints, and make artificial recordings for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import WhisperConfig

from tests.parity.checkpoints import write_model
from tests.wire.checkpoints import byte_alphabet

TEXT_TOKENS = 256
"""Number of text tokens, one per byte. Higher token ids are special tokens and timestamps."""
END, START = TEXT_TOKENS, TEXT_TOKENS + 1
LANGUAGES = {f"<|{code}|>": START + 1 + at for at, code in enumerate(("en", "de", "fr"))}
TRANSLATE, TRANSCRIBE = START + 4, START + 5
START_OF_PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = START + 6, START + 7, START + 8
FIRST_TIME = NO_TIMESTAMPS + 1
_BASE = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "vocab_size": FIRST_TIME + 51,
    "decoder_start_token_id": START,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}
SHAPES = {
    "whisper": WhisperConfig(**_BASE, num_mel_bins=80),
    "whisper-wide-ear": WhisperConfig(
        **{**_BASE, "decoder_layers": 1, "encoder_layers": 3, "decoder_attention_heads": 2, "max_source_positions": 30},
        num_mel_bins=128,
        activation_function="relu",
    ),
}
GENERATION = {
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": END,
    "max_length": 64,
    "is_multilingual": True,
    "lang_to_id": LANGUAGES,
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "prev_sot_token_id": START_OF_PREVIOUS,
    "max_initial_timestamp_index": 25,
    "suppress_tokens": [7, 8, START, TRANSLATE, TRANSCRIBE, START_OF_PREVIOUS, NO_SPEECH, *LANGUAGES.values()],
    "begin_suppress_tokens": [5, END],
}


def write(directory: Path, shape: str | WhisperConfig, seed: int = 0, **generation: object):
    """Write a checkpoint with `generation_config.json`. Returns the model that transformers loads from it."""
    config = SHAPES[shape] if isinstance(shape, str) else shape
    write_model(directory, config, "WhisperForConditionalGeneration", seed=seed, change=_strengthen_audio)
    (directory / "generation_config.json").write_text(json.dumps(GENERATION | generation))
    cls = transformers.WhisperForConditionalGeneration
    return cls.from_pretrained(directory, attn_implementation="eager").eval()


def write_tokenizer(directory: Path) -> None:
    """Write a byte-level tokenizer with the special tokens of the checkpoint. Its timestamps are ordinary tokens."""
    vocabulary = {character: index for index, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, "<|translate|>", "<|transcribe|>"]
    tokenizer.add_special_tokens([*special, "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"])
    assert tokenizer.token_to_id("<|notimestamps|>") == NO_TIMESTAMPS
    tokenizer.add_tokens([f"<|{0.02 * at:.2f}|>" for at in range(51)])
    tokenizer.save(str(directory / "tokenizer.json"))
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | ends))


def _strengthen_audio(model) -> None:
    """Scale weights so that audio and position influence the next token more, and recordings give different texts."""
    model.model.decoder.embed_positions.weight.mul_(5)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.v_proj.weight.mul_(4)
        layer.encoder_attn.q_proj.weight.mul_(3)


def recording(seconds: float, seed: int = 0, rate: int = 16_000) -> np.ndarray:
    """Make a recording, [samples] in float32: a tone that rises by more than two octaves, with noise and pauses."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    sweep = np.sin(2 * np.pi * (150 + 90 * seed % 400) * time * (1 + 0.8 * time / max(seconds, 1)))
    loud = 0.5 * (1 + np.sign(np.sin(2 * np.pi * (0.7 + 0.13 * seed) * time)))
    return (0.3 * sweep * loud + 0.02 * generator.standard_normal(len(time))).astype(np.float32)


def frames_of(count: int, num_mels: int, num_frames: int, seed: int = 1) -> list[torch.Tensor]:
    """Random log-mel frames, [num_frames, num_mels], of `count` recordings."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(num_frames, num_mels, generator=generator) for _ in range(count)]
