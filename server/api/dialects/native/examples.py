"""One valid request and its answer per route, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "generate": (
        {"prompt": "Once upon a time", "max_new_tokens": 16, "temperature": 0.8, "seed": 7},
        {
            "id": "gen-0d1f",
            "model": "gpt2",
            "choices": [{"index": 0, "text": " there was a king.", "finish_reason": "stop", "stop_reason": None}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10, "cached_tokens": 0},
            "seed": 7,
            "timings": {"queue_ms": 0.2, "prefill_ms": 4.1, "decode_ms": 30.5, "total_ms": 36.0},
        },
    ),
    "translate": (
        {"inputs": "The garden is small.", "source_lang": "en", "target_lang": "de"},
        {
            "id": "tr-0d1f",
            "model": "opus-mt-en-de",
            "translations": [
                {
                    "text": "Der Garten ist klein.",
                    "source_lang": "en",
                    "target_lang": "de",
                    "score": -0.41,
                    "alternatives": [],
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12, "cached_tokens": 0},
            "seed": 7,
            "timings": {"queue_ms": 0.2, "prefill_ms": 4.1, "decode_ms": 30.5, "total_ms": 36.0},
        },
    ),
    "embed": ({"inputs": ["a first text", "a second one"]}, [[0.6, 0.8], [0.8, 0.6]]),
    "embed_chunks": (
        {"inputs": "The fox sleeps. It is old.", "chunks": "sentences"},
        [
            {"start": 0, "end": 15, "embedding": [0.6, 0.8]},
            {"start": 16, "end": 26, "embedding": [0.8, 0.6]},
        ],
    ),
    "late_interaction": (
        {"inputs": "What do cats eat?", "late_interaction": "query"},
        [[[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]]],
    ),
    "embed_sparse": ({"inputs": "a text"}, [[{"index": 64, "value": 1.25}, {"index": 2420, "value": 0.5}]]),
    "embed_all": ({"inputs": ["a text"]}, [[[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]]]),
    "classify": (
        {"inputs": "I liked this film."},
        [{"label": "positive", "score": 0.98}, {"label": "negative", "score": 0.02}],
    ),
    "similarity": (
        {"inputs": {"source_sentence": "The cat sleeps.", "sentences": ["A cat is asleep.", "The king left."]}},
        [0.91, 0.12],
    ),
    "rerank": (
        {"query": "What do cats eat?", "texts": ["The king left.", "Cats eat fish."], "return_text": True},
        [{"index": 1, "score": 0.98, "text": "Cats eat fish."}, {"index": 0, "score": 0.01, "text": "The king left."}],
    ),
    "fill_mask": (
        {"inputs": "Paris is the [MASK] of France.", "top_k": 1},
        [{"score": 0.99, "token": 3007, "token_str": "capital", "sequence": "paris is the capital of france."}],
    ),
    "token_classify": (
        {"inputs": "Ada Lovelace lived in London."},
        [
            {"entity_group": "PER", "score": 0.99, "word": "Ada Lovelace", "start": 0, "end": 12},
            {"entity_group": "LOC", "score": 0.98, "word": "London", "start": 22, "end": 28},
        ],
    ),
    "labelled_entities": (
        {"inputs": "Ada Lovelace lived in London.", "labels": ["person", "city"]},
        [
            {"entity_group": "person", "score": 0.97, "word": "Ada Lovelace", "start": 0, "end": 12},
            {"entity_group": "city", "score": 0.95, "word": "London", "start": 22, "end": 28},
        ],
    ),
    "question_answer": (
        {"question": "Where did Ada live?", "context": "Ada Lovelace lived in London."},
        [{"answer": "London", "score": 0.97, "start": 22, "end": 28}],
    ),
    "zero_shot_classify": (
        {"inputs": "The match ended two all.", "candidate_labels": ["sport", "cooking"]},
        {"labels": ["sport", "cooking"], "scores": [0.98, 0.02]},
    ),
    "tokenize": (
        {"inputs": "a text"},
        [[{"id": 64, "text": "a", "start": 0, "end": 1, "special": False, "stop": 1}]],
    ),
    "detokenize": ({"ids": [64, 2420]}, ["a text"]),
}
