"""The rows of a `Generate` message for a translation, one for each segment of the texts, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import GenerateRow
from server.ipc.wire.params import GenerationParams
from server.operations.generating import prompts
from server.operations.generating.generate import hypotheses
from server.operations.generating.generated_text import GeneratedText, TextOptions
from server.operations.generating.generation_params import ResolvedOptions
from server.operations.translating.segments import Segment
from server.operations.translating.translation_models import TranslationStep


class SegmentSettings(NamedTuple):
    """How the tokens of an answer are generated, and how they become text."""

    params: GenerationParams
    text: TextOptions


class SegmentRows:
    """The rows of one request, in the order of its segments.

    step: the last step of the translation. resolved: maximum number of new tokens of that step, and the seed.
    plain, with_terms: settings of segments without and with glossary terms.
    rows, sources, answers: for each segment, its row, the token ids that the model reads, and its answers. The answers
        are empty until tokens arrive.
    """

    def __init__(
        self,
        call: Call,
        step: TranslationStep,
        resolved: ResolvedOptions,
        plain: SegmentSettings,
        with_terms: SegmentSettings,
    ) -> None:
        self._call, self._step, self._resolved = call, step, resolved
        self._plain, self._with_terms = plain, with_terms
        self._start = prompts.decoder_start(step.model, step.prompt)
        self._prefix = prompts.decoder_prefix(step.generation_options, step.model)
        self._prefixed: set[int] = set()
        self._continued: list[Sequence[int]] = []
        self.rows: list[GenerateRow] = []
        self.sources: list[list[int]] = []
        self.answers: list[list[GeneratedText]] = []

    def add(self, text: int, segment: Segment, terms: list[int]) -> None:
        """Add the row of a segment, and set the segment's answers.

        text: index of the text that has the segment. Its first segment starts with the request's `decoder_prefix`.
        terms: the glossary terms in the segment, see `SentenceTerms.by_sentence`.
        Raises InvalidRequest, ContextLengthExceeded or RequestTooLarge if the segment leaves no room for an answer.
        """
        step, info = self._step, self._step.model.info
        source = segment.source_ids if segment.pivot is None else segment.pivot.ids
        prefix: list[int] = []
        if text not in self._prefixed:
            self._prefixed.add(text)
            prefix, segment.prefix = self._prefix, step.options.decoder_prefix or ""
        settings = self._with_terms if terms else self._plain
        room = prompts.max_new_tokens(info, source, self._start + prefix, "inputs")
        if step.frame is not None:
            room = min(room, prompts.tokens_left_in_pool(info, source, settings.params.num_beams, "inputs"))
            room = min(room, step.answer_tokens(source) or room)
        continued = prefix if step.frame is None else source
        row = len(self.rows)
        self.sources.append(source)
        self._continued.append(continued)
        self.rows.append(
            GenerateRow(
                self._call.next_id(),
                min(self._resolved.max_new_tokens, room),
                row,
                self._start + prefix,
                seed=self._resolved.seed,
                text_drops_space=settings.text.drops_space and not continued,
                terms=terms,
                attention=segment.is_aligned,
            )
        )
        segment.answers = self.new_answers(row, row)
        self.answers.append(segment.answers)

    def new_answers(self, row: int, place: int) -> list[GeneratedText]:
        """Empty answers of a row. place: index of the row in the message that generates them."""
        settings = self._with_terms if self.rows[row].terms else self._plain
        return hypotheses(self._step.model, settings.params, place, settings.text, self._continued[row])
