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
    """An entity with `entity_group`, or with the aggregation strategy "none" a token with `entity` and `index`."""

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
    """The text that an encoder-decoder has generated, repeated in the fields of three tasks.

    A body without parameters fits summarization, translation and text generation, and each client reads another field.
    """

    summary_text: str
    translation_text: str
    generated_text: str


class HubSpokenChunk(AnswerBody):
    """A part of the transcribed text, or one word of it. `timestamp`: its start and end in seconds."""

    text: str
    timestamp: list[float]


class HubTranscript(AnswerBody):
    """The text of a recording. `chunks`: its parts or words with times, only with `return_timestamps`."""

    text: str
    chunks: list[HubSpokenChunk] | None = None


HubItem = HubLabel | HubWord | HubEntity | HubFound | HubText | TgiAnswer | float


class HubAnswer(RootModel[HubFound | HubTranscript | list[HubItem | list[HubLabel | HubWord | HubEntity | float]]]):
    """The answer of any hub task. Text classification has a list of label lists, even for a single input."""


class HubErrorAnswer(ErrorMembers):
    error: str
