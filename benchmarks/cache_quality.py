"""Measure how much quality an int8 KV cache costs on the demo models: `python -m benchmarks.cache_quality`.

Prints JSON: for each precision of the weights and each dtype of the cache, the perplexity of held-out stories and the
share of held-out sentences that are translated exactly.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import torch
from transformers import AutoTokenizer, MarianTokenizer

from benchmarks.precisions import ALL_PRECISIONS, model_spec
from server.engine.loading.load import load
from server.engine.loading.model_building import build
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, KVCacheDType
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.logprobs import Logprobs
from server.ipc.wire.params import GenerationParams
from weights.demo.train import stories, translation
from weights.demo.train.training import HOME

DEVICE = torch.device("cpu")


def make_engine(name: str, precision: str, cache: KVCacheDType) -> Engine:
    """An engine with the demo model `name`. precision: precision of the weights. cache: dtype of the KV cache."""
    loaded = load(model_spec(name, str(HOME / name), precision), DEVICE, lambda done, total: None)
    return Engine({name: build(loaded, EngineOptions(kv_cache_dtype=cache), 256 << 20)[0]}, DEVICE)


def perplexity(precision: str, cache: KVCacheDType, count: int) -> float:
    """Perplexity of `count` held-out stories. The engine gives the log-probabilities of their tokens as prompts."""
    engine = make_engine(stories.NAME, precision, cache)
    prompts = AutoTokenizer.from_pretrained(HOME / stories.NAME)(stories.held_out_stories(count))["input_ids"]
    rows = [GenerateRow(number, 1, number, prompt_logprobs=True) for number in range(count)]
    engine.add(Generate(stories.NAME, GenerationParams(), prompts, rows))
    losses: list[float] = []
    while engine.has_work:
        output = engine.step()
        for scored in output.prompts if output is not None else []:
            losses += [-entry.logprob for entry in Logprobs(scored.logprobs)]
    return math.exp(sum(losses) / len(losses))


def exact_translations(precision: str, cache: KVCacheDType, count: int) -> float:
    """Share of `count` held-out sentences whose greedy translation equals the reference."""
    return sum(found == target for found, target in translations(precision, cache, count)) / count


def translations(precision: str, cache: KVCacheDType, count: int) -> list[tuple[str, str]]:
    """Greedy translation and reference of each of `count` held-out sentences."""
    name = translation.NAME
    engine = make_engine(name, precision, cache)
    sources, targets = zip(*translation.held_out_pairs(count), strict=True)
    tokenizer = MarianTokenizer.from_pretrained(HOME / name)
    pad = tokenizer.pad_token_id
    params = GenerationParams(end_token_ids=[0], bad_words_ids=[[pad]], forced_eos_token_id=0)
    prompts = tokenizer(list(sources))["input_ids"]
    engine.add(Generate(name, params, prompts, [GenerateRow(number, 60, number, [pad]) for number in range(count)]))
    found: list[tuple[str, str]] = []
    while engine.has_work:
        output = engine.step()
        for end in output.finished if output is not None else []:
            text = tokenizer.decode(end.hypotheses[0].token_ids, skip_special_tokens=True)
            found.append((text, targets[end.sequence_id]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", default=list(ALL_PRECISIONS), choices=ALL_PRECISIONS)
    parser.add_argument("--stories", type=int, default=48)
    parser.add_argument("--sentences", type=int, default=1000)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    caches: tuple[KVCacheDType, ...] = ("auto", "int8")
    for precision in given.precisions:
        for cache in caches:
            found.append(
                {
                    "precision": precision,
                    "kv_cache_dtype": cache,
                    "perplexity": perplexity(precision, cache, given.stories),
                    "exact_translations": exact_translations(precision, cache, given.sentences),
                }
            )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
