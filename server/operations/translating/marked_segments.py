"""Sentences with tags or protected parts, and their translations, which get the same tags and parts.

Attention between source and translation decides where an inline tag or protected part goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from server.errors import InvalidRequest
from server.ipc.wire.generate_messages import Generate
from server.operations.generating import prompts
from server.operations.generating.generated_text import GeneratedText
from server.operations.translating.segments import Segment
from server.operations.translating.translation_models import longest_answer
from server.text.languages.frequent_words import is_frequent
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_sentences import MarkedSentence, escape, sentences
from server.text.markup.markup_tokens import MarkupError
from server.text.markup.placed_tags import InlineTag, all_tags
from server.text.markup.shown_tags import restored, shown, with_parts, without_tags
from server.text.markup.tag_placement import place_tags, proportional_alignment
from server.text.markup.unit_attention import TokenAlignment


@dataclass(kw_only=True)
class MarkedSegment(Segment):
    """One sentence of a text with markup or protected parts. Its separator is the markup that follows it.

    repeats_parts: the sentence is translated by language models, which read protected parts and repeat them.
    """

    sentence: MarkedSentence
    repeats_parts: bool = False

    @property
    def is_whole(self) -> bool:
        return True

    def result(self, rank: int) -> str:
        if not self.answers:
            return self.sentence.render(self.text, None) + self.separator
        if self.repeats_parts and self.answer(rank) == self.plain_source:
            return self.sentence.raw + self.sentence.separator + self.separator
        marked = self._repeated(rank)
        if marked is not None:
            return self.sentence.before + marked + self.sentence.after + self.sentence.separator + self.separator
        text = self._without_parts(self.answer(rank))
        alignment = self._alignment(self.answers[rank])
        if alignment is None and self.sentence.tags:
            alignment = proportional_alignment(self.text, text)
        return self.sentence.render(text, alignment) + self.separator

    def answer(self, rank: int) -> str:
        text = super().answer(rank)
        return without_tags(text) if self.shows_tags else text

    @property
    def has_tags(self) -> bool:
        return bool(self.sentence.tags)

    @property
    def reading(self) -> str:
        if self.shows_tags:
            return shown(*self.with_parts)
        return self.plain_source

    @property
    def plain_source(self) -> str:
        if not self.repeats_parts:
            return self.text
        return self.sentence.raw.strip() if self.sentence.kind == "text" else self.with_parts[0]

    @property
    def with_parts(self) -> tuple[str, list[InlineTag]]:
        """The sentence with its protected parts as text, and the inline tags that are no protected parts."""
        return with_parts(self.text, self.sentence.tags)

    @property
    def is_placed_by_order(self) -> bool:
        if not self.answers or not self.sentence.tags or self._is_complete(0):
            return False
        known = [self.answers[0]] if self.pivot is None else [self.answers[0], self.pivot.answer]
        is_aligned = not self.is_instructed and all(answer.has_attention for answer in known)
        unchanged = self.answer(0) == self.plain_source or self._without_parts(self.answer(0)) == self.text
        return not is_aligned and not unchanged

    def _is_complete(self, rank: int) -> bool:
        """Whether an answer of a language model has all tags and protected parts of the source. rank: index of the
        answer.
        """
        if not self._has_parts(self.answer(rank)):
            return False
        return self.sentence.kind == "text" or not self.with_parts[1] or self._restored(rank) is not None

    def _repeated(self, rank: int) -> str | None:
        """Convert an answer of a language model to markup. If it has lost tags, all tags are placed by word order.

        rank: index of the answer. Returns None for an answer without the protected parts.
        """
        text = self.answer(rank)
        if not self._has_parts(text):
            return None
        if self.sentence.kind == "text":
            return text
        source, tags = self.with_parts
        found = self._restored(rank)
        as_markup = partial(escape, kind=self.sentence.kind)
        return found or place_tags(text, source, tags, proportional_alignment(source, text), as_markup)

    def _restored(self, rank: int) -> str | None:
        if not self.shows_tags:
            return None
        return restored(self.answers[rank].text, self.with_parts[1], partial(escape, kind=self.sentence.kind))

    def _has_parts(self, text: str) -> bool:
        """Whether the text of a language model's answer has each protected part as often as the source."""
        source = self.plain_source
        return self.repeats_parts and all(text.count(part) == source.count(part) for part in self._parts)

    @property
    def _parts(self) -> set[str]:
        """The protected parts of the sentence. In plain text, also the characters around the text of a link."""
        tags = list(all_tags(self.sentence.tags))
        if self.sentence.kind == "text":
            return {part for tag in tags for part in (tag.opening, tag.closing) if part}
        return {tag.shown for tag in tags if tag.shown}

    def _without_parts(self, text: str) -> str:
        """Remove the protected parts from an answer that has too many or too few of them.

        Afterwards, they are placed again by word order. Returns the text unchanged for an encoder-decoder.
        """
        if not self.repeats_parts or not self._parts:
            return text
        for part in sorted(self._parts, key=len, reverse=True):
            text = text.replace(part, " ")
        return " ".join(text.split(" ")).strip()

    def _alignment(self, answer: GeneratedText) -> TokenAlignment | None:
        if not self.sentence.tags:
            return None
        weights = self.attention_weights(answer)
        if not len(weights) or not self.source_spans:
            return None
        return TokenAlignment(self.source_spans, answer.token_spans(), weights)


def split_markup(
    document: str,
    options: MarkupOptions,
    split: Callable[[str], Sequence[Segment]],
    fits: Callable[[str], bool],
) -> list[Segment]:
    """Split a text with markup or protected parts into segments.

    split: splits plain text into segments. fits: whether a text is short enough for the model.
    Raises InvalidRequest for markup that cannot be read or exceeds a limit.
    """
    found: list[Segment] = []
    try:
        parts = sentences(
            document,
            options,
            lambda text: [(sentence.text, sentence.separator) for sentence in split(text)],
            fits,
            partial(is_frequent, language=""),
        )
    except MarkupError as error:
        raise InvalidRequest(f"`inputs`: {error}", "inputs") from None
    for part in parts:
        if isinstance(part, MarkedSentence):
            found.append(MarkedSegment(part.text, "", sentence=part))
        elif found:
            found[-1].separator += part
        else:
            found.append(Segment("", part))
    return found


def fit_attention(message: Generate, is_open_ended: bool, has_markup: bool) -> Generate:
    """Reduce the attention that a message requests for placing tags and protected parts, if it exceeds the limit.

    First, an open-ended answer is limited to about `LONGEST_RATIO` tokens per source token. If this is not enough, only
    the first sentences keep their attention, and word order places the protected parts of the others. With markup, the
    second step is left out, and the returned message may still exceed the limit.

    is_open_ended: the request does not state how long an answer may be.
    has_markup: the texts are HTML or XML.
    """
    if prompts.attention_numbers(message) <= prompts.MAX_ATTENTION_NUMBERS:
        return message
    if is_open_ended:
        rows = [
            msgspec.structs.replace(
                row, max_new_tokens=min(row.max_new_tokens, longest_answer(len(message.prompts[row.prompt])))
            )
            for row in message.rows
        ]
        message = msgspec.structs.replace(message, rows=rows)
    if has_markup:
        return message
    rows, left = [], prompts.MAX_ATTENTION_NUMBERS
    for row in message.rows:
        alone = msgspec.structs.replace(message, rows=[row])
        numbers = prompts.attention_numbers(alone) if row.attention else 0
        left -= numbers
        rows.append(row if left >= 0 else msgspec.structs.replace(row, attention=False))
    return msgspec.structs.replace(message, rows=rows)
