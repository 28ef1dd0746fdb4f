"""Run Triptych's decoders on whole texts to compare their logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.quality.divergence import Divergence, Logits, measure, summarize
from models.backends.choice import Quantization
from models.checkpoint.loader import LoadedModel, load_model
from models.steps.batch import DecoderBatch, EncoderBatch
from models.steps.kv_cache import KVCache

CPU = torch.device("cpu")
_BLOCK_TOKENS = 32


class Decoder:
    """A decoder that Triptych computes. Implements `divergence.Model`.

    path: checkpoint directory or GGUF file. dtype: dtype of weights that are not quantised.
    quantization: value of `--quantize`, or None.
    """

    def __init__(self, path: Path, dtype: torch.dtype, quantization: Quantization | None = None) -> None:
        self.loaded: LoadedModel = load_model(path, dtype, CPU, quantization=quantization)

    @property
    def vocab_size(self) -> int:
        return self.loaded.transformer.vocab_size

    @property
    def bits_per_weight(self) -> float:
        """Memory of all weights, in bits for each parameter."""
        return 8 * self.loaded.weight_bytes / self.loaded.parameters

    def read(self, text: Sequence[int]) -> Logits:
        """Compute all hidden states of a text without a KV cache. Returns a function that computes logits from them.

        text: token ids.
        """
        transformer = self.loaded.transformer
        with torch.inference_mode():
            hidden = transformer.encode(EncoderBatch(torch.tensor(text), (len(text),))).clone()
        return self._logits_of(hidden)

    def _logits_of(self, hidden: Tensor) -> Logits:
        transformer = self.loaded.transformer

        def logits(first: int, last: int) -> Tensor:
            with torch.inference_mode():
                return transformer.logits(hidden[first:last]).float()

        return logits


class CachedDecoder(Decoder):
    """A decoder whose attention reads keys and values from a cache of 8 bits, as with `--kv-cache-dtype int8`.

    cache: dtype of keys and values. The other arguments are those of `Decoder`.
    """

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        cache: torch.dtype = torch.int8,
    ) -> None:
        super().__init__(path, dtype, quantization)
        self._cache_dtype = cache

    def read(self, text: Sequence[int]) -> Logits:
        """Compute all hidden states of a text through the KV cache. Returns a function that computes logits from them.

        text: token ids.
        """
        transformer, count = self.loaded.transformer, len(text)
        blocks = -(-count // _BLOCK_TOKENS)
        cache = KVCache(transformer.self_attention_layers(), blocks, _BLOCK_TOKENS, self._cache_dtype, CPU)
        positions = torch.arange(count)
        batch = DecoderBatch(
            torch.tensor(text), positions, (count,), (count,), positions, torch.arange(blocks)[None], ()
        )
        with torch.inference_mode():
            hidden = transformer.decode(batch, cache).hidden.clone()
        return self._logits_of(hidden)


def compare(reference: Decoder, decoder: Decoder, texts: Sequence[Sequence[int]]) -> Divergence:
    """The divergence of `decoder` from `reference` over texts, which are given as token ids."""
    return summarize([measure(reference, [decoder], text, reference.vocab_size)[0] for text in texts])
