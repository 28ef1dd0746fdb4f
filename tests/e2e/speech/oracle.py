"""Transcribe recordings with transformers, as the reference for the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import WhisperFeatureExtractor

from tests.parity.speech import FIRST_TIME


class Oracle:
    """A Whisper model of transformers, with the checkpoint of the server and transformers' tokenizer."""

    def __init__(self, directory: Path, model) -> None:
        self.directory = directory
        self.model = model
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
        self.window = 2 * model.config.max_source_positions

    def frames(self, samples: np.ndarray) -> torch.Tensor:
        hear = WhisperFeatureExtractor(feature_size=self.model.config.num_mel_bins)
        short = len(samples) < 160 * self.window
        padding = {"padding": "max_length", "max_length": 160 * self.window} if short else {"padding": "longest"}
        return hear(samples, sampling_rate=16_000, truncation=False, return_tensors="pt", **padding).input_features

    @torch.inference_mode()
    def segments(self, samples: np.ndarray, **settings) -> list[dict]:
        settings = {"return_timestamps": True, "task": "transcribe", **settings}
        return self.model.generate(self.frames(samples), return_segments=True, **settings)["segments"][0]

    def words(self, tokens: list[int]) -> str:
        return self.tokenizer.decode([token for token in tokens if token < FIRST_TIME], skip_special_tokens=True)
