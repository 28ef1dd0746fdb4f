"""Keeps the position of one sequence in the sections of its answer, and in their grammars."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import llguidance
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from server.ipc.wire.sections import AnswerSection, Marker, MarkerScanner

Bits = NDArray[np.uint32]


class CompiledGrammar:
    """A grammar that a thread compiles.

    matcher: a matcher at the start of the grammar; None until the grammar is compiled.
    started: when compiling began, in seconds of `time.monotonic()`; None before.
    mask_seconds: recorded processor time of a mask task, by which `MaskThreads` finds slow grammars; None before the
        first task.
    has_failed: whether a copy of the matcher has failed. Copies share lexer states, and their number may be the cause.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matcher: llguidance.LLMatcher | None = None
        self.started: float | None = None
        self.mask_seconds: float | None = None
        self.has_failed = False


class GrammarState:
    """Position of one sequence in the sections of its answer, and in the grammar of the current section.

    sections: sections of the answer. Texts of markers are compared as bytes, written as Latin-1 text.
    start: number of tokens before the answer.
    index: index of the current section.
    num_consumed: number of tokens that have been read.
    grammars: the compiled grammars of the sections by their text, shared by all beams; empty until
        `GrammarMasks.prepare`.
    matcher: position in the section's grammar, or None before the first use.
    tokens: the tokens that are being read, of which `num_consumed` have been read.
    section_start: index, in `tokens`, of the first whole token of the section.
    section_bytes: byte tokens with which the section's text begins, before the token at `section_start`. They spell the
        rest of the token in which the previous section ended.
    uses_fallback: whether the matcher follows the fallback grammar of the section.
    bits: mask of the next token: [words], uint32, or None if every token is allowed. Token i is allowed if bit i % 32
        of word i // 32 is set.
    accepts: whether the text may end after the tokens read so far. is_complete: whether it must end after them.
    failure: error message if no token is allowed, else empty.
    free_masks: masks in sections without a grammar, shared by all beams. The key is the section, the end of the text
        that may begin a marker, and whether a marker at the start of the section is still possible.
    """

    def __init__(self, sections: Sequence[AnswerSection], start: int) -> None:
        self.sections = [
            replace(section, markers=[_in_bytes(marker) for marker in section.markers]) for section in sections
        ]
        self.num_consumed = start
        self.tokens: Sequence[int] = ()
        self.bits: Bits | None = None
        self.accepts = False
        self.is_complete = False
        self.failure = ""
        self.free_masks: dict[tuple[int, str, bool], Bits | None] = {}
        self.grammars: dict[str, CompiledGrammar] = {}
        self.enter(0, start)

    def enter(self, index: int, start: int) -> None:
        """Begin a section. index: index of the section. start: index of its first token in `tokens`."""
        self.index = index
        self.section_start = start
        self.section_bytes: list[int] = []
        self.uses_fallback = False
        self.matcher: llguidance.LLMatcher | None = None
        self.scanner = MarkerScanner(self.section.markers)

    @property
    def section(self) -> AnswerSection:
        return self.sections[self.index]

    @property
    def is_compiled(self) -> bool:
        """Whether the grammars of all sections are compiled."""
        return all(grammar.matcher is not None for grammar in self.grammars.values())

    def fork(self) -> GrammarState:
        """A copy for another beam. The copy shares the compiled grammars, and has its own position in them."""
        other = copy(self)
        other.scanner = self.scanner.fork()
        other.matcher = self.matcher.deep_copy() if self.matcher is not None else None
        return other


def _in_bytes(marker: Marker) -> Marker:
    return replace(marker, text=marker.text.encode().decode("latin-1"))


def fork(
    grammar_states: Sequence[GrammarState], parents: Sequence[int], possible: Sequence[bool], failure: str
) -> list[GrammarState]:
    """Make the grammar states of new beams. The first possible child of a state takes over the state.

    Its other children get copies.
    grammar_states: states of the old beams.
    parents: for each new beam, the index of the old beam that it continues.
    possible: whether each new beam is possible. An impossible beam gets a failed state.
    failure: error message of failed states.
    """
    children = []
    unclaimed = set(range(len(grammar_states)))
    for parent, is_possible in zip(parents, possible, strict=True):
        own = parent in unclaimed and is_possible
        child = grammar_states[parent] if own else grammar_states[parent].fork()
        if is_possible:
            unclaimed.discard(parent)
        else:
            child.failure = failure
        children.append(child)
    return children
