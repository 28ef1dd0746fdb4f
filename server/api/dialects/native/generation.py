"""Render the answers of `/generate` and `/translate`, as whole answers or as server-sent events."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from server.api.bodies.sse import frame
from server.api.dialects.native.bodies import GenerateBody, TranslateBody, is_one
from server.errors import RequestError
from server.ipc.wire.logprobs import TokenLogprob
from server.operations.generating.generate import GeneratedChoice, GenerateResult
from server.operations.generating.generated_text import AttentionMatrix, ScoredToken, TextDelta
from server.operations.generating.generation_run import PhaseSeconds, TokenUsage
from server.operations.translating.segments import SegmentDelta
from server.operations.translating.translate_run import TranslatedSentence, TranslatedText, TranslateResult


class GenerateRenderer:
    """Renders answers of `POST /generate`.

    Events of a stream: `token` for new text, and at the end `done` with the whole answer, or `error`.
    """

    def __init__(self, body: GenerateBody) -> None:
        self.body = body
        self.id = f"gen-{uuid.uuid4().hex}"

    def deltas(self, deltas: list[TextDelta]) -> bytes:
        return b"".join(
            [
                frame(
                    "token",
                    {
                        "id": self.id,
                        "index": delta.answer.index,
                        "text": delta.text,
                        "tokens": _tokens(delta.token_ids, delta.logprobs),
                    },
                )
                for delta in deltas
                if delta.text or delta.token_ids
            ]
        )

    def end(self, result: GenerateResult) -> bytes:
        return frame("done", self.whole(result))

    def error(self, error: RequestError, request_id: str) -> bytes:
        return frame("error", error.body(request_id))

    def whole(self, result: GenerateResult) -> dict[str, Any]:
        return {
            "id": self.id,
            "model": result.model,
            "choices": (self._choice(index, choice) for index, choice in enumerate(result.choices)),
            "usage": _usage(result.usage),
            "seed": result.seed,
            "timings": _timings(result.timings),
        }

    def _choice(self, index: int, choice: GeneratedChoice) -> dict[str, Any]:
        rendered: dict[str, Any] = {"index": index, "text": choice.text}
        if self.body.return_token_ids:
            rendered["token_ids"] = choice.token_ids
        rendered["finish_reason"] = choice.finish_reason
        rendered["stop_reason"] = choice.stop_reason
        if choice.score is not None:
            rendered["score"] = choice.score
        if choice.logprobs is not None:
            rendered["logprobs"] = (_scored(token) for token in choice.logprobs)
        if choice.prompt_logprobs is not None:
            rendered["prompt_logprobs"] = (token and _scored(token) for token in choice.prompt_logprobs)
        if choice.attention is not None:
            rendered["attention"] = _alignment(choice.attention)
        if not is_one(self.body.prompt):
            rendered["prompt_index"] = choice.prompt_index
        if choice.error is not None:
            rendered["error"] = choice.error.fields()
        return rendered


class TranslateRenderer:
    """Renders answers of `POST /translate`.

    Events of a stream: `token` for new text, in the order of the text, and at the end `done` with the whole answer, or
    `error`.
    """

    def __init__(self, body: TranslateBody) -> None:
        self.body = body
        self.id = f"tr-{uuid.uuid4().hex}"

    def deltas(self, deltas: list[SegmentDelta]) -> bytes:
        return b"".join(
            [
                frame(
                    "token",
                    {
                        "id": self.id,
                        "index": delta.input,
                        "segment": delta.segment,
                        "text": delta.text,
                        "tokens": _tokens(delta.token_ids, delta.logprobs),
                    },
                )
                for delta in deltas
            ]
        )

    def end(self, result: TranslateResult) -> bytes:
        return frame("done", self.whole(result))

    def error(self, error: RequestError, request_id: str) -> bytes:
        return frame("error", error.body(request_id))

    def whole(self, result: TranslateResult) -> dict[str, Any]:
        return {
            "id": self.id,
            "model": result.model,
            "translations": (self._translation(translation) for translation in result.translations),
            "usage": _usage(result.usage),
            "seed": result.seed,
            "timings": _timings(result.timings),
        }

    def _translation(self, translation: TranslatedText) -> dict[str, Any]:
        rendered: dict[str, Any] = {
            "text": translation.text,
            "source_lang": translation.source_lang,
            "target_lang": translation.target_lang,
            "score": translation.score,
            "alternatives": [{"text": text, "score": score} for text, score in translation.alternatives],
            "finish_reason": translation.finish_reason,
        }
        if translation.pivot is not None:
            rendered["pivot"] = translation.pivot
        if self.body.return_token_ids:
            rendered["token_ids"] = translation.token_ids
        if translation.logprobs is not None:
            rendered["logprobs"] = (_scored(token) for token in translation.logprobs)
        if translation.alignments is not None:
            rendered["attention"] = (_alignment(alignment) for alignment in translation.alignments)
        if translation.flags:
            rendered["flags"] = list(translation.flags)
        if translation.sentences is not None:
            rendered["sentences"] = [_sentence(sentence) for sentence in translation.sentences]
        if translation.error is not None:
            rendered["error"] = translation.error.fields()
        return rendered


def _sentence(sentence: TranslatedSentence) -> dict[str, Any]:
    rendered: dict[str, Any] = {"source": sentence.source, "text": sentence.text, "score": sentence.score}
    if sentence.flags:
        rendered["flags"] = list(sentence.flags)
    if sentence.is_second_attempt:
        rendered["second_attempt"] = True
    return rendered


def _tokens(token_ids: list[int], logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """The field `tokens` of a `token` event: ids, with log-probabilities if the request asks for them."""
    if not logprobs:
        return [{"id": token_id} for token_id in token_ids]
    return [{"id": entry.token_id, "logprob": entry.logprob} for entry in logprobs]


def _scored(token: ScoredToken) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "token": token.token,
        "logprob": token.logprob,
        "top": [
            {"id": candidate.token_id, "token": candidate.token, "logprob": candidate.logprob}
            for candidate in token.top
        ],
    }


def _alignment(alignment: AttentionMatrix) -> dict[str, Any]:
    return {
        "source_tokens": alignment.source_tokens,
        "target_tokens": alignment.target_tokens,
        "matrix": iter(alignment.matrix),
    }


def _usage(usage: TokenUsage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def _timings(timings: PhaseSeconds) -> dict[str, float | None]:
    return {
        "queue_ms": _milliseconds(timings.queue_seconds),
        "prefill_ms": _milliseconds(timings.prefill_seconds),
        "decode_ms": _milliseconds(timings.decode_seconds),
        "total_ms": _milliseconds(timings.total_seconds),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
