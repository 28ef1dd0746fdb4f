"""Grammars that answers have to follow: where each row stands in its own, and which tokens may come next.

A mask depends only on tokens that are known when a step is scheduled. So all of a step's masks are made beside its
forward pass, in parallel, by threads that hold no Python lock: `GrammarMasks.start` before it, `PendingMasks.wait` after it.

The automaton is llguidance's: Earley's parser over a lexer of regular expressions' derivatives, walked along the trie
of the vocabulary. Knows bytes of tokens and ids; not text, JSON, or where logits come from.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace

import llguidance
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]

CACHED_GRAMMARS = 16
MAX_LEXER_STATES = 1 << 15
"""Of one grammar: one to two kilobytes each."""
LIMITS = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)

TOO_COMPLEX = "`response_format` grew too complex"
NOTHING_FITS = "`response_format` cannot be followed: no token of the model's vocabulary goes on from here"


class GrammarState:
    """One row's place in its grammar.

    start: how many of the row's tokens come before the text that the grammar is about.
    bits: [words], uint32, None until there is a mask: token i may come next if bit i % 32 of word i // 32 is set.
    accepts: whether the text may end here. is_complete: whether it can do nothing else.
    failure: why the row cannot go on at all; empty where it can.
    """

    def __init__(self, grammar: str, start: int) -> None:
        self.grammar = grammar
        self.matcher: llguidance.LLMatcher | None = None
        self.num_consumed = start
        self.bits: Bits | None = None
        self.accepts = False
        self.is_complete = False
        self.failure = ""

    def fork(self) -> GrammarState:
        """The same place, for a row that goes on by itself."""
        copy = GrammarState(self.grammar, self.num_consumed)
        copy.matcher = self.matcher.deep_copy() if self.matcher is not None else None
        copy.failure = self.failure
        return copy


class GrammarMasks:
    """What one model's answers may have to look like: its vocabulary in bytes, and the grammars that were asked for.

    tokens: the bytes of each token, by id; empty for one that is no text. vocab_size: of the logits.
    """

    def __init__(self, tokens: Sequence[bytes], vocab_size: int) -> None:
        spelled = [*tokens[:vocab_size], *[b""] * (vocab_size - len(tokens))]
        # One id more than there are logits stands for the end, so that its bit tells whether a text may end.
        self._end = vocab_size
        self._words = vocab_size // 32 + 1
        self._vocabulary = llguidance.LLTokenizer(
            _vocabulary([*spelled, b""], self._end), n_vocab=vocab_size + 1, eos_token=self._end
        )
        self._grammars: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, rows: Sequence[tuple[GrammarState, Sequence[int], Sequence[int], Sequence[int]]]) -> PendingMasks:
        """Begin the masks of a step, each row with its tokens, its end tokens, and other tokens that may end it.

        Until `PendingMasks.wait` returns, nobody else may touch the grammar_states.
        """
        return PendingMasks(self._thread.submit(self._make, rows))

    def _make(self, rows: Sequence[tuple[GrammarState, Sequence[int], Sequence[int], Sequence[int]]]) -> None:
        live = [row for row in rows if self._catch_up(row[0], row[1])]
        bits: Bits = np.zeros((len(live), self._words), dtype=np.uint32)
        targets = [(row[0].matcher, index) for index, row in enumerate(live) if row[0].matcher is not None]
        if targets:
            _executor().unsafe_compute_mask_ptr(targets, bits.ctypes.data, bits.shape[1] * 4, bits.shape[0])
        word, bit = divmod(self._end, 32)
        ended = (bits[:, word] >> np.uint32(bit)) & np.uint32(1)
        bits[:, word] &= ~np.uint32(1 << bit)
        for (grammar_state, _, ends, other_ends), mask, may_end in zip(live, bits, ended.tolist(), strict=True):
            self._settle(grammar_state, mask, bool(may_end), ends, other_ends)

    def _catch_up(self, grammar_state: GrammarState, tokens: Sequence[int]) -> bool:
        """Take in the tokens since the last mask. Returns whether there is a mask to be made."""
        grammar_state.accepts = grammar_state.is_complete = False
        grammar_state.bits = np.zeros(self._words, dtype=np.uint32)
        if grammar_state.failure:
            return False
        if grammar_state.matcher is None:
            grammar_state.matcher = self._matcher(grammar_state.grammar)
        for token in tokens[grammar_state.num_consumed :]:
            if not grammar_state.matcher.consume_token(token):
                break
        grammar_state.num_consumed = len(tokens)
        if grammar_state.matcher.is_error():
            self._give_up(grammar_state)
        return not grammar_state.failure

    def _settle(
        self, grammar_state: GrammarState, mask: Bits, may_end: bool, ends: Sequence[int], other_ends: Sequence[int]
    ) -> None:
        """End tokens are allowed exactly where the grammar says that the text may end."""
        assert grammar_state.matcher is not None
        grammar_state.bits = mask
        for token in ends:
            mask[token // 32] &= ~np.uint32(1 << token % 32)
        leaves_text = bool(mask.any())
        # A matcher that found no way on asks for the end, too.
        grammar_state.accepts = may_end and grammar_state.matcher.is_accepting()
        grammar_state.is_complete = grammar_state.accepts and not leaves_text
        if grammar_state.accepts:
            for token in (*ends, *other_ends):
                mask[token // 32] |= np.uint32(1 << token % 32)
        elif not leaves_text:
            self._give_up(grammar_state)

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        """At the start of a grammar; what was compiled for one row serves the next ones."""
        if grammar not in self._grammars:
            matcher = llguidance.LLMatcher(self._vocabulary, grammar, limits=LIMITS, log_level=0)
            self._grammars[grammar] = matcher
        self._grammars.move_to_end(grammar)
        if len(self._grammars) > CACHED_GRAMMARS:
            self._grammars.popitem(last=False)
        return self._grammars[grammar].deep_copy()

    def _give_up(self, grammar_state: GrammarState) -> None:
        assert grammar_state.matcher is not None and grammar_state.bits is not None
        reason = grammar_state.matcher.get_error().partition("\n")[0]
        nothing_fits = not reason or reason.startswith("NoExtension")
        grammar_state.failure = NOTHING_FITS if nothing_fits else f"{TOO_COMPLEX}: {reason[:200]}"
        grammar_state.bits[:] = 0
        # The states of a lexer are shared by all that were copied from it, and may be what there are too many of.
        self._grammars.pop(grammar_state.grammar, None)


class PendingMasks:
    """Masks in the making."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> float:
        """Until they are made. Returns the seconds that took."""
        started = time.monotonic()
        self._future.result()
        return time.monotonic() - started


def fork(
    grammar_states: Sequence[GrammarState], parents: Sequence[int], possible: Sequence[bool]
) -> list[GrammarState]:
    """The grammar_states of new beams, each from its parent's row; those that only fill a place never go on."""
    children = []
    unclaimed = set(range(len(grammar_states)))
    for parent, is_possible in zip(parents, possible, strict=True):
        own = parent in unclaimed and is_possible
        child = grammar_states[parent] if own else grammar_states[parent].fork()
        if is_possible:
            unclaimed.discard(parent)
        else:
            child.failure = NOTHING_FITS
        children.append(child)
    return children


def _vocabulary(tokens: list[bytes], end: int) -> llguidance.TokenizerWrapper:
    """A vocabulary alone. Grammars that force nothing never ask for a tokenizer."""
    return llguidance.TokenizerWrapper(
        SimpleNamespace(tokens=tokens, eos_token_id=end, bos_token_id=None, special_token_ids=[end])
    )


@cache
def _executor() -> llguidance.LLExecutor:
    """The threads that masks are made in, of all models."""
    return llguidance.LLExecutor()
