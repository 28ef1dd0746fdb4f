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
    """Log-probabilities of a token and of the likeliest tokens in its place.

    They are those of the model's raw distribution: before temperature, penalties and masks.
    """

    top: list[TopLogprob]


class Usage(AnswerBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class Timings(AnswerBody):
    """Milliseconds that the slowest sequence spent in each phase. Null if all sequences ended early at stop strings."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    total_ms: float


class Failure(ErrorMembers):
    """The error of one part of an answer, with the fields of an error response."""

    message: str
    type: str
    param: str | None
    code: str


class Choice(AnswerBody):
    """One generated text. `stop_reason`: the stop string or stop token that ended it, otherwise null.

    `prompt_logprobs`: one entry per prompt token, null for the first token.
    `error`: set if this text failed and other texts of the request did not. `text` is then what was generated before.
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
    """Cross-attention weights. `matrix`: [target tokens, source tokens]; each row adds up to 1."""

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

    `score`: mean log-probability of the generated tokens; 0 is certain.
    `second_attempt`: true if the first translation repeated itself and was replaced by one without repetitions.
    """

    source: str
    text: str
    score: float | None
    flags: list[TranslationFlag] | None = None
    second_attempt: bool | None = None


class Translation(AnswerBody):
    """The translation of one text.

    `score`: sum of the segments' scores, null without beam search. With a pivot, it is the sum over both translations.
    `pivot`: the intermediate language, if no model translates directly.
    `attention`: one entry per translated segment.
    `flags`: possible defects:
        numbers: a sentence and its translation have different numbers.
        loop: a translation repeats a part that its source does not repeat.
        language: a sentence is not in the target language; only checked with `quality`.
        tags: inline tags or protected parts were placed by word order, because no attention weights were available.
    `sentences`: the sentences with their scores; only with `quality`.
    `error`: set if this translation failed and others of the request did not. `text` is then what was streamed before.
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
    """A token of a text. `start`, `end`: its first character in the text, and the character after its last one.
    Both are 0 for a special token.

    `stop`: the same as `end`, as text-embeddings-inference names it; null for a special token.
    """

    id: int
    text: str
    start: int
    end: int
    special: bool
    stop: int | None


class EmbedAnswer(RootModel[list[list[float]]]):
    """The answer of `/embed`: a list with one vector per input, even for a single input."""


class ChunkAnswer(AnswerBody):
    """A part of a text with its vector. `start`, `end`: range of its characters in the text; `end` is exclusive."""

    start: int
    end: int
    embedding: list[float]


class EmbedChunksAnswer(RootModel[list[ChunkAnswer]]):
    """One vector per part: in the order of the request, or of the text if the server has split the text."""


class SparseWeight(AnswerBody):
    """One entry of a sparse vector: a token of the vocabulary and its weight. `index`: the token id."""

    index: int
    value: float


class EmbedSparseAnswer(RootModel[list[list[SparseWeight]]]):
    """The weights above zero of each input, by ascending index."""


class EmbedAllAnswer(RootModel[list[list[list[float]]]]):
    """For each input, a list with one vector per token. A single input is also in a list."""


class LateInteractionAnswer(RootModel[list[list[list[float]]]]):
    """For each input, a list with one vector for each token that the model compares. A single input is also in a list.

    The model leaves out some tokens, such as punctuation.
    """


class ClassifyAnswer(RootModel[list[Label] | list[list[Label]]]):
    """Labels by descending score. For a list of inputs, one such list per input."""


class RankedLabels(AnswerBody):
    """The labels of one input, by descending score. `scores`: the score of each label, in the order of `labels`."""

    labels: list[str]
    scores: list[float]


class ZeroShotClassifyAnswer(RootModel[RankedLabels | list[RankedLabels]]):
    """Labels and scores of one input. For a list of inputs, a list of such objects."""


class SimilarityAnswer(RootModel[list[float]]):
    """Cosine similarity of the source sentence and each of the other sentences, from -1 to 1."""


class Ranked(AnswerBody):
    """A text's score for the query. `index`: position of the text in the request. `text`: only if asked for."""

    index: int
    score: float
    text: str | None = None


class RerankAnswer(RootModel[list[Ranked]]):
    """The answer of `/rerank`: texts by descending score."""


class MaskWord(AnswerBody):
    """A candidate for the mask. `token`: its id. `token_str`: its text. `sequence`: the text with the mask replaced."""

    score: float
    token: int
    token_str: str
    sequence: str


class FillMaskAnswer(RootModel[list[MaskWord] | list[list[MaskWord]]]):
    """Candidates by descending probability. For a list of inputs, one such list per input."""


class Entity(AnswerBody):
    """An entity of a text. `start`, `end`: range of its characters in the text; `end` is exclusive.

    With the aggregation "none" it is a single token, with `entity` and `index`; otherwise it has `entity_group`.
    """

    entity_group: str | None = None
    entity: str | None = None
    score: float
    index: int | None = None
    word: str
    start: int
    end: int


class TokenClassifyAnswer(RootModel[list[Entity] | list[list[Entity]]]):
    """Entities in the order of the text. For a list of inputs, one such list per input."""


class FoundAnswer(AnswerBody):
    """An answer to the question. `start`, `end`: range of its characters in the context; `end` is exclusive."""

    answer: str
    score: float
    start: int
    end: int


class QuestionAnswerAnswer(RootModel[list[FoundAnswer]]):
    """The answer of `/question_answer`: found answers by descending score."""


class TokenizeAnswer(RootModel[list[list[Token]]]):
    """The answer of `/tokenize`: one list of tokens for each text."""


class DetokenizeAnswer(RootModel[list[str]]):
    """The answer of `/detokenize`: one text for each list of token ids."""
