"""Segments of HTML and XML: their translations are put back into the markup, with inline tags placed by attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.generating.generated_text import GeneratedText
from server.operations.runtime import Runtime, ServedModel
from server.operations.translating.segments import Segment
from server.text.languages.languages import TranslationPrompt
from server.text.markup.markup import MarkupOptions
from server.text.markup.markup_sentences import MarkedSentence, sentences
from server.text.markup.markup_tokens import MarkupError
from server.text.markup.tag_placement import Span, TokenAlignment


@dataclass(kw_only=True)
class MarkedSegment(Segment):
    """One sentence of a document. The separator is the markup that follows it.

    source_ids: token ids that the model reads.
    source_spans: place of each of them in the sentence; empty without inline tags.
    """

    sentence: MarkedSentence
    source_ids: list[int] = field(default_factory=list)
    source_spans: list[Span] = field(default_factory=list)

    def result(self, rank: int) -> str:
        if not self.answers:
            return self.sentence.render(self.text, None) + self.separator
        answer = self.answers[rank]
        return self.sentence.render(answer.text, self._alignment(answer)) + self.separator

    def _alignment(self, answer: GeneratedText) -> TokenAlignment | None:
        if not self.sentence.tags:
            return None
        weights = answer.alignment(self.source_ids).matrix
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
        parts = sentences(document, options, lambda text: [(one.text, one.separator) for one in split(text)], fits)
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


async def locate_tokens(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    tagged: Sequence[MarkedSegment],
    language_prompt: TranslationPrompt,
) -> None:
    """Set `source_spans` of segments with inline tags."""
    if not tagged:
        return
    prefix = language_prompt.prefix
    encodings = await runtime.encode(
        model.tokenizer,
        [prefix + one.text for one in tagged],
        param="inputs",
        add_special_tokens=language_prompt.trailing_source_ids is None,
        offsets=True,
        call=call,
    )
    before = [(0, 0)] * len(language_prompt.leading_source_ids)
    after = [(0, 0)] * len(language_prompt.trailing_source_ids or ())
    for segment, encoding in zip(tagged, encodings, strict=True):
        spans = [(max(0, start - len(prefix)), max(0, end - len(prefix))) for start, end in encoding.offsets]
        own = [(0, 0) if special else span for span, special in zip(spans, encoding.special, strict=True)]
        segment.source_spans = [*before, *own, *after]
