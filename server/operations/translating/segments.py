"""Split a text to translate into segments (usually sentences), and join the translated segments in order.

Segments are translated in parallel, but their text is released strictly in order: the deltas that a client has read,
joined, are always the beginning of the final text. Imports no HTTP and no engine code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from server.ipc.wire.logprobs import Logprobs
from server.operations.generating.generated_text import AttentionMatrix, GeneratedText, TextDelta
from server.operations.translating.loops import is_loop
from server.operations.translating.pivot_text import PivotText
from server.text.invisible import without_invisible
from server.text.languages.language_codes import parse_language
from server.text.languages.sentences import LIST_ITEM, SENTENCE_ENDS, Sentence, is_next_item, split_sentences
from server.text.markup.protected import SYMBOL, numbers_differ
from server.text.windowed_search import count_characters
from server.word_bounds import UNSPACED as UNSPACED_CHARACTER

Flag = Literal["numbers", "loop", "language", "tags"]
UNSPACED = frozenset({"zh", "ja", "th", "lo", "km", "my", "yue"})
"""Languages written without spaces between sentences; ISO 639-1 codes if they exist, ISO 639-3 codes otherwise."""

_NEWLINES = re.compile(r"[\r\n]+")
_WRAP = re.compile(r"(?<![\r\n])(?:\r\n|\r|\n)(?![^\S\r\n]*[\r\n])")
"""Pattern for a line break that no other line break precedes, and no empty line follows."""
_TOUCHING = r"[—―]{1,2}(?=[\w¿¡])|[・･]\s?(?=\S)"
"""Expression of marks without white space after them: the dash before speech, as in Spanish, and a Japanese bullet."""
_MARKER = re.compile(rf"(?:(?:[-–—*+>#•‣◦·]{{1,6}}|\(?(?:\d{{1,3}}|[A-Za-z])\)|\[[ xX]?\])[ \t]+)+(?=\S)|{_TOUCHING}")
"""Markers at the start of a line: - or * of a list, > of a quotation, # of a heading, a) and (1), [x] of a task."""
_MARK = re.compile(rf"(?:(?:[-–—―*+>#~=/|•‣◦·]{{1,6}}|\[[ xX]?\])[ \t\u00a0\u202f]+)+(?=\S)|{_TOUCHING}")
"""Marks before a sentence on the same line as the one before it: a dash, an asterisk, a bullet."""
_LAST_MARK = re.compile(r"(?<=[.!?…。！？])[ \t\u00a0\u202f]+[-–—―*+#~•‣◦·]{1,6}$")
"""Such marks after the last sentence of a line."""
_NUMBERED = re.compile(r"(?:\d{1,3}|[A-Za-z])\.[ \t]+(?=\S)")
"""Markers of a list whose items are numbered with a full stop."""
_PAUSE = re.compile(r"[,;:،、，；]\s*|\s+")


@dataclass
class Segment:
    """One part of a text to translate, usually a sentence.

    separator: white space after the segment.
    answers: translations, best first; empty before they are created, and for a text that is copied.
    prefix: the request's beginning of the translation, put before the answer; empty except in an input's first
        translated segment.
    source_ids: token ids of the text for the first model.
    source_spans: (start, end) of each token of `source_ids` in the text, in characters; empty for a segment without
        inline tags, and for a language model.
    pivot: the segment in the pivot language; None for a translation with one model.
    is_instructed: a language model translates the segment. White space around its answers is removed.
    shows_tags: the model is a language model that reads the inline tags of the segment, and repeats them.
    is_aligned: the attention of the translation is needed.
    is_second_attempt: the answers come from a second attempt, because the first answer repeated itself in a loop.
    has_wrong_language: the translation was detected not to be in the target language.
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
    source_spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def reading(self) -> str:
        """The text that the first model reads, with any inline tags that it is shown."""
        return without_invisible(self.text)

    @property
    def plain_source(self) -> str:
        """The source text without inline tags, to compare with the answers."""
        return self.reading

    @property
    def is_placed_by_order(self) -> bool:
        """Whether tags or protected parts of the best translation were placed by word order, which is less certain."""
        return False

    @property
    def has_tags(self) -> bool:
        """Whether the segment has inline tags or protected parts, which its translation must contain as well."""
        return False

    @property
    def needs_model(self) -> bool:
        """Whether a model translates the text. A text without letters, such as a number or a dash, is copied."""
        return any(map(str.isalpha, self.text))

    @property
    def is_whole(self) -> bool:
        """Whether the result is unknown until the translation is complete, so that it is streamed as one piece."""
        return self.is_instructed

    @property
    def done(self) -> bool:
        return all(answer.done for answer in self.answers)

    @property
    def finish_reasons(self) -> list[str | None]:
        """Finish reasons of the best translation, and of the text in the pivot language if there is one."""
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
        """Signs of mistakes in the best translation: `numbers` differ from the source, a `loop` of repeated words, the
        wrong `language`, or `tags` that were placed by word order. Empty for a copied text.
        """
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

    def attention_weights(self, answer: GeneratedText) -> npt.NDArray[np.float32]:
        """Attention of a translation over the tokens of the segment: [answer tokens, segment tokens]; no rows if it is
        not known. answer: one of `answers`.
        """
        if self.pivot is None:
            return answer.attention_weights(len(self.source_ids))
        return self.pivot.attention_weights(answer, self.source_ids)

    def alignment(self, answer: GeneratedText) -> AttentionMatrix:
        """Attention of a translation, with the texts of its tokens and of the segment's. answer: one of `answers`."""
        reader = answer.tokenizer if self.pivot is None else self.pivot.answer.tokenizer
        return answer.attention_matrix(self.source_ids, self.attention_weights(answer), reader)

    def result(self, rank: int) -> str:
        """The translation of this rank with its prefix and the separator. For a copied text, the text itself."""
        own = self.prefix + self.answer(rank) if self.answers else self.text
        return own + self.separator

    def answer(self, rank: int) -> str:
        """The text of the answer with this rank, without prefix and separator."""
        text = self.answers[rank].text
        return text.strip() if self.is_instructed else text


@dataclass
class SegmentDelta:
    """New text and tokens of one segment.

    input: index of the text in the request. segment: index of the segment in the text.
    """

    input: int
    segment: int
    text: str
    token_ids: list[int]
    logprobs: Logprobs


class SegmentedText:
    """The segments of one input, and the order in which their deltas are released.

    index: index of the input in the request.
    released: text of all deltas that `release` has returned.
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
        """Keep a delta of a segment's best answer for `release`. segment: index of the segment."""
        self._held.setdefault(segment, []).append(delta)

    def release(self) -> Iterator[SegmentDelta]:
        """Yield the deltas that may be sent, in order: those of complete segments and of the first incomplete one."""
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
        """How many translations the whole text has: the best one and its alternatives."""
        return min((len(segment.answers) for segment in self.segments if segment.answers), default=1)

    def text(self, rank: int) -> str:
        """The translation of the whole text that consists of the segments' translations of this rank."""
        return "".join([segment.result(rank) for segment in self.segments])

    def score(self, rank: int) -> float | None:
        """Log-probability of the translation of this rank: the sum over its segments. None without beam search."""
        scores = [segment.score(rank) for segment in self.segments if segment.answers]
        known = [score for score in scores if score is not None]
        return sum(known) if known and len(known) == len(scores) else None

    def flags(self) -> list[Flag]:
        """The flags of all segments, each once."""
        return list(dict.fromkeys(flag for segment in self.segments for flag in segment.flags))

    def finish_reason(self) -> str:
        """The first of `error`, `timeout` and `length` that is a finish reason of a segment; otherwise `stop`."""
        reasons = {reason for segment in self.segments for reason in segment.finish_reasons}
        return next((reason for reason in ("error", "timeout", "length") if reason in reasons), "stop")

    def translated(self) -> list[Segment]:
        """The segments that a model translates, in order. Copied segments are left out."""
        return [segment for segment in self.segments if segment.answers]


def max_segments(text: str, limit: int, is_markup: bool) -> int:
    """Upper bound of the number of segments in a text, for a model that reads at most `limit` tokens.

    A sentence ends at a line break or a punctuation mark, in markup at a tag, and with protected parts at a symbol.
    Only a segment with more than `limit / 2` characters can be too long. It is cut near its middle, so that each part
    has at least `limit / 16`.
    """
    ends = sum(map(text.count, SENTENCE_ENDS)) + (
        text.count(">") - text.count("><") + text.count("&") + count_characters(SYMBOL, text) if is_markup else 0
    )
    return max(1, min(len(text), 2 + ends + 16 * len(text) // max(limit, 1)))


def whole(text: str) -> list[Segment]:
    """Convert a text to one segment. A text of white space alone becomes its separator, which is not translated."""
    return [Segment(text, "") if text.strip() else Segment("", text)]


def split(
    text: str,
    target: str | None,
    fits: Callable[[str], bool],
    at_newlines: bool = True,
    source: str | None = None,
) -> list[Segment]:
    """Split a text into sentences, and cut long sentences until each part `fits`.

    fits: whether a text is short enough for the model.
    at_newlines: a line break ends a sentence. Otherwise, it counts as a space, and only an empty line ends a sentence.
    source: code of the text's language. Abbreviations of this language do not end a sentence.
    target: code of the translation's language. If there is no white space between two sentences, a space is added,
        unless the target language is written without spaces between sentences.
    """
    language = parse_language(target or "")
    spaced = language is None or language.language not in UNSPACED
    read = parse_language(source or "")
    source_language = read.language if read else None
    sentences = split_sentences(text, source_language) if at_newlines else _across_lines(text, source_language)
    for index, sentence in enumerate(sentences[:-1]):
        if sentence.text and not sentence.separator and spaced:
            sentences[index] = Sentence(sentence.text, " ")
    sentences = list(_without_markers(sentences))
    return [Segment(part.text, part.separator) for sentence in sentences for part in _cut(sentence, fits)]


def _without_markers(sentences: Sequence[Sentence]) -> Iterator[Sentence]:
    """Separate the marker of a list item, quotation or heading from its sentence.

    Models drop such markers, or translate them as words. A number with a full stop is a marker only in a list. Inside a
    line, dashes and bullets count, and a label that follows the last one: (2) after (1).
    """
    begins_line = True
    last_label: re.Match[str] | None = None
    starts = [sentence.text for sentence in sentences]
    is_list = sum(_NUMBERED.match(text) is not None for text in starts) > 1
    for sentence in sentences:
        label = LIST_ITEM.match(sentence.text)
        if begins_line:
            marker = (_NUMBERED.match(sentence.text) if is_list else None) or _MARKER.match(sentence.text)
            last_label = None if marker is None else label
        elif label is not None and last_label is not None and is_next_item(last_label, label):
            marker = last_label = label
        else:
            marker = _MARK.match(sentence.text)
        start = marker.end() if marker is not None else 0
        if marker is not None:
            yield Sentence("", marker[0])
        last = _LAST_MARK.search(sentence.text, start)
        end = last.start() if last is not None else len(sentence.text)
        yield Sentence(sentence.text[start:end], sentence.text[end:] + sentence.separator)
        begins_line = "\n" in sentence.separator if sentence.text else begins_line


def _across_lines(text: str, language: str | None) -> list[Sentence]:
    """Find the sentences of a text with wrapped lines. White space between sentences is unchanged.

    Inside a sentence, a line break becomes a space; between two characters of a script without spaces, it is removed.
    An empty line ends a sentence. language: code of the text's language.
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
    """Cut a sentence until each part `fits`: at the comma, colon, semicolon or space nearest to its middle.

    Without any of them, it is cut exactly in its middle.
    """
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
