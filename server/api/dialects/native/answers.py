"""Schemas of the native dialect's answers, for the OpenAPI document and for tests that validate real answers."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from server.api.routes.error_shape import AnswerBody, ErrorMembers


class TopLogprob(AnswerBody):
    id: int
    token: str
    logprob: float


class TokenLogprobs(TopLogprob):
    """Log-probabilities under the raw distribution: before temperature, penalties and masks."""

    top: list[TopLogprob]


class Usage(AnswerBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class Timings(AnswerBody):
    """Milliseconds that the slowest sequence spent in each phase; null if stop strings ended all sequences early."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    total_ms: float


class Failure(ErrorMembers):
    """Why one part of an answer failed, with the fields of an error response."""

    message: str
    type: str
    param: str | None
    code: str


class Choice(AnswerBody):
    """One answer. `stop_reason`: the stop string or stop token that ended it, else null.

    `prompt_logprobs`: one entry per prompt token, null for the first. `error`: set if this answer failed and others of
        the request did not. The text is then the part that was generated before the failure.
    """

    index: int
    text: str
    token_ids: list[int] | None = None
    finish_reason: Literal["stop", "length", "timeout", "error"]
    stop_reason: str | int | None
    score: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    prompt_index: int | None = None
    attention: Alignment | None = None
    error: Failure | None = None


class Alignment(AnswerBody):
    """Cross-attention weights. `matrix`: a row per target token, a number per source token. Each row adds up to 1."""

    source_tokens: list[str]
    target_tokens: list[str]
    matrix: list[list[float]]


class GenerateAnswer(AnswerBody):
    id: str
    model: str
    choices: list[Choice]
    usage: Usage
    seed: int
    timings: Timings


class Alternative(AnswerBody):
    text: str
    score: float | None


TranslationFlag = Literal["numbers", "loop", "language", "tags"]


class TranslatedSentenceAnswer(AnswerBody):
    """A sentence of a translation, without markup.

    `score`: mean log-probability of the tokens of the translation; 0 is certain. `second_attempt`: the first attempt
    repeated itself, so this one was made without repetitions.
    """

    source: str
    text: str
    score: float | None
    flags: list[TranslationFlag] | None = None
    second_attempt: bool | None = None


class Translation(AnswerBody):
    """The translation of one text. `score`: sum of the segments' scores, null without beam search.

    `pivot`: the language between two models, if no model translates directly. `score` is then the sum over both.
    `attention`: one entry per translated segment. `flags`: numbers, if a sentence and its translation have other ones;
    loop, if a translation repeats a part that its source does not repeat; language, if a sentence is not in the target
    language, which is only checked with `quality`; tags, if inline
    tags or protected parts were placed by the order of the words, because no attention was known. `sentences`: with
    `quality`.
    `error`: set if this translation failed and others of the request did
        not. The text is then the part that was streamed before the failure.
    """

    text: str
    source_lang: str | None
    target_lang: str | None
    score: float | None
    alternatives: list[Alternative]
    pivot: str | None = None
    finish_reason: Literal["stop", "length", "timeout", "error"]
    token_ids: list[int] | None = None
    logprobs: list[TokenLogprobs] | None = None
    attention: list[Alignment] | None = None
    flags: list[TranslationFlag] | None = None
    sentences: list[TranslatedSentenceAnswer] | None = None
    error: Failure | None = None


class TranslateAnswer(AnswerBody):
    id: str
    model: str
    translations: list[Translation]
    usage: Usage
    seed: int
    timings: Timings


class Label(AnswerBody):
    label: str
    score: float


class Token(AnswerBody):
    """A token of a text. `start` and `end`: its characters in the text; both are 0 for a special token.

    `stop`: the same as `end`, as text-embeddings-inference names it; null for a special token.
    """

    id: int
    text: str
    start: int
    end: int
    special: bool
    stop: int | None


class EmbedAnswer(RootModel[list[list[float]]]):
    """A list with one vector per input, even for a single input."""


class ChunkAnswer(AnswerBody):
    """A part of a text with its vector. `start` and `end`: its characters in the text; `end` is exclusive."""

    start: int
    end: int
    embedding: list[float]


class EmbedChunksAnswer(RootModel[list[ChunkAnswer]]):
    """One vector per part, in the order of the request or of the text."""


class SparseWeight(AnswerBody):
    """One entry of a sparse vector: a token of the vocabulary and its weight. `index`: the token id."""

    index: int
    value: float


class EmbedSparseAnswer(RootModel[list[list[SparseWeight]]]):
    """The weights above zero of each input, by ascending index."""


class EmbedAllAnswer(RootModel[list[list[list[float]]]]):
    """For each input, a list with one vector per token. A single input is also in a list."""


class LateInteractionAnswer(RootModel[list[list[list[float]]]]):
    """For each input, a list with the vectors of its tokens.

    Some tokens have no vector. A single input is also in a list.
    """


class ClassifyAnswer(RootModel[list[Label] | list[list[Label]]]):
    """Labels by descending score; a list of such lists for a list of inputs."""


class RankedLabels(AnswerBody):
    """The labels of one input by descending score. `scores`: score of each label, in the order of `labels`."""

    labels: list[str]
    scores: list[float]


class ZeroShotClassifyAnswer(RootModel[RankedLabels | list[RankedLabels]]):
    """Labels and scores; a list of such answers for a list of inputs."""


class SimilarityAnswer(RootModel[list[float]]):
    """One cosine per sentence."""


class Ranked(AnswerBody):
    """A text with its score. `index`: index of the text in the request."""

    index: int
    score: float
    text: str | None = None


class RerankAnswer(RootModel[list[Ranked]]):
    """Texts by descending score."""


class MaskWord(AnswerBody):
    """A word for the mask. `sequence`: the text with the word in place of the mask."""

    score: float
    token: int
    token_str: str
    sequence: str


class FillMaskAnswer(RootModel[list[MaskWord] | list[list[MaskWord]]]):
    """Words by descending probability; a list of such lists for a list of inputs."""


class Entity(AnswerBody):
    """An entity of a text. `start` and `end`: its characters in the text; `end` is exclusive.

    Single tokens (aggregation "none") have `entity` and `index`; entities have `entity_group`.
    """

    entity_group: str | None = None
    entity: str | None = None
    score: float
    index: int | None = None
    word: str
    start: int
    end: int


class TokenClassifyAnswer(RootModel[list[Entity] | list[list[Entity]]]):
    """Entities in the order of the text; a list of such lists for a list of inputs."""


class FoundAnswer(AnswerBody):
    """An answer. `start` and `end`: its characters in the context; `end` is exclusive."""

    answer: str
    score: float
    start: int
    end: int


class QuestionAnswerAnswer(RootModel[list[FoundAnswer]]):
    """Answers by descending score."""


class TokenizeAnswer(RootModel[list[list[Token]]]):
    """The tokens of each text."""


class DetokenizeAnswer(RootModel[list[str]]):
    """The answer of `/detokenize`: one text for each list of token ids."""
