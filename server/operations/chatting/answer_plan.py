"""Plan the sections of a chat answer (reasoning, content, calls), the markers between them, and their grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from server.ipc.wire.sections import AnswerSection, Marker
from server.operations.chatting.tool_grammar import CallGrammar, lark, symbols
from server.operations.generating.grammar import TextGrammar, assemble

SectionKind = Literal["reasoning", "content", "calls"]


@dataclass(frozen=True)
class AnswerPlan:
    """The sections of an answer, and how to read its calls.

    kinds: kind of each section.
    before_name, before_arguments: text before the name of a call, and text between its name and arguments, as
        characters and ids of special tokens, without white space. Empty if the answer has no calls.
    special_ids: ids of the special tokens in the sections and between them.
    """

    sections: Sequence[AnswerSection]
    kinds: Sequence[SectionKind]
    before_name: Sequence[str | int] = ()
    before_arguments: Sequence[str | int] = ()
    special_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Reasoning:
    """Markers of the reasoning at the beginning of an answer.

    begin, end: texts or special tokens around the reasoning.
    is_open: whether the prompt ends inside reasoning. Otherwise the answer may start its reasoning with `begin`.
    """

    begin: str
    end: str
    is_open: bool


@dataclass
class _Section:
    """A section under construction.

    rules: Lark rules of the section's grammar, of which the first is named `answer`; empty for any text.
    sources: name to grammar, for the grammars that the rules refer to.
    fallbacks: for each name in `sources`, the grammar that is followed if the one in `sources` fails.
    markers: markers that end the section. The section index of a marker counts from the first section under
        construction.
    """

    kind: SectionKind
    rules: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)

    def build(self, offset: int = 0) -> AnswerSection:
        """Build the section. offset: number to add to the section indices of its markers."""
        markers = [replace(marker, section=marker.section + offset) for marker in self.markers]
        if not self.rules:
            return AnswerSection(markers)
        ways_out = [
            f"<[{marker.token_id}]>" if marker.token_id is not None else lark(marker.text, {}) for marker in markers
        ]
        rules = f"start: {' | '.join(['answer', *ways_out])}\n{self.rules}"
        fallback = assemble(rules, self.fallbacks) if self.fallbacks != self.sources else ""
        return AnswerSection(markers, assemble(rules, self.sources), fallback=fallback)


@dataclass(frozen=True)
class AnswerPlanner:
    """Creates the plan of an answer.

    calls: grammar of the calls that the answer may contain; None if it may contain no call.
    is_required: whether the answer must consist of calls only, apart from reasoning.
    at_start: whether the answer begins a message; false if it continues one.
    text: grammar of the content, or None for any text.
    reasoning: markers of the reasoning at the beginning; None for an answer without reasoning.
    special: special tokens in the texts of calls and reasoning, to their ids.
    """

    calls: CallGrammar | None = None
    is_required: bool = False
    at_start: bool = True
    text: TextGrammar | None = None
    reasoning: Reasoning | None = None
    special: Mapping[str, int] = field(default_factory=dict)

    def plan(self) -> AnswerPlan:
        sections = self._answer(after_reasoning=self.reasoning is not None and self.reasoning.is_open)
        if self.reasoning is None:
            built = [section.build() for section in sections]
        else:
            sections, built = self._with_reasoning(sections, self.reasoning)
        row = self.calls.row if self.calls is not None else None
        return AnswerPlan(
            built,
            [section.kind for section in sections],
            symbols(row.before_name, self.special) if row is not None else (),
            symbols(row.before_arguments, self.special) if row is not None else (),
            frozenset(self.special.values()),
        )

    def _with_reasoning(
        self, sections: list[_Section], reasoning: Reasoning
    ) -> tuple[list[_Section], list[AnswerSection]]:
        """Add the section of reasoning before the other sections.

        Returns all sections in two forms: as sections under construction, and as sections for the engine.
        """
        may_end = not sections[0].rules
        if reasoning.is_open:
            thinking = _Section("reasoning", markers=[self._marker(reasoning.end, 1)])
            built = [replace(thinking.build(), may_end=may_end), *(section.build(1) for section in sections)]
            return [thinking, *sections], built
        first = sections[0]
        thinking = _Section("reasoning", markers=[self._marker(reasoning.end, 2)])
        later = self._answer(after_reasoning=True)
        first.markers.append(self._marker(reasoning.begin, -1, at_start=True))
        built = [first.build(2), replace(thinking.build(), may_end=may_end), *(section.build(2) for section in later)]
        return [first, thinking, *later], built

    def _answer(self, after_reasoning: bool) -> list[_Section]:
        """Create the sections of content and calls, in order.

        after_reasoning: whether the answer contains reasoning before them; line breaks may then come first.
        """
        gap = "GAP? " if after_reasoning else ""
        content = _Section("content")
        if self.text is not None:
            sources, fallbacks = {"text": self.text.source}, {"text": self.text.fallback or self.text.source}
            content = _Section("content", f"answer: {gap}@text\n{_GAP_RULE}", sources, fallbacks)
        if self.calls is None:
            return [content]
        if self.is_required:
            return [self._calls("")]
        row, sections = self.calls.row, [content]
        beginnings = [(row.marker, row.at_start, row.marker)] if self.at_start or not row.at_start else []
        beginnings += [(text, False, "") for text in row.introductions if text in self.special]
        for marker, at_start, text_before in beginnings:
            content.markers.append(self._marker(marker, len(sections), at_start))
            sections.append(self._calls(text_before))
        return sections

    def _calls(self, text_before: str) -> _Section:
        assert self.calls is not None
        rules = f"answer: calls\n{self.calls.rules(text_before)}"
        return _Section("calls", rules, self.calls.sources, self.calls.fallbacks)

    def _marker(self, text: str, section: int, at_start: bool = False) -> Marker:
        if text in self.special:
            return Marker(section, token_id=self.special[text], at_start=at_start)
        return Marker(section, text, at_start=at_start)


_GAP_RULE = r"GAP: /\n{1,2}/"
"""Lark rule for line breaks between reasoning and content, which belong to neither of them."""
