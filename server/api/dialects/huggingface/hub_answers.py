"""Schemas of the answers of the hub's tasks."""

from __future__ import annotations

from pydantic import RootModel

from server.api.dialects.huggingface.tgi import TgiAnswer
from server.api.routes.error_shape import AnswerBody, ErrorMembers


class HubLabel(AnswerBody):
    label: str
    score: float


class HubWord(AnswerBody):
    score: float
    token: int
    token_str: str
    sequence: str


class HubEntity(AnswerBody):
    """An entity, or with the aggregation strategy "none" a token with `entity` and `index`."""

    entity_group: str | None = None
    entity: str | None = None
    index: int | None = None
    score: float
    word: str
    start: int
    end: int


class HubFound(AnswerBody):
    answer: str
    score: float
    start: int
    end: int


class HubText(AnswerBody):
    """The answer of an encoder-decoder: the same text in the fields of summarization, translation and text generation,
    because a body without parameters fits all three.
    """

    summary_text: str
    translation_text: str
    generated_text: str


class HubSpokenChunk(AnswerBody):
    """A part of the text, or a word. timestamp: start and end in seconds."""

    text: str
    timestamp: list[float]


class HubTranscript(AnswerBody):
    """The text of a recording. `chunks`: only with `return_timestamps`."""

    text: str
    chunks: list[HubSpokenChunk] | None = None


HubItem = HubLabel | HubWord | HubEntity | HubFound | HubText | TgiAnswer | float


class HubAnswer(RootModel[HubFound | HubTranscript | list[HubItem | list[HubLabel | HubWord | HubEntity | float]]]):
    """The answer of the task. Text classification nests its labels in a list per input, even for a single input."""


class HubErrorAnswer(ErrorMembers):
    error: str
