"""Compare settings on the demo models: divergence of the story model, share of exact translations of the translator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.cache_quality import translations
from benchmarks.quality import decoders
from benchmarks.quality.chrf import chrf
from benchmarks.quality.contestants import load_ours, split
from server.text.tokenizers.load import load_tokenizer
from weights.demo.train import stories, translation
from weights.demo.train.training import HOME

MODELS = (stories.NAME, translation.NAME)
_STORIES = 200
_SENTENCES = 1000

Row = dict[str, Any]


def compare(model: str, names: Sequence[str]) -> Iterator[Row]:
    """Measure settings of Triptych on a demo model, and yield a row of results for each.

    model: name of the story model or of the translator. names: some of `contestants.OURS` and `contestants.CACHES`.
    """
    if model == translation.NAME:
        for name in names:
            weights, cache = split(name)
            pairs = translations(weights, cache, _SENTENCES)
            exact = sum(found == target for found, target in pairs) / _SENTENCES
            yield {"name": name, "by": "triptych", "exact": exact, "chrf": chrf(pairs), "tokens": _SENTENCES}
        return
    encoded = load_tokenizer(HOME / model).encode(stories.held_out_stories(_STORIES), offsets=False)
    windows = [encoding.ids for encoding in encoded]
    reference = decoders.Decoder(HOME / model, torch.float32)
    for name in names:
        ours = load_ours(HOME / model, name)
        found, bits = decoders.compare(reference, ours, windows), ours.bits_per_weight
        yield {"name": name, "by": "triptych", "bits": bits, **found.as_dict(), "tokens": sum(map(len, windows))}
