"""The dialect of text-generation-inference: `POST /generate` with `inputs`, and `POST /generate_stream`.

A stream has one event per token and no end marker; the last event has the whole text. A text includes the stop string
that ended it. Log-probabilities are those of the model's distribution before temperature, penalties and masks.
Source: the OpenAPI document of text-generation-inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from server.api.bodies.sse import data_frame
from server.api.dialects.huggingface.tgi_bodies import TgiBody
from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape, named_message
from server.api.routes.route import Route
from server.api.routes.streaming_route import StreamingRoute
from server.errors import RequestError
from server.ipc.wire.logprobs import TokenLogprob
from server.operations.generating.generate import SEED_LIMIT, GenerateResult, GenerateRun, generate
from server.operations.generating.generated_text import GeneratedText, TextDelta
from server.text.tokens.tokenizer import Tokenizer


class TgiToken(AnswerBody):
    id: int
    text: str
    logprob: float | None
    special: bool


class TgiPrefillToken(AnswerBody):
    """A token of the prompt. `logprob`: null for the first token."""

    id: int
    text: str
    logprob: float | None


class TgiSequence(AnswerBody):
    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    seed: int | None
    prefill: list[TgiPrefillToken]
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | None = None


class TgiBestOfSequence(TgiSequence):
    generated_text: str


class TgiDetails(TgiSequence):
    best_of_sequences: list[TgiBestOfSequence] | None = None


class TgiAnswer(AnswerBody):
    """The generated text. `details`: its tokens and statistics, if the request asks for them."""

    generated_text: str
    details: TgiDetails | None = None


class TgiErrorAnswer(ErrorMembers):
    error: str
    error_type: str


_ERROR_TYPES = {429: "overloaded", 500: "generation", 503: "healthcheck", 504: "incomplete_generation"}


def _error(error: RequestError, request_id: str) -> dict[str, str]:
    return {"error": named_message(error), "error_type": _ERROR_TYPES.get(error.status, "validation")}


TGI_ERRORS = ErrorShape(
    statuses={500: 424},
    body=_error,
    answer=TgiErrorAnswer,
    fields={
        "prompt": "inputs",
        "n": "best_of",
        "logprobs": "details",
        "top_logprobs": "top_n_tokens",
        "prompt_logprobs": "decoder_input_details",
        "response_format": "grammar",
    },
)


class TgiRenderer:
    """Renders the answers of one request. In a stream, the last token is sent in the event with the whole text."""

    def __init__(self, body: TgiBody, run: GenerateRun) -> None:
        self.body = body
        self.run = run
        self.tokenizer: Tokenizer = run.model.tokenizer
        self._count = 0
        self._last: dict[str, Any] = {}

    def deltas(self, deltas: list[TextDelta]) -> bytes:
        events: list[dict[str, Any]] = []
        for delta in deltas:
            pieces = _pieces(delta.text, delta.pieces)
            for piece, entry in zip(pieces, delta.logprobs, strict=True):
                self._count += 1
                event = {"index": self._count, "token": self._token(piece, entry)}
                if self.body.given().top_n_tokens:
                    event["top_tokens"] = self._top(entry)
                events.append(event | {"generated_text": None, "details": None})
            if events and delta.answer.done:
                self._last = events.pop()
        return b"".join(map(data_frame, events))

    def end(self, result: GenerateResult) -> bytes:
        (text,) = self.run.texts[0]
        reason = _finish_reason(text)
        end: dict[str, Any] = {"generated_text": self._full(text)}
        if self.body.given().details:
            end["details"] = {
                "finish_reason": reason,
                "generated_tokens": len(text.token_ids),
                "seed": result.seed,
                "input_length": len(self.run.prompts[0]),
            }
        return data_frame(self._last | end)

    def error(self, error: RequestError, request_id: str) -> bytes:
        return data_frame(TGI_ERRORS.render(error, request_id))

    def whole(self, result: GenerateResult) -> dict[str, Any]:
        texts = [row[0] for row in self.run.texts]
        best = max(texts, key=GeneratedText.mean_logprob)
        rendered: dict[str, Any] = {"generated_text": self._full(best)}
        if self.body.given().details:
            rendered["details"] = self._sequence(best, result.seed)
            if len(texts) > 1:
                rendered["details"]["best_of_sequences"] = [
                    {"generated_text": self._full(text)} | self._sequence(text, result.seed)
                    for text in texts
                    if text is not best
                ]
        return rendered

    def _sequence(self, text: GeneratedText, seed: int) -> dict[str, Any]:
        """The details of one answer. seed: seed of the first answer; the others have the following seeds."""
        pieces = _pieces(text.text, text.pieces)
        found: dict[str, Any] = {
            "finish_reason": _finish_reason(text),
            "generated_tokens": len(text.token_ids),
            "seed": (seed + text.row) % SEED_LIMIT,
            "prefill": self._prefill(),
            "tokens": (self._token(*scored_piece) for scored_piece in zip(pieces, text.logprobs, strict=True)),
        }
        if self.body.given().top_n_tokens:
            found["top_tokens"] = map(self._top, text.logprobs)
        return found

    def _prefill(self) -> Iterator[dict[str, Any]]:
        entries = self.run.prompt_logprobs.get(0)
        if entries is None:
            return
        yield {"id": self.run.prompts[0][0], "text": self._spell(self.run.prompts[0][0]), "logprob": None}
        for entry in entries:
            yield {"id": entry.token_id, "text": self._spell(entry.token_id), "logprob": entry.logprob}

    def _token(self, piece: str, entry: TokenLogprob) -> dict[str, Any]:
        special = entry.token_id in self.tokenizer.special_ids
        text = self._spell(entry.token_id) if special else piece
        return {"id": entry.token_id, "text": text, "logprob": entry.logprob, "special": special}

    def _top(self, entry: TokenLogprob) -> list[dict[str, Any]]:
        return [self._token(self._spell(token), TokenLogprob(token, logprob)) for token, logprob in entry.top]

    def _spell(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def _full(self, text: GeneratedText) -> str:
        return self.body.inputs + text.text if self.body.given().return_full_text else text.text


def _pieces(text: str, pieces: list[str]) -> list[str]:
    """The text of each token. The last token also gets the end of `text` that belongs to no piece yet.

    pieces: text that was added with each token, without text that was held back until the end.
    """
    rest = text[sum(map(len, pieces)) :]
    return [*pieces[:-1], pieces[-1] + rest] if pieces else []


def _finish_reason(text: GeneratedText) -> str:
    if text.finish_reason == "length":
        return "length"
    return "eos_token" if text.stop_reason is None else "stop_sequence"


_EXAMPLE = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 16, "temperature": 0.8, "seed": 7}}
GENERATE = StreamingRoute(
    path="/generate",
    operation="generate",
    name="tgi_generate",
    field="inputs",
    description="Continue a text, as text-generation-inference does.",
    body=TgiBody,
    answer=TgiAnswer,
    example=(_EXAMPLE, {"generated_text": " there was a king."}),
    parse=TgiBody.spec,
    run=generate,
    renderer=TgiRenderer,
    errors=TGI_ERRORS,
)
ROUTES: tuple[Route[Any, Any, Any], ...] = (
    GENERATE,
    replace(
        GENERATE,
        path="/generate_stream",
        name="generate_stream",
        field="",
        description="Continue a text, as server-sent events: one per token, the last one with the whole text.",
        parse=TgiBody.streaming_spec,
    ),
)
