"""Settings of a speech model whose decoder writes text alone, without times."""

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
"""Settings of the log-mel frames of Parakeet, with the values of a file without them."""


PROMPTED_FAMILIES = frozenset({"cohere_asr"})
"""Values of `model_type` whose decoder prompt has the language, and whose encoder reads log-mel frames."""
_TOKENS_PER_SECOND = 13
"""Limit for models without a prompt. See `UntimedSpeech.tokens_per_second`."""
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
"""Decoder prompt of Cohere ASR for a language: with punctuation, and without times. `CohereAsrProcessor` has it."""
_LANGUAGES = ("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")
_WITHOUT_SPACES = frozenset({"ja", "zh"})
"""Languages whose windows are joined without a space, as `CohereAsrProcessor` joins them."""
_PROMPTED_LOG_MEL = {"feature_size": 128, "dither": 1e-5}
"""Further settings of the log-mel frames of Cohere ASR, with the values of a file without them."""


@dataclass(frozen=True)
class UntimedSpeech:
    """What a checkpoint says about its input and its decoder prompts.

    normalizes: samples get a mean of zero and a variance of one.
    prompts: token ids of the decoder prompt by language code. Empty for a model whose prompt is its start token.
    tokens_per_second: most new tokens for each second of a window, so that a text that repeats itself ends. None for
        no limit but the context. The model cards of Moonshine limit texts to 6.5 tokens a second for English and to 13
        for languages whose scripts take more tokens.
    """

    normalizes: bool
    prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tokens_per_second: int | None = _TOKENS_PER_SECOND

    @classmethod
    def from_checkpoint(cls, directory: Path, tokenizer: Tokenizer) -> UntimedSpeech:
        """Read the files of a checkpoint. Raises TokenizerError for settings that are not supported."""
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
        """What joins the texts of two windows. language: code of their language."""
        return "" if language in _WITHOUT_SPACES else " "


def _prompt(tokenizer: Tokenizer, language: str) -> tuple[int, ...] | None:
    """The decoder prompt for a language; None if the vocabulary lacks one of its tokens."""
    ids = [tokenizer.token_to_id(token.format(language)) for token in _PROMPT]
    return None if None in ids else tuple(token for token in ids if token is not None)


_LOG_MEL = {"sampling_rate": SAMPLE_RATE, "hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97}
"""Settings of the log-mel frames that encoders compute from samples."""


def check_log_mel(directory: Path, config: Mapping[str, Any], defaults: Mapping[str, Any] = _PLAIN_LOG_MEL) -> None:
    """Raise TokenizerError unless the feature extractor of a checkpoint computes the frames that its encoder computes.

    config: content of `config.json`, whose encoder has the number of bands.
    defaults: settings with the values of a file without them: the number of bands, and what else the encoder computes.
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
    """Whether the feature extractor of a checkpoint that reads samples gives them a mean of zero and a variance of one.

    Raises TokenizerError for settings that are not supported.
    """
    features = read_json(directory, "preprocessor_config.json")
    for setting, supported in (("sampling_rate", SAMPLE_RATE), ("feature_size", 1)):
        if features.get(setting, supported) != supported:
            raise TokenizerError(f"preprocessor_config.json: {setting!r} must be {supported:,}")
    normalizes = features.get("do_normalize", True)
    if not isinstance(normalizes, bool):
        raise TokenizerError("preprocessor_config.json: 'do_normalize' must be true or false")
    return normalizes
