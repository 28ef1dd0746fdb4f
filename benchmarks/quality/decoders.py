"""Compare decoders on the same texts: every token is predicted from the text before it (teacher forcing)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from models.backends.choice import Quantization
from models.checkpoint.loader import LoadedModel, load_model
from models.steps.batch import EncoderBatch

_TOKENS_TOGETHER = 2048
CPU = torch.device("cpu")


class Decoder:
    """A decoder and its hidden states of all texts.

    path: checkpoint directory or GGUF file. dtype, quantization: see `load_model`.
    windows: the token ids of each text.
    """

    def __init__(
        self, path: Path, windows: Sequence[list[int]], dtype: torch.dtype, quantization: Quantization | None = None
    ) -> None:
        self.loaded: LoadedModel = load_model(path, dtype, CPU, quantization=quantization)
        self._hidden = self._encode(windows)

    @property
    def vocab_size(self) -> int:
        return self.loaded.transformer.vocab_size

    @property
    def bits_per_weight(self) -> float:
        """Memory of all weights, in bits for each parameter."""
        return 8 * self.loaded.weight_bytes / self.loaded.parameters

    def logits(self, first: int, last: int) -> Tensor:
        """Logits of the tokens first..last-1. See `divergence.Logits`."""
        with torch.inference_mode():
            return self.loaded.transformer.logits(self._hidden[first:last]).float()

    def _encode(self, windows: Sequence[list[int]]) -> Tensor:
        found, texts = [], max(1, _TOKENS_TOGETHER // max(map(len, windows)))
        for first in range(0, len(windows), texts):
            part = windows[first : first + texts]
            batch = EncoderBatch(
                torch.tensor([token for text_ids in part for token in text_ids]), tuple(map(len, part))
            )
            with torch.inference_mode():
                found.append(self.loaded.transformer.encode(batch).clone())
        return torch.cat(found)


def next_tokens(windows: Sequence[list[int]]) -> Tensor:
    """The token after each token of the texts; -1 after the last one of a text. Returns [tokens], int64."""
    return torch.tensor([token for window in windows for token in (*window[1:], -1)])
