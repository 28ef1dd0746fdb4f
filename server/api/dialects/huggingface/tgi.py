"""The dialect of text-generation-inference: `POST /generate` with `inputs`, and `POST /generate_stream`.

A stream has one event per token and no end marker; the last event has the whole text. A text includes the stop string
that ended it. Log-probabilities are those of the raw distribution. Source: the OpenAPI document of its router.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from server.api.error_shape import AnswerBody, ErrorShape
from server.api.fields import Finite, Stops, TimedBody
from server.api.response_format import MAX_PATTERN_CHARACTERS
from server.api.route import Route, StreamingRoute
from server.api.sse import data_frame
from server.errors import DeadlineExceeded, InvalidRequest, RequestError
from server.ipc.messages import TokenLogprob
from server.operations.generate import SEED_LIMIT, GenerateResult, GenerateRun, GenerateSpec, generate
from server.operations.generated_text import GeneratedText, TextDelta
from server.operations.generation_options import SAMPLER_NEUTRAL, GenerationOptions
from server.operations.grammar import JsonFormat, RegexFormat, TextFormat
from server.text.tokenizer import Tokenizer

DEFAULT_NEW_TOKENS = 100


def _json_text(value: object) -> object:
    """A JSON schema that was sent as text, as an object."""
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        raise ValueError("must be a JSON schema") from None


class _TgiSchema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class JsonGrammar(_TgiSchema):
    """JSON that matches a schema."""

    type: Literal["json"]
    value: Annotated[dict[str, Any], BeforeValidator(_json_text)]

    def text_format(self) -> TextFormat:
        return JsonFormat(self.value)


class RegexGrammar(_TgiSchema):
    """A text that a regular expression matches from its beginning to its end."""

    type: Literal["regex"]
    value: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]

    def text_format(self) -> TextFormat:
        return RegexFormat(self.value)


class TgiParameters(_TgiSchema):
    """Decoding options. Text is sampled if `do_sample` is true or a sampling option is set."""

    adapter_id: Annotated[str | None, Field(min_length=1, max_length=256, description="as `model`")] = None
    best_of: Annotated[int | None, Field(ge=1, le=16)] = None
    decoder_input_details: bool | None = None
    details: bool | None = None
    do_sample: bool | None = None
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    grammar: Annotated[JsonGrammar | RegexGrammar | None, Field(discriminator="type")] = None
    max_new_tokens: Annotated[int | None, Field(ge=1, le=1 << 20, description="default 100")] = None
    repetition_penalty: Annotated[Finite | None, Field(gt=0, le=100)] = None
    return_full_text: bool | None = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    stop: Stops | None = None
    temperature: Annotated[Finite | None, Field(gt=0, le=100)] = None
    top_k: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    top_n_tokens: Annotated[int | None, Field(ge=0, le=20)] = None
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    truncate: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    typical_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    watermark: Annotated[Literal[False] | None, Field(description="true is refused")] = None


class TgiBody(TimedBody):
    """`POST /generate` with `inputs`."""

    inputs: Annotated[str, Field(min_length=1)]
    parameters: TgiParameters | None = None
    stream: bool | None = None

    def given(self) -> TgiParameters:
        return self.parameters or TgiParameters()

    def spec(self) -> GenerateSpec:
        return self._spec(bool(self.stream))

    def streaming_spec(self) -> GenerateSpec:
        """For `POST /generate_stream`, whose bodies need no `stream`."""
        if self.stream is False:
            raise InvalidRequest("`stream` cannot be false here; use /generate", "stream")
        return self._spec(True)

    def _spec(self, stream: bool) -> GenerateSpec:
        given = self.given()
        count = given.best_of or 1
        samples = bool(given.do_sample) or any(
            (value := getattr(given, name, None)) is not None and value not in neutral
            for name, neutral in SAMPLER_NEUTRAL.items()
        )
        if given.decoder_input_details and stream:
            raise InvalidRequest("`decoder_input_details` cannot be combined with streaming", "decoder_input_details")
        if count > 1 and (stream or not samples):
            raise InvalidRequest("`best_of` above 1 needs sampling, and cannot be combined with streaming", "best_of")
        scored = stream or bool(given.details) or count > 1
        sent = {name: getattr(given, name) for name in _SAME_OPTIONS if getattr(given, name) is not None}
        options = GenerationOptions(
            **sent,
            stream=stream,
            max_new_tokens=given.max_new_tokens or DEFAULT_NEW_TOKENS,
            do_sample=samples,
            n=count,
            num_beams=1,
            include_stop=bool(given.stop),
            logprobs=scored,
            top_logprobs=(given.top_n_tokens or 0) if scored else 0,
            prompt_logprobs=bool(given.decoder_input_details and given.details),
            text_format=given.grammar.text_format() if given.grammar else None,
        )
        return GenerateSpec([self.inputs], options, given.adapter_id or self.model)


_SAME_OPTIONS = (
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "truncate",
    "typical_p",
)
"""Options whose name and meaning are those of `GenerationOptions`."""


class TgiToken(AnswerBody):
    id: int
    text: str
    logprob: float | None
    special: bool


class TgiPrefillToken(AnswerBody):
    """A token of the prompt. `logprob`: null for the first."""

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
    """The text, and its tokens with `details`."""

    generated_text: str
    details: TgiDetails | None = None


class TgiErrorAnswer(AnswerBody):
    error: str
    error_type: str


_ERROR_TYPES = {429: "overloaded", 500: "generation", 503: "healthcheck", 504: "incomplete_generation"}


def _error(error: RequestError, request_id: str) -> dict[str, str]:
    return {"error": error.message, "error_type": _ERROR_TYPES.get(error.status, "validation")}


TGI_ERRORS = ErrorShape(
    statuses={500: 424, 504: 500},
    body=_error,
    answer=TgiErrorAnswer,
    names={
        "prompt": "inputs",
        "n": "best_of",
        "top_logprobs": "top_n_tokens",
        "prompt_logprobs": "decoder_input_details",
        "response_format": "grammar",
    },
)


class TgiRenderer:
    """Answers of one request. A stream's last token is held back for the event with the whole text."""

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
        _finish_reason(best)
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
        """The details of one answer. seed: of the first answer."""
        pieces = _pieces(text.text, text.pieces)
        found: dict[str, Any] = {
            "finish_reason": _finish_reason(text),
            "generated_tokens": len(text.token_ids),
            "seed": (seed + text.row) % SEED_LIMIT,
            "prefill": self._prefill(),
            "tokens": [self._token(*one) for one in zip(pieces, text.logprobs, strict=True)],
        }
        if self.body.given().top_n_tokens:
            found["top_tokens"] = [self._top(entry) for entry in text.logprobs]
        return found

    def _prefill(self) -> list[dict[str, Any]]:
        entries = self.run.prompt_logprobs.get(0)
        if entries is None:
            return []
        pairs = [(self.run.prompts[0][0], None), *((entry.token_id, entry.logprob) for entry in entries)]
        return [{"id": token, "text": self._spell(token), "logprob": logprob} for token, logprob in pairs]

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
    """The text of each token. Text that the tokens held back belongs to the last one."""
    rest = text[sum(map(len, pieces)) :]
    return [*pieces[:-1], pieces[-1] + rest] if pieces else []


def _finish_reason(text: GeneratedText) -> str:
    """Why an answer ended. Raises DeadlineExceeded for an answer that was cut off."""
    if text.finish_reason == "timeout":
        raise DeadlineExceeded("the deadline passed before the text was complete")
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
