"""Compare the embeddings of an encoder in a reduced precision with those in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.quality.contestants import settings_of
from benchmarks.quality.decoders import CPU
from models.checkpoint.loader import load_model
from models.layers.pooling import normalize, pool
from models.steps.batch import EncoderBatch
from server.text.tokenizers.load import load_tokenizer

SETTINGS = ("bfloat16", "int8", "int8-fast", "int6", "int5", "int4", "int4-32", "int4-128")
RANKED = 10
"""Number of texts at the beginning of a ranking that are compared."""
_TEXTS_TOGETHER = 50


def embed(path: Path, texts: Sequence[str], name: str = "float32") -> Tensor:
    """Embed texts: the mean of each text's hidden states, scaled to unit length. Returns [texts, hidden], float32.

    path: checkpoint directory. name: setting, one of `contestants.OURS`.
    """
    dtype, quantization = settings_of(name)
    tokenizer, model = load_tokenizer(path), load_model(path, dtype, CPU, quantization=quantization).transformer
    found = []
    for first in range(0, len(texts), _TEXTS_TOGETHER):
        encoded = [encoding.ids for encoding in tokenizer.encode(texts[first : first + _TEXTS_TOGETHER], offsets=False)]
        tokens = torch.tensor([token for ids in encoded for token in ids])
        batch = EncoderBatch(tokens, tuple(map(len, encoded)))
        with torch.inference_mode():
            found.append(normalize(pool(model.encode(batch), batch, "mean")).float())
    return torch.cat(found)


def compare(reference: Tensor, vectors: Tensor) -> dict[str, Any]:
    """Compare the vectors of texts with those of the reference. Both: [texts, hidden].

    Returns the median and the least cosine between the two vectors of a text. Each text also ranks the other texts by
    cosine; the result has the share of rankings whose first `RANKED` texts have the same order, the share with the same
    first text, and the mean share of these texts that both rankings have in any order.
    """
    cosines = (reference * vectors).sum(1) / vectors.norm(dim=1)
    expected, found = _ranking(reference), _ranking(vectors)
    shared = [len(set(one.tolist()) & set(other.tolist())) for one, other in zip(expected, found, strict=True)]
    return {
        "median_cosine": float(cosines.median()),
        "least_cosine": float(cosines.min()),
        "same_order": float((expected == found).all(1).double().mean()),
        "same_first": float((expected[:, 0] == found[:, 0]).double().mean()),
        "shared": sum(shared) / (RANKED * len(shared)),
    }


def _ranking(vectors: Tensor) -> Tensor:
    scores = vectors @ vectors.T
    scores.fill_diagonal_(-1)
    return scores.argsort(1, descending=True)[:, :RANKED]
