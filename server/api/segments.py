"""A text to translate as segments: sentence by sentence, put together again in order. Knows no HTTP and no engine.

Segments are translated side by side; their text is given strictly in order, so that what a client has read, joined, is
the beginning of the final text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from server.api.answers import Answer, Delta
from server.ipc.messages import TokenLogprob
from server.text.language_codes import parse_language
from server.text.sentences import Sentence, split_sentences

UNSPACED = frozenset({"zh", "ja", "th", "lo", "km", "my", "yue"})
"""Languages whose sentences follow each other without a space; ISO 639-1 where there is one."""

_PAUSE = re.compile(r"[,;:،、，；]\s*|\s+")


@dataclass
class Segment:
    """One piece of a text. answers: its hypotheses, best first; none where there was nothing to translate.

    before: text that comes before the answer's own (a prefix that the client set). separator: what follows it.
    """

    text: str
    separator: str
    answers: list[Answer] = field(default_factory=list)
    before: str = ""

    @property
    def done(self) -> bool:
        return all(answer.done for answer in self.answers)

    def result(self, rank: int) -> str:
        own = self.before + self.answers[rank].text if self.answers else ""
        return own + self.separator


@dataclass
class Piece:
    """News of one segment, in the order of the text."""

    segment: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]


class Segments:
    """All segments of one input."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self._current = 0
        self._held: dict[int, list[Delta]] = {}
        self._begun = False

    def add(self, segment: int, delta: Delta) -> None:
        """Keep news of a segment (of its best answer) until it is its turn."""
        self._held.setdefault(segment, []).append(delta)

    def release(self) -> Iterator[Piece]:
        """Everything whose turn has come."""
        while self._current < len(self.segments):
            index, segment = self._current, self.segments[self._current]
            deltas = self._held.pop(index, [])
            text = "".join([delta.text for delta in deltas])
            if deltas and not self._begun:
                text = segment.before + text
            self._begun = self._begun or bool(deltas)
            if segment.done:
                text += segment.separator
                self._current += 1
                self._begun = False
            ids = [token_id for delta in deltas for token_id in delta.token_ids]
            if text or ids:
                yield Piece(index, text, ids, [entry for delta in deltas for entry in delta.logprobs])
            if not segment.done:
                return

    @property
    def ranks(self) -> int:
        """How many translations of the whole there are."""
        return min((len(segment.answers) for segment in self.segments if segment.answers), default=1)

    def text(self, rank: int) -> str:
        return "".join([segment.result(rank) for segment in self.segments])

    def score(self, rank: int) -> float | None:
        """The sum of the segments' scores; None without beam search."""
        scores = [segment.answers[rank].score for segment in self.segments if segment.answers]
        known = [score for score in scores if score is not None]
        return sum(known) if known and len(known) == len(scores) else None

    def finish_reason(self) -> str:
        """The worst of the segments' reasons."""
        reasons = {segment.answers[0].finish_reason for segment in self.segments if segment.answers}
        return next((reason for reason in ("timeout", "length") if reason in reasons), "stop")

    def best(self) -> list[Answer]:
        return [segment.answers[0] for segment in self.segments if segment.answers]


def whole(text: str) -> list[Segment]:
    """A text as one segment; white space alone is nothing to translate."""
    return [Segment(text, "") if text.strip() else Segment("", text)]


def split(text: str, target: str | None, fits: Callable[[str], bool]) -> list[Segment]:
    """A text as its sentences, longer ones cut further until each `fits`.

    Sentences that stood without a space between them get one, unless the target language has none either.
    """
    language = parse_language(target or "")
    spaced = language is None or language.language not in UNSPACED
    sentences = split_sentences(text)
    for index, sentence in enumerate(sentences[:-1]):
        if sentence.text and not sentence.separator and spaced:
            sentences[index] = Sentence(sentence.text, " ")
    return [Segment(piece.text, piece.separator) for sentence in sentences for piece in _cut(sentence, fits)]


def _cut(sentence: Sentence, fits: Callable[[str], bool]) -> list[Sentence]:
    """A sentence that is too long in two, at the pause nearest to its middle, and so on; as it is if it has none."""
    if not sentence.text or fits(sentence.text):
        return [sentence]
    text = sentence.text
    pauses = [match for match in _PAUSE.finditer(text) if 0 < match.end() < len(text)]
    if not pauses:
        middle = len(text) // 2
        if middle == 0:
            return [sentence]
        return [*_cut(Sentence(text[:middle], ""), fits), *_cut(Sentence(text[middle:], sentence.separator), fits)]
    pause = min(pauses, key=lambda match: abs(match.end() - len(text) // 2))
    space = len(pause[0]) - len(pause[0].rstrip())
    first = Sentence(text[: pause.end() - space], text[pause.end() - space : pause.end()])
    return [*_cut(first, fits), *_cut(Sentence(text[pause.end() :], sentence.separator), fits)]
