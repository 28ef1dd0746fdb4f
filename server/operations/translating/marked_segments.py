"""Segments of HTML and XML: their translations are put back into the markup, with inline tags placed by attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.messages import Generate
from server.operations.generating import prompts
from server.operations.generating.generated_text import GeneratedText
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.translating.pivot_text import token_spans
from server.operations.translating.segments import Segment
from server.operations.translating.translation_models import longest_answer
from server.text.languages.languages import TranslationPrompt
from server.text.markup.markup import MarkupOptions
from server.text.markup.markup_sentences import MarkedSentence, sentences
from server.text.markup.markup_tokens import MarkupError
from server.text.markup.tag_placement import Span, TokenAlignment, proportional_alignment


@dataclass(kw_only=True)
class MarkedSegment(Segment):
    """One sentence of a document. The separator is the markup that follows it.

    source_spans: (start, end) of each source token in the sentence, in characters; empty without inline tags.
    """

    sentence: MarkedSentence
    source_spans: list[Span] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return True

    def result(self, rank: int) -> str:
        if not self.answers:
            return self.sentence.render(self.text, None) + self.separator
        text = self.answer(rank)
        if self.is_instructed:
            text, is_complete = self._without_parts(text)
            if is_complete:
                return self.sentence.before + text + self.sentence.after + self.sentence.separator + self.separator
        alignment = self._alignment(self.answers[rank])
        if alignment is None and (self.is_instructed or self.sentence.kind == "text"):
            alignment = proportional_alignment(self.text, text)
        return self.sentence.render(text, alignment) + self.separator

    @property
    def has_tags(self) -> bool:
        return bool(self.sentence.tags)

    @property
    def reading(self) -> str:
        """The text that the model reads. A language model repeats protected parts of plain text, so it reads them."""
        return self.sentence.raw.strip() if self.is_instructed and self.sentence.kind == "text" else self.text

    def _without_parts(self, text: str) -> tuple[str, bool]:
        """An answer of a language model to plain text, and whether it has each protected part as often as the source.

        Otherwise the parts in it are removed, so that they can be put back by the order of the words.
        """
        if self.sentence.kind != "text":
            return text, False
        parts = {tag.opening for tag in self.sentence.tags}
        if all(text.count(part) == self.sentence.raw.count(part) for part in parts):
            return text, True
        for part in sorted(parts, key=len, reverse=True):
            text = text.replace(part, " ")
        return " ".join(text.split(" ")).strip(), False

    def _alignment(self, answer: GeneratedText) -> TokenAlignment | None:
        if not self.sentence.tags:
            return None
        weights = self.alignment(answer).matrix
        spans = self.source_spans[: len(self.source_ids)]
        if not weights or len(spans) != len(self.source_ids):
            return None
        return TokenAlignment(spans, answer.token_spans(), np.array(weights, np.float32))


def split_markup(
    document: str,
    options: MarkupOptions,
    split: Callable[[str], Sequence[Segment]],
    fits: Callable[[str], bool],
) -> list[Segment]:
    """The segments of a document. Raises InvalidRequest for markup that cannot be read or exceeds a limit.

    split: divides plain text. fits: whether the model can read a text.
    """
    found: list[Segment] = []
    try:
        parts = sentences(
            document, options, lambda text: [(sentence.text, sentence.separator) for sentence in split(text)], fits
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


def fit_attention(message: Generate, is_open_ended: bool) -> Generate:
    """A message whose attention, which places protected parts of plain text, can be sent.

    Otherwise the answers are limited to `LONGEST_RATIO` tokens for each one of the source, and in the last resort no
    attention is sent: the parts are then placed by the order of the words.

    is_open_ended: the request does not state how long an answer may be.
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
    if prompts.attention_numbers(message) <= prompts.MAX_ATTENTION_NUMBERS:
        return message
    without = [
        params and msgspec.structs.replace(params, attention=False) for params in (message.params, message.term_params)
    ]
    return msgspec.structs.replace(message, params=without[0], term_params=without[1])


async def locate_tokens(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    tagged: Sequence[MarkedSegment],
    language_prompt: TranslationPrompt,
) -> None:
    """Set `source_spans` of segments with inline tags."""
    spans = await token_spans(runtime, call, model, [marked.text for marked in tagged], language_prompt)
    for segment, own in zip(tagged, spans, strict=True):
        segment.source_spans = own
