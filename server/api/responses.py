"""What clients get, as schemas: for the OpenAPI document, and for the tests that hold real answers against them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, RootModel


class Answer(BaseModel):
    """Base of every answer: nothing undocumented in it."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorObject(Answer):
    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class ErrorAnswer(Answer):
    """Every failure."""

    error: ErrorObject


class TopLogprob(Answer):
    id: int
    token: str
    logprob: float


class TokenLogprobs(TopLogprob):
    """Of the raw distribution: before temperature, penalties and masks."""

    top: list[TopLogprob]


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class Timings(Answer):
    """Milliseconds, of the slowest sequence; null where a stop string ended all of them before the engine knew."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    total_ms: float


class Choice(Answer):
    """One text. `stop_reason`: the stop string or the id that ended it, null at the end of text.

    `prompt_logprobs`: an entry for each token of the prompt, null for the first.
    """

    index: int
    text: str
    token_ids: list[int] | None = None
    finish_reason: Literal["stop", "length", "timeout"]
    stop_reason: str | int | None
    score: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    prompt_index: int | None = None
    attention: Alignment | None = None


class Alignment(Answer):
    """`matrix`: a row for each token of the answer, a number for each token of the source; rows add up to one."""

    source_tokens: list[str]
    target_tokens: list[str]
    matrix: list[list[float]]


class GenerateAnswer(Answer):
    id: str
    model: str
    choices: list[Choice]
    usage: Usage
    seed: int
    timings: Timings


class Alternative(Answer):
    text: str
    score: float | None


class Translation(Answer):
    """`score`: the sum of the segments' scores, null without beam search. `attention`: of each segment with text."""

    text: str
    source_lang: str | None
    target_lang: str | None
    score: float | None
    alternatives: list[Alternative]
    finish_reason: Literal["stop", "length", "timeout"]
    token_ids: list[int] | None = None
    logprobs: list[TokenLogprobs] | None = None
    attention: list[Alignment] | None = None


class TranslateAnswer(Answer):
    id: str
    model: str
    translations: list[Translation]
    usage: Usage
    seed: int
    timings: Timings


class Label(Answer):
    label: str
    score: float


class Token(Answer):
    """`start` and `end` are characters of the text; a special token stands at no place of it."""

    id: int
    text: str
    start: int
    end: int
    special: bool


class EmbedAnswer(RootModel[list[list[float]]]):
    """A vector for each input, also for one."""


class EmbedAllAnswer(RootModel[list[list[list[float]]]]):
    """For each input a vector for each of its tokens, also for one."""


class ClassifyAnswer(RootModel[list[Label] | list[list[Label]]]):
    """Labels by falling score; a list of such lists for a list of inputs."""


class SimilarityAnswer(RootModel[list[float]]):
    """A cosine for each sentence."""


class Ranked(Answer):
    """`index`: place of the text in the list that came."""

    index: int
    score: float
    text: str | None = None


class RerankAnswer(RootModel[list[Ranked]]):
    """Texts by falling score."""


class Word(Answer):
    """`sequence`: the text with the word in it."""

    score: float
    token: int
    token_str: str
    sequence: str


class FillMaskAnswer(RootModel[list[Word] | list[list[Word]]]):
    """Words by falling probability; a list of such lists for a list of inputs."""


class Entity(Answer):
    """`start` and `end` are characters of the text. Single tokens (aggregation "none") have `entity` and `index`."""

    entity_group: str | None = None
    entity: str | None = None
    score: float
    index: int | None = None
    word: str
    start: int
    end: int


class TokenClassifyAnswer(RootModel[list[Entity] | list[list[Entity]]]):
    """Entities in the order of the text; a list of such lists for a list of inputs."""


class FoundAnswer(Answer):
    """`start` and `end` are characters of the context."""

    answer: str
    score: float
    start: int
    end: int


class QuestionAnswerAnswer(RootModel[list[FoundAnswer]]):
    """Answers by falling score."""


class SpokenSegment(Answer):
    """A part of a text, and when it was said, in seconds. `seek`: where its window begins, in frames of 10 ms.

    `avg_logprob`: of all tokens of the window, times included.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float


class DurationUsage(Answer):
    type: Literal["duration"]
    seconds: int


class TranscriptionAnswer(Answer):
    """What was said; more than `text` and `usage` with `response_format` verbose_json."""

    text: str
    usage: DurationUsage
    task: Literal["transcribe", "translate"] | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[SpokenSegment] | None = None


class TokenizeAnswer(RootModel[list[list[Token]]]):
    """The tokens of each text."""


class DetokenizeAnswer(RootModel[list[str]]):
    """The text of each list of ids."""


class Status(Answer):
    status: str


class ModelDescription(Answer):
    name: str
    family: str
    architecture: str
    tasks: list[str]
    routes: list[str]
    dtype: str
    quantization: str | None
    adapter_of: str | None
    parameters: int
    weight_bytes: int
    kv_bytes: int
    vocab_size: int
    hidden_size: int
    context_tokens: int
    source_tokens: int | None
    labels: list[str]
    languages: list[str]


class Limits(Answer):
    max_body_bytes: int
    max_audio_bytes: int
    max_audio_seconds: float
    max_text_characters: int
    max_items: int
    max_queue_requests: int
    max_queue_tokens: int
    max_timeout_ms: int


class InfoAnswer(Answer):
    name: str
    version: str
    device: str
    models: list[ModelDescription]
    limits: Limits
