"""Quantised demo models and int8 KV caches: accuracy and perplexity stay within one percent of float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, MarianTokenizer

from models.checkpoint.loader import load_model
from server.engine.loading.load import load
from server.engine.loading.model_building import build
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from tests.engine.harness import run
from tests.parity.paged import Rows
from weights.demo.train import reviews, stories, translation
from weights.demo.train.training import HOME

CPU = torch.device("cpu")
LOSS = {"int8": 0.01, "int4": 0.01, "int8 cache": 0.005}
"""By quantisation: the largest allowed loss of exact translations, and relative change of perplexity."""


def engine(name: str, kind: str | None) -> Engine:
    quantization, cache = (None, "int8") if kind == "int8 cache" else (kind, "auto")
    loaded = load(ModelSpec(name, str(HOME / name), "float32", quantization), CPU, lambda done, total: None)
    return Engine({name: build(loaded, EngineOptions(kv_cache_dtype=cache), 64 << 20)[0]}, CPU)


def translations(sources: list[str], kind: str | None) -> list[str]:
    name = translation.NAME
    tokenizer = MarianTokenizer.from_pretrained(HOME / name)
    pad = tokenizer.pad_token_id
    params = GenerationParams(end_token_ids=[0], bad_words_ids=[[pad]], forced_eos_token_id=0)
    prompts = tokenizer(sources)["input_ids"]
    rows = [GenerateRow(number, 60, number, [pad]) for number in range(len(prompts))]
    results = run(engine(name, kind), [Generate(name, params, prompts, rows)])
    return [tokenizer.decode(results.texts(number)[0], skip_special_tokens=True) for number in range(len(sources))]


@pytest.mark.parametrize("kind", LOSS)
def test_translations_are_exact_nearly_as_often(kind):
    pairs = translation.held_out_pairs(200, seed=78)
    sources, targets = zip(*pairs, strict=True)
    right, before = (
        sum(map(str.__eq__, translations(list(sources), rounding), targets)) / len(targets) for rounding in (kind, None)
    )
    assert right >= (1 - LOSS[kind]) * before and before >= 0.95


def test_the_quantized_classifier_is_right_as_often():
    held = reviews.held_out_reviews(300, seed=78)
    tokenizer = AutoTokenizer.from_pretrained(HOME / reviews.NAME)
    items = [EncodeItem(ids) for ids in tokenizer([text for text, _ in held])["input_ids"]]
    right = {}
    for kind in (None, "int8", "int4"):
        results = run(engine(reviews.NAME, kind), [Encode(0, reviews.NAME, "classify", items)])
        logits = np.stack([np.frombuffer(results.encoded[0, number], "<f4") for number in range(len(items))])
        right[kind] = float(np.mean(logits.argmax(1) == [label for _, label in held]))
    assert min(right["int8"], right["int4"]) >= 0.99 * right[None] and right[None] >= 0.97


@torch.inference_mode()
def perplexity(rows: list[list[int]], kind: str | None) -> float:
    quantization, cache = (None, torch.int8) if kind == "int8 cache" else (kind, None)
    model = load_model(HOME / stories.NAME, torch.float32, CPU, quantization=quantization).transformer
    losses = []
    for row in rows:
        (hidden,) = Rows(model, num_blocks=200, dtype=cache).feed({0: row[:-1]})
        losses.append(torch.nn.functional.cross_entropy(model.logits(hidden), torch.tensor(row[1:]), reduction="none"))
    return math.exp(torch.cat(losses).mean())


@pytest.mark.parametrize("kind", LOSS)
def test_perplexity_of_stories(kind):
    tokenizer = AutoTokenizer.from_pretrained(HOME / stories.NAME)
    rows = tokenizer(stories.held_out_stories(24))["input_ids"]
    assert perplexity(rows, kind) == pytest.approx(perplexity(rows, None), rel=LOSS[kind])
