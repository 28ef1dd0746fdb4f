"""Settings of a speech model whose decoder writes text alone, without times, languages and other special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import TokenizerError

SAMPLE_RATE = 16_000
DEFAULT_BANDS = 80


@dataclass(frozen=True)
class UntimedSpeech:
    """What a checkpoint says about its input.

    normalizes: samples get a mean of zero and a variance of one.
    """

    normalizes: bool

    @classmethod
    def from_checkpoint(cls, directory: Path) -> UntimedSpeech:
        """Read `preprocessor_config.json`. Raises TokenizerError for settings that are not supported."""
        return cls(normalizes_samples(directory))


_LOG_MEL = {"sampling_rate": SAMPLE_RATE, "hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97}
"""Settings of the log-mel frames that encoders compute from samples."""


def check_log_mel(directory: Path, config: Mapping[str, Any]) -> None:
    """Raise TokenizerError unless the feature extractor of a checkpoint computes the frames that its encoder computes.

    config: content of `config.json`, whose encoder has the number of bands.
    """
    features, encoder = read_json(directory, "preprocessor_config.json"), config.get("encoder_config")
    bands = encoder.get("num_mel_bins", DEFAULT_BANDS) if isinstance(encoder, dict) else DEFAULT_BANDS
    for setting, supported in {**_LOG_MEL, "feature_size": bands}.items():
        found = features.get(setting, DEFAULT_BANDS if setting == "feature_size" else supported)
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
