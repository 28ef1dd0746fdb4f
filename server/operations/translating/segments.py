"""A text to translate as segments (usually sentences), and the translated segments joined in order.

Segments are translated in parallel. Their text is released strictly in order, so that the deltas that a client has
read, joined, are the beginning of the final text. Imports no HTTP and no engine code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from server.ipc.wire.logprobs import Logprobs
from server.operations.generating.generated_text import AttentionMatrix, GeneratedText, TextDelta
from server.operations.translating.loops import is_loop
from server.operations.translating.pivot_text import PivotText
from server.text.languages.language_codes import parse_language
from server.text.languages.sentences import SENTENCE_ENDS, Sentence, split_sentences
from server.text.markup.protected import numbers_differ
from server.word_bounds import UNSPACED as UNSPACED_CHARACTER

Flag = Literal["numbers", "loop", "language", "tags"]
UNSPACED = frozenset({"zh", "ja", "th", "lo", "km", "my", "yue"})
"""Languages that put no space between sentences; ISO 639-1 codes where they exist."""

_NEWLINES = re.compile(r"[\r\n]+")
_WRAP = re.compile(r"(?<![\r\n])(?:\r\n|\r|\n)(?![^\S\r\n]*[\r\n])")
"""A line break between two lines that are not empty."""
_PAUSE = re.compile(r"[,;:،、，；]\s*|\s+")


@dataclass
class Segment:
    """One part of a text.

    separator: white space that follows the segment.
    answers: translations, best first; empty for a text that is copied (see `needs_model`).
    prefix: text that the request put before the answer.
    source_ids: token ids of the text, as the model reads it.
    pivot: the segment in the pivot language, for a translation with two models.
    is_instructed: a language model translates it. White space around its answers is dropped.
    shows_tags: a language model reads its inline tags, and repeats them.
    is_aligned: the attention of its translation is needed.
    is_second_attempt: the first answer was a loop; see `loops`.
    has_wrong_language: the translation is not in the target language, as far as can be detected.
    """

    text: str
    separator: str
    answers: list[GeneratedText] = field(default_factory=list)
    prefix: str = ""
    source_ids: list[int] = field(default_factory=list)
    pivot: PivotText | None = None
    is_instructed: bool = False
    shows_tags: bool = False
    is_aligned: bool = False
    is_second_attempt: bool = False
    has_wrong_language: bool = False

    @property
    def reading(self) -> str:
        """The text that the model reads."""
        return self.text

    @property
    def plain_source(self) -> str:
        """The text to compare with the answers: what the model reads, without inline tags."""
        return self.reading

    @property
    def is_placed_by_order(self) -> bool:
        """Whether inline tags or protected parts of the best translation were placed by the order of the words."""
        return False

    @property
    def has_tags(self) -> bool:
        """Whether inline tags or protected parts are placed in the translation."""
        return False

    @property
    def needs_model(self) -> bool:
        """Whether a model translates the text. A text without letters, such as a number or a dash, is copied."""
        return any(map(str.isalpha, self.text))

    @property
    def is_whole(self) -> bool:
        """Whether the result is only known when the translation is complete, so that it is streamed as one piece."""
        return self.is_instructed

    @property
    def done(self) -> bool:
        return all(answer.done for answer in self.answers)

    @property
    def finish_reasons(self) -> list[str | None]:
        """How the best translation ended, and the text in the pivot language if there is one."""
        own = [answer.finish_reason for answer in self.answers[:1]]
        return own if self.pivot is None else [*own, self.pivot.finish_reason]

    def score(self, rank: int) -> float | None:
        """Log-probability of a translation; None without beam search. rank: index of the translation, best first.

        With a pivot language, the log-probability of the text in the pivot language is added.
        """
        pivots = [self.pivot.answer] if self.pivot is not None else []
        scores = [part.score for part in (self.answers[rank], *pivots)]
        known = [score for score in scores if score is not None]
        return sum(known) if len(known) == len(scores) else None

    @property
    def flags(self) -> list[Flag]:
        """Signs of mistakes in the best translation, see `Translation.flags` of the native dialect."""
        if not self.answers:
            return []
        read = self.source_ids if self.pivot is None else self.pivot.ids
        has_loop = is_loop(self.answers[0], read) or (
            self.pivot is not None and is_loop(self.pivot.answer, self.source_ids)
        )
        found: list[tuple[Flag, bool]] = [
            ("numbers", numbers_differ(self.plain_source, self.answer(0))),
            ("loop", has_loop),
            ("language", self.has_wrong_language),
            ("tags", self.is_placed_by_order),
        ]
        return [flag for flag, applies in found if applies]

    def alignment(self, answer: GeneratedText) -> AttentionMatrix:
        """Attention of a translation's tokens over the tokens of the segment."""
        if self.pivot is None:
            return answer.alignment(self.source_ids)
        return self.pivot.alignment(answer, self.source_ids)

    def result(self, rank: int) -> str:
        """The translation of this rank with the separator."""
        own = self.prefix + self.answer(rank) if self.answers else self.text
        return own + self.separator

    def answer(self, rank: int) -> str:
        """The text of an answer."""
        text = self.answers[rank].text
        return text.strip() if self.is_instructed else text


@dataclass
class SegmentDelta:
    """New text and tokens of one segment. input: index of the text in the request."""

    input: int
    segment: int
    text: str
    token_ids: list[int]
    logprobs: Logprobs


class SegmentedText:
    """All segments of one input.

    index: index of the input in the request.
    released: all text that `release` has returned.
    failed: a segment has failed, so nothing more is released.
    """

    def __init__(self, index: int, segments: list[Segment]) -> None:
        self.index = index
        self.segments = segments
        self.released = ""
        self.failed = False
        self._current = 0
        self._held: dict[int, list[TextDelta]] = {}
        self._prefix_released = False

    def hold(self, segment: int, delta: TextDelta) -> None:
        """Keep a delta of a segment's best answer until all earlier segments are complete."""
        self._held.setdefault(segment, []).append(delta)

    def release(self) -> Iterator[SegmentDelta]:
        """The held deltas that may be sent: those of the current segment and, once it is complete, of the next one, and
        so on.
        """
        while self._current < len(self.segments) and not self.failed:
            index, segment = self._current, self.segments[self._current]
            deltas = self._held.pop(index, [])
            text = "" if segment.is_whole else "".join([delta.text for delta in deltas])
            if deltas and not self._prefix_released:
                text = segment.prefix + text
            self._prefix_released = self._prefix_released or bool(deltas)
            if segment.done:
                text += segment.separator if segment.answers and not segment.is_whole else segment.result(0)
                self._current += 1
                self._prefix_released = False
            ids = [token_id for delta in deltas for token_id in delta.token_ids]
            self.released += text
            if text or ids:
                logprobs = Logprobs()
                for delta in deltas:
                    logprobs.extend(delta.logprobs)
                yield SegmentDelta(self.index, index, text, ids, logprobs)
            if not segment.done:
                return

    @property
    def ranks(self) -> int:
        """Number of translations of the whole text."""
        return min((len(segment.answers) for segment in self.segments if segment.answers), default=1)

    def text(self, rank: int) -> str:
        """The whole translation of this rank."""
        return "".join([segment.result(rank) for segment in self.segments])

    def score(self, rank: int) -> float | None:
        """Sum of the segments' scores; None without beam search."""
        scores = [segment.score(rank) for segment in self.segments if segment.answers]
        known = [score for score in scores if score is not None]
        return sum(known) if known and len(known) == len(scores) else None

    def flags(self) -> list[Flag]:
        """The flags that some segment has."""
        return list(dict.fromkeys(flag for segment in self.segments for flag in segment.flags))

    def finish_reason(self) -> str:
        """The first of `error`, `timeout` and `length` that a segment has, else `stop`."""
        reasons = {reason for segment in self.segments for reason in segment.finish_reasons}
        return next((reason for reason in ("error", "timeout", "length") if reason in reasons), "stop")

    def translated(self) -> list[Segment]:
        """The segments with a translation."""
        return [segment for segment in self.segments if segment.answers]


def max_segments(text: str, limit: int, is_markup: bool) -> int:
    """Maximum number of segments of a text, for a model that reads `limit` tokens.

    A sentence ends at a line break or a punctuation mark, and in markup at a tag. A segment that does not fit has more
    characters than half of the limit. It is cut near its middle, so each cut leaves at least a sixteenth of the limit.
    """
    ends = sum(map(text.count, SENTENCE_ENDS)) + (
        text.count(">") - text.count("><") + text.count("&") if is_markup else 0
    )
    return max(1, min(len(text), 2 + ends + 16 * len(text) // max(limit, 1)))


def whole(text: str) -> list[Segment]:
    """A text as one segment. White space alone is not translated."""
    return [Segment(text, "") if text.strip() else Segment("", text)]


def split(
    text: str,
    target: str | None,
    fits: Callable[[str], bool],
    at_newlines: bool = True,
    source: str | None = None,
) -> list[Segment]:
    """Split a text into sentences, and cut those that are too long until each part `fits`.

    at_newlines: a line break ends a sentence. Else it counts as a space inside a sentence, and an empty line ends one.
    source: language of the text, whose abbreviations do not end a sentence.
    target: language of the translation. Sentences without white space between them get a space in the translation,
    unless the target language puts none between sentences.
    """
    language = parse_language(target or "")
    spaced = language is None or language.language not in UNSPACED
    read = parse_language(source or "")
    source_language = read.language if read else None
    sentences = split_sentences(text, source_language) if at_newlines else _across_lines(text, source_language)
    for index, sentence in enumerate(sentences[:-1]):
        if sentence.text and not sentence.separator and spaced:
            sentences[index] = Sentence(sentence.text, " ")
    return [Segment(part.text, part.separator) for sentence in sentences for part in _cut(sentence, fits)]


def _across_lines(text: str, language: str | None) -> list[Sentence]:
    """The sentences of a text whose lines are wrapped. White space between sentences stays as it is.

    A line break becomes a space, or nothing between two characters of scripts without spaces. An empty line ends a
    sentence.
    """
    found: list[Sentence] = []
    at = 0
    for sentence in split_sentences(_WRAP.sub(lambda match: " " * len(match[0]), text), language):
        start = at + len(sentence.text)
        at = start + len(sentence.separator)
        found.append(Sentence(_unwrapped(text[start - len(sentence.text) : start]), text[start:at]))
    return found


def _unwrapped(sentence: str) -> str:
    lines = [line.strip() for line in _NEWLINES.split(sentence)]
    joined = lines[0]
    for line in lines[1:]:
        is_unspaced = UNSPACED_CHARACTER.match(joined[-1:]) and UNSPACED_CHARACTER.match(line)
        joined += line if is_unspaced else f" {line}"
    return joined


def _cut(sentence: Sentence, fits: Callable[[str], bool]) -> list[Sentence]:
    """Cut a sentence until each part `fits`: at the pause nearest to its middle, or else in its middle."""
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
