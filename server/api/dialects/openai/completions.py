"""`POST /v1/completions`: continuations of prompts, and log-probabilities of prompts, which lm-eval needs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from server.api.bodies.sse import data_frame
from server.api.dialects.openai.common import (
    ERRORS,
    OpenAIUsage,
    StreamOptions,
    TopLogprobs,
    check_stream_options,
    continuous_usage,
    end_of_stream,
    finish_reason,
    includes_usage,
    new_id,
    now,
    stream_error,
    token_text,
    usage,
    usage_of_chunk,
)
from server.api.dialects.openai.sampling_fields import OpenAISamplingFields
from server.api.fields.field_kinds import only
from server.api.fields.fields import MAX_NEW_TOKENS, AnswerCount, Prompt
from server.api.routes.error_shape import AnswerBody
from server.api.routes.streaming_route import StreamingRoute
from server.errors import InvalidRequest, RequestError
from server.operations.generating.generate import GeneratedChoice, GenerateResult, GenerateRun, GenerateSpec, generate
from server.operations.generating.generated_text import ScoredToken, SpelledToken, TextDelta

DEFAULT_MAX_TOKENS = 16
_ERRORS = replace(ERRORS, fields={**ERRORS.fields, "top_logprobs": "logprobs", "prompt_logprobs": "logprobs"})


class CompletionBody(OpenAISamplingFields):
    """Body of `POST /v1/completions`. `logprobs`: number of likeliest tokens to report for each token.

    `max_tokens` -1: generate until the context is full, as in llama.cpp.
    """

    prompt: Prompt
    max_tokens: Annotated[int | None, Field(ge=-1, description=f"default {DEFAULT_MAX_TOKENS}")] = None
    n: AnswerCount | None = None
    best_of: AnswerCount | None = None
    num_return_sequences: AnswerCount | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    stream_options: StreamOptions | None = None
    suffix: Annotated[Any, only("")] = None
    add_special_tokens: Annotated[Any, only(True)] = None

    def spec(self) -> GenerateSpec:
        check_stream_options(self.stream_options, self.stream)
        if self.stream and self.echo and self.logprobs is not None:
            raise InvalidRequest("`echo` with `logprobs` cannot be combined with `stream`", "echo")
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        limit = DEFAULT_MAX_TOKENS if self.max_tokens is None else min(self.max_tokens, MAX_NEW_TOKENS)
        options = self.options(
            max_new_tokens=limit if limit >= 0 else None,
            fill_context=limit < 0,
            logprobs=self.logprobs is not None,
            top_logprobs=self.logprobs,
            prompt_logprobs=bool(self.echo) and self.logprobs is not None,
        )
        return GenerateSpec([self.prompt] if is_one else self.prompt, options, self.model)


class CompletionLogprobs(AnswerBody):
    """Log-probabilities; each list has one entry per token. `text_offset`: first character of the token in `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerBody):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionAnswer(AnswerBody):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: OpenAIUsage


class TokenPlaces:
    """Finds the position of each token in a text, in characters. Call `next` once for each token, in order.

    text: beginning of the text. If it begins without a space, a space at the start of the first token is not counted:
        some tokenizers write one that is not in the text.
    """

    def __init__(self, text: str) -> None:
        self._drops_space = not text.startswith(" ")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def next(self, token: SpelledToken) -> int:
        place, text = self._characters, self._decoder.decode(token.data)
        if self._drops_space and text:
            self._drops_space, text = False, text.removeprefix(" ")
        self._characters += len(text)
        return place


def _logprobs(tokens: Sequence[SpelledToken], places: TokenPlaces) -> dict[str, Any]:
    """The field `logprobs` of a choice. The first token of a prompt has no log-probability, so its entries are null."""
    scored = [token if isinstance(token, ScoredToken) else None for token in tokens]
    return {
        "tokens": [token_text(token) for token in tokens],
        "token_logprobs": [token and token.logprob for token in scored],
        "top_logprobs": [token and _top(token) for token in scored],
        "text_offset": [places.next(token) for token in tokens],
    }


def _top(token: ScoredToken) -> dict[str, float]:
    """Map the text of each candidate to its log-probability: of the likeliest tokens, and of the chosen token itself.

    Of several tokens with the same text, only the likeliest one is kept.
    """
    top: dict[str, float] = {}
    for candidate in (*token.top, token):
        top.setdefault(token_text(candidate), candidate.logprob)
    return top


class CompletionRenderer:
    """Renders completions, whole or as chunks with one choice each. A choice's last chunk has its finish reason."""

    def __init__(self, body: CompletionBody, run: GenerateRun) -> None:
        self.body = body
        self.include_usage = includes_usage(body.stream_options)
        self.usage_so_far = run.usage if continuous_usage(body.stream_options) else None
        self.head = {"id": new_id("cmpl"), "object": "text_completion", "created": now(), "model": run.model_name}
        self.places: dict[int, TokenPlaces] = {}

    def whole(self, result: GenerateResult) -> dict[str, Any]:
        choices = (self._choice(index, choice) for index, choice in enumerate(result.choices))
        return self.head | {"choices": choices, "usage": usage(result.usage)}

    def _choice(self, index: int, choice: GeneratedChoice) -> dict[str, Any]:
        tokens: list[SpelledToken] = []
        if choice.first_prompt_token is not None:
            tokens += [choice.first_prompt_token, *filter(None, choice.prompt_logprobs or [])]
        tokens += choice.logprobs or []
        return {
            "index": index,
            "text": choice.text,
            "logprobs": None if self.body.logprobs is None else _logprobs(tokens, TokenPlaces(choice.text)),
            "finish_reason": finish_reason(choice.finish_reason),
        }

    def deltas(self, deltas: list[TextDelta]) -> bytes:
        return b"".join(
            [self._chunk(delta) for delta in deltas if delta.text or delta.logprobs or delta.answer.finish_reason]
        )

    def _chunk(self, delta: TextDelta) -> bytes:
        answer = delta.answer
        choice: dict[str, Any] = {"index": answer.index, "text": delta.text, "logprobs": None}
        if self.body.logprobs is not None:
            places = self.places.setdefault(answer.index, TokenPlaces(delta.text))
            choice["logprobs"] = _logprobs([answer.scored(entry) for entry in delta.logprobs], places)
        choice["finish_reason"] = finish_reason(answer.finish_reason)
        chunk = self.head | {"choices": [choice]}
        return data_frame(chunk | usage_of_chunk(self.include_usage, self.usage_so_far))

    def end(self, result: GenerateResult) -> bytes:
        return end_of_stream(self.head, self.include_usage, result.usage)

    def error(self, error: RequestError, request_id: str) -> bytes:
        return stream_error(error, request_id)


EXAMPLE = (
    {"model": "gpt2", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.8},
    {
        "id": "cmpl-0d1f",
        "object": "text_completion",
        "created": 1764000000,
        "model": "gpt2",
        "choices": [{"index": 0, "text": " there was a king.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 6,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    },
)

ROUTE = StreamingRoute(
    path="/v1/completions",
    aliases=("/models/{model}/v1/completions",),
    operation="generate",
    name="completions",
    description="Continue prompts: texts or token ids. Accepts the sampler and beam fields of `/generate` too.",
    body=CompletionBody,
    answer=CompletionAnswer,
    example=EXAMPLE,
    parse=CompletionBody.spec,
    run=generate,
    renderer=CompletionRenderer,
    errors=_ERRORS,
)
