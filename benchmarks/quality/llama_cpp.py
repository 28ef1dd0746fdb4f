"""Run a GGUF file with llama.cpp on whole texts to compare its logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.llama_library import LlamaModel, Row
from benchmarks.quality.divergence import Logits


class LlamaCpp:
    """A model in a GGUF file, computed by llama.cpp. Implements `divergence.Model`.

    length: largest number of tokens of a text.
    """

    def __init__(self, packages: Path, file: Path, length: int, vocab_size: int) -> None:
        self._model = LlamaModel(packages, file, vocab_size, torch.get_num_threads(), length, length)

    def read(self, text: Sequence[int]) -> Logits:
        """Compute a text with llama.cpp. Returns a function that computes its logits. text: token ids."""
        self._model.clear()
        self._model.step([Row(token, position, 0, True) for position, token in enumerate(text)])
        logits = torch.from_numpy(self._model.all_logits(len(text)).copy())
        return lambda first, last: logits[first:last]
