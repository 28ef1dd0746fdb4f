"""The OpenAPI document: bodies, answers, errors and an example for every route. Does not take part in answering."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.api import responses, schemas, speech_schemas

DESCRIPTION = (
    "One inference server for the three transformer families: encoders (BERT), decoders (GPT-2, LLaMA) and "
    "encoder-decoders (T5, BART, Marian). Every accepted field works, or the request fails and names the field."
)

_ERRORS = {
    401: "missing or wrong API key",
    404: "no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not declared as what the route takes",
    422: "malformed JSON, a bad value, or what does not fit",
    429: "the queue is full",
    500: "a fault in the engine",
    503: "loading, draining, or the worker is being replaced",
    504: "the deadline passed before the first byte",
}

_EXAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
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
    "question_answer": (
        {"question": "Where did Ada live?", "context": "Ada Lovelace lived in London."},
        [{"answer": "London", "score": 0.97, "start": 22, "end": 28}],
    ),
    "zero_shot_classify": (
        {"inputs": "The match ended two all.", "candidate_labels": ["sport", "cooking"]},
        [{"label": "sport", "score": 0.98}, {"label": "cooking", "score": 0.02}],
    ),
    "transcriptions": (
        {"file": "(the bytes of a WAV file)", "language": "en", "response_format": "verbose_json"},
        {
            "text": "The garden is small.",
            "usage": {"type": "duration", "seconds": 3},
            "task": "transcribe",
            "language": "english",
            "duration": 2.41,
            "segments": [
                {
                    "id": 0,
                    "seek": 0,
                    "start": 0.0,
                    "end": 2.2,
                    "text": " The garden is small.",
                    "tokens": [50364, 440, 5431, 307, 1359, 13, 50474],
                    "temperature": 0.0,
                    "avg_logprob": -0.21,
                    "compression_ratio": 0.72,
                }
            ],
        },
    ),
    "translations": (
        {"file": "(the bytes of a WAV file)"},
        {"text": "The garden is small.", "usage": {"type": "duration", "seconds": 3}},
    ),
    "tokenize": (
        {"inputs": "a text"},
        [[{"id": 64, "text": "a", "start": 0, "end": 1, "special": False}]],
    ),
    "detokenize": ({"ids": [64, 2420]}, ["a text"]),
    "health": ({}, {"status": "ok"}),
    "ready": ({}, {"status": "ready"}),
}

_ANSWERS: dict[str, type[BaseModel]] = {
    "generate": responses.GenerateAnswer,
    "translate": responses.TranslateAnswer,
    "embed": responses.EmbedAnswer,
    "embed_all": responses.EmbedAllAnswer,
    "classify": responses.ClassifyAnswer,
    "similarity": responses.SimilarityAnswer,
    "rerank": responses.RerankAnswer,
    "fill_mask": responses.FillMaskAnswer,
    "token_classify": responses.TokenClassifyAnswer,
    "question_answer": responses.QuestionAnswerAnswer,
    "zero_shot_classify": responses.ClassifyAnswer,
    "transcriptions": responses.TranscriptionAnswer,
    "translations": responses.TranscriptionAnswer,
    "tokenize": responses.TokenizeAnswer,
    "detokenize": responses.DetokenizeAnswer,
    "health": responses.Status,
    "ready": responses.Status,
    "info": responses.InfoAnswer,
}

_FILE = {"type": "string", "format": "binary", "description": "a WAV file"}
_STREAM = (
    "With `stream`: server-sent events, `token` after `token` and then `done` with the whole answer, "
    "or `error` and no `done`."
)


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _error_answer(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _reference(responses.ErrorAnswer)}}}


def operation(name: str, body: type[BaseModel] | None = None, media_type: str = "application/json") -> dict[str, Any]:
    """Arguments for a route's decorator: its id, what it takes and everything it may answer.

    media_type: of the body; a form has a part `file` beside its fields.
    """
    example, answer = _EXAMPLES.get(name, ({}, None))
    content: dict[str, Any] = {"schema": _reference(_ANSWERS[name])} if name in _ANSWERS else {}
    if answer is not None:
        content["example"] = answer
    success: dict[str, Any] = {"description": "the answer", "content": {"application/json": content}}
    if name == "metrics":
        success["content"] = {"text/plain": {"schema": {"type": "string"}}}
    errors = {401, 500} if body is None else set(_ERRORS)
    if media_type != "application/json":
        errors = errors - {422} | {400}
        success["content"] |= {"text/plain": {"schema": {"type": "string"}}, "text/vtt": {"schema": {"type": "string"}}}
    if name in ("generate", "translate"):
        success["description"] = f"the answer. {_STREAM}"
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if name in ("health", "ready"):
        errors = {503}
    answers: dict[int | str, dict[str, Any]] = {200: success}
    answers |= {status: _error_answer(_ERRORS[422 if status == 400 else status]) for status in sorted(errors)}
    extra: dict[str, Any] = {}
    if body is not None:
        media = {"schema": _reference(body), "example": example}
        extra["requestBody"] = {"required": True, "content": {media_type: media}}
    return {"operation_id": name, "responses": answers, "openapi_extra": extra}


def document(app: FastAPI) -> dict[str, Any]:
    """The whole OpenAPI document of an application."""
    bodies: list[type[BaseModel]] = [
        schemas.GenerateBody,
        schemas.TranslateBody,
        schemas.EmbedBody,
        schemas.EmbedAllBody,
        schemas.ClassifyBody,
        schemas.SimilarityBody,
        schemas.RerankBody,
        schemas.FillMaskBody,
        schemas.TokenClassifyBody,
        schemas.QuestionAnswerBody,
        schemas.ZeroShotClassifyBody,
        speech_schemas.TranscriptionForm,
        speech_schemas.TranslationForm,
        schemas.TokenizeBody,
        schemas.DetokenizeBody,
    ]
    answers: list[type[BaseModel]] = [*dict.fromkeys(_ANSWERS.values()), responses.ErrorAnswer]
    described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    modes: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    modes += [(body, "validation") for body in bodies]
    modes += [(answer, "serialization") for answer in answers]
    _, definitions = models_json_schema(
        modes,
        ref_template="#/components/schemas/{model}",
    )
    components = described.setdefault("components", {})
    for form in (speech_schemas.TranscriptionForm, speech_schemas.TranslationForm):
        described_form = definitions["$defs"][form.__name__]
        described_form["properties"] = {"file": _FILE, **described_form["properties"]}
        described_form["required"] = ["file"]
    components["schemas"] = definitions["$defs"]
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"key": []}, {}]
    return described
