"""Settings of a speech model whose decoder writes text without timestamps (Moonshine, Cohere ASR)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.text.speech.speech import code_of
from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import Tokenizer, TokenizerError

SAMPLE_RATE = 16_000
_PLAIN_LOG_MEL: Mapping[str, Any] = {"feature_size": 80}
"""Settings of Parakeet's log-mel frames that are not in `_LOG_MEL`, with the defaults for a file that omits them."""


PROMPTED_FAMILIES = frozenset({"cohere_asr"})
"""Values of `model_type` for models whose decoder prompt names the language, and whose encoder reads log-mel frames."""
_TOKENS_PER_SECOND = 13
"""Most new tokens for each second of audio, for models whose prompt is their start token (Moonshine)."""
_PROMPT = (
    "▁",
    "<|startofcontext|>",
    "<|startoftranscript|>",
    "<|emo:undefined|>",
    "<|{0}|>",
    "<|{0}|>",
    "<|pnc|>",
    "<|noitn|>",
    "<|notimestamp|>",
    "<|nodiarize|>",
)
"""Decoder prompt of Cohere ASR for a language code `{0}`: with punctuation, and without timestamps.

Source: `CohereAsrProcessor` of transformers.
"""
_LANGUAGES = ("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")
_WITHOUT_SPACES = frozenset({"ja", "zh"})
"""Languages in which the texts of two windows are joined without a space, as in `CohereAsrProcessor`."""
_PROMPTED_LOG_MEL = {"feature_size": 128, "dither": 1e-5}
"""Settings of Cohere ASR's log-mel frames that are not in `_LOG_MEL`, with the defaults for a file that omits them."""


@dataclass(frozen=True)
class UntimedSpeech:
    """Audio settings and decoder prompts of a speech checkpoint whose decoder writes no timestamps.

    normalizes: whether samples are scaled to a mean of zero and a variance of one.
    prompts: token ids of the decoder prompt, by language code. Empty for a model whose prompt is its start token.
    tokens_per_second: most new tokens per second of a window; None for no limit but the context. The limit ends texts
        that repeat themselves. The model cards of Moonshine state 6.5 tokens per second for English, and 13 for
        languages whose scripts take more tokens.
    """

    normalizes: bool
    prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tokens_per_second: int | None = _TOKENS_PER_SECOND

    @classmethod
    def from_checkpoint(cls, directory: Path, tokenizer: Tokenizer) -> UntimedSpeech:
        """Read the files of a checkpoint.

        Raises TokenizerError for settings that are not supported, and if the vocabulary lacks the prompt's tokens.
        """
        config = read_json(directory, "config.json")
        if config.get("model_type") not in PROMPTED_FAMILIES:
            return cls(normalizes_samples(directory))
        check_log_mel(directory, config, _PROMPTED_LOG_MEL)
        offered = config.get("supported_languages")
        codes = [code for code in _LANGUAGES if not isinstance(offered, list) or code in offered]
        prompts = {code: ids for code in codes if (ids := _prompt(tokenizer, code)) is not None}
        if not prompts:
            raise TokenizerError(f"the vocabulary lacks tokens of the decoder prompt, such as {_PROMPT[1]}")
        return cls(False, prompts, None)

    def language(self, name: str) -> str | None:
        """The model's code for a language code or an English language name; None for an unsupported language."""
        return code_of(name, self.prompts)

    @staticmethod
    def separator(language: str) -> str:
        """Return the text between the texts of two windows: a space, or nothing in Japanese and Chinese."""
        return "" if language in _WITHOUT_SPACES else " "


def _prompt(tokenizer: Tokenizer, language: str) -> tuple[int, ...] | None:
    """Return the token ids of Cohere ASR's decoder prompt for a language; None if the vocabulary lacks a token."""
    ids = [tokenizer.token_to_id(token.format(language)) for token in _PROMPT]
    return None if None in ids else tuple(token for token in ids if token is not None)


_LOG_MEL = {"sampling_rate": SAMPLE_RATE, "hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97}
"""Settings of the log-mel frames that encoders here compute from samples; no other values are supported."""


def check_log_mel(directory: Path, config: Mapping[str, Any], defaults: Mapping[str, Any] = _PLAIN_LOG_MEL) -> None:
    """Raise TokenizerError unless a checkpoint's `preprocessor_config.json` asks for log-mel frames as computed here.

    config: contents of `config.json`; `num_mel_bins` of its encoder is the number of mel bands.
    defaults: further settings that must match, with the values for a file that omits them. `feature_size` is the
        number of mel bands, if `config` does not state it.
    """
    features, encoder = read_json(directory, "preprocessor_config.json"), config.get("encoder_config")
    bands = defaults["feature_size"]
    if isinstance(encoder, dict):
        bands = encoder.get("num_mel_bins", bands)
    for setting, supported in {**_LOG_MEL, **defaults, "feature_size": bands}.items():
        found = features.get(setting, defaults.get(setting, supported))
        if found != supported:
            raise TokenizerError(f"preprocessor_config.json: {setting!r} must be {supported}")


def normalizes_samples(directory: Path) -> bool:
    """Whether a checkpoint's model expects samples that are scaled to a mean of zero and a variance of one.

    Reads `preprocessor_config.json`. Raises TokenizerError for settings that are not supported.
    """
    features = read_json(directory, "preprocessor_config.json")
    for setting, supported in (("sampling_rate", SAMPLE_RATE), ("feature_size", 1)):
        if features.get(setting, supported) != supported:
            raise TokenizerError(f"preprocessor_config.json: {setting!r} must be {supported:,}")
    normalizes = features.get("do_normalize", True)
    if not isinstance(normalizes, bool):
        raise TokenizerError("preprocessor_config.json: 'do_normalize' must be true or false")
    return normalizes
