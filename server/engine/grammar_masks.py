"""Grammars of structured answers: the position of each sequence in its grammar, and masks of allowed tokens.

A mask depends only on tokens that are known when a step is scheduled. All masks of a step are therefore computed in
parallel with its forward pass, by threads that do not hold Python's lock: `GrammarMasks.start` is called before it and
`PendingMasks.wait` after it.

The automaton is llguidance's: Earley's parser over a lexer of derivatives of regular expressions, run along the trie
of the vocabulary.
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
"""Limit for one grammar. A state takes one to two kilobytes."""
LIMITS = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)

TOO_COMPLEX = "`response_format` grew too complex"
NO_ALLOWED_TOKEN = "`response_format` cannot be followed: no token of the model's vocabulary goes on from here"


class GrammarState:
    """Position of one sequence in its grammar.

    start: number of tokens before the text that the grammar describes.
    num_consumed: number of tokens that the matcher has read.
    bits: mask of the next token: [words], uint32, or None before the first one. Token i is allowed if bit i % 32 of
        word i // 32 is set.
    accepts: the text may end here. is_complete: the text can only end here.
    failure: error message if no token is allowed, else empty.
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
        """A copy for another beam."""
        copy = GrammarState(self.grammar, self.num_consumed)
        copy.matcher = self.matcher.deep_copy() if self.matcher is not None else None
        copy.failure = self.failure
        return copy


class GrammarMasks:
    """Computes grammar masks for one model, and caches its compiled grammars.

    tokens: bytes of each token, by id; empty for special tokens.
    vocab_size: number of logits.
    """

    def __init__(self, tokens: Sequence[bytes], vocab_size: int) -> None:
        spelled = [*tokens[:vocab_size], *[b""] * (vocab_size - len(tokens))]
        # An extra id after the last logit stands for the end of the text; its bit in a mask says whether it may end.
        self._end = vocab_size
        self._words = vocab_size // 32 + 1
        self._vocabulary = llguidance.LLTokenizer(
            _vocabulary([*spelled, b""], self._end), n_vocab=vocab_size + 1, eos_token=self._end
        )
        self._grammars: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, rows: Sequence[tuple[GrammarState, Sequence[int], Sequence[int], Sequence[int]]]) -> PendingMasks:
        """Start computing the masks of a step.

        rows: for each sequence its grammar state, its tokens, its end tokens and its stop tokens.
        The grammar states must not be used until `PendingMasks.wait` returns.
        """
        return PendingMasks(self._thread.submit(self._make, rows))

    def _make(self, rows: Sequence[tuple[GrammarState, Sequence[int], Sequence[int], Sequence[int]]]) -> None:
        live = [row for row in rows if self._consume(row[0], row[1])]
        bits: Bits = np.zeros((len(live), self._words), dtype=np.uint32)
        targets = [(row[0].matcher, index) for index, row in enumerate(live) if row[0].matcher is not None]
        if targets:
            _executor().unsafe_compute_mask_ptr(targets, bits.ctypes.data, bits.shape[1] * 4, bits.shape[0])
        word, bit = divmod(self._end, 32)
        ended = (bits[:, word] >> np.uint32(bit)) & np.uint32(1)
        bits[:, word] &= ~np.uint32(1 << bit)
        for (grammar_state, _, ends, other_ends), mask, may_end in zip(live, bits, ended.tolist(), strict=True):
            self._store_mask(grammar_state, mask, bool(may_end), ends, other_ends)

    def _consume(self, grammar_state: GrammarState, tokens: Sequence[int]) -> bool:
        """Feed new tokens to the matcher. Returns False if the grammar has failed, so that no mask is needed."""
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
            self._fail(grammar_state)
        return not grammar_state.failure

    def _store_mask(
        self, grammar_state: GrammarState, mask: Bits, may_end: bool, ends: Sequence[int], other_ends: Sequence[int]
    ) -> None:
        """Store a mask, with end tokens allowed exactly if the grammar accepts the text."""
        assert grammar_state.matcher is not None
        grammar_state.bits = mask
        for token in ends:
            mask[token // 32] &= ~np.uint32(1 << token % 32)
        has_text_token = bool(mask.any())
        # The end bit is also set if the matcher found no next token, so the matcher must accept too.
        grammar_state.accepts = may_end and grammar_state.matcher.is_accepting()
        grammar_state.is_complete = grammar_state.accepts and not has_text_token
        if grammar_state.accepts:
            for token in (*ends, *other_ends):
                mask[token // 32] |= np.uint32(1 << token % 32)
        elif not has_text_token:
            self._fail(grammar_state)

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        """A matcher at the start of a grammar. Compiled grammars are cached."""
        if grammar not in self._grammars:
            matcher = llguidance.LLMatcher(self._vocabulary, grammar, limits=LIMITS, log_level=0)
            self._grammars[grammar] = matcher
        self._grammars.move_to_end(grammar)
        if len(self._grammars) > CACHED_GRAMMARS:
            self._grammars.popitem(last=False)
        return self._grammars[grammar].deep_copy()

    def _fail(self, grammar_state: GrammarState) -> None:
        assert grammar_state.matcher is not None and grammar_state.bits is not None
        reason = grammar_state.matcher.get_error().partition("\n")[0]
        no_token = not reason or reason.startswith("NoExtension")
        grammar_state.failure = NO_ALLOWED_TOKEN if no_token else f"{TOO_COMPLEX}: {reason[:200]}"
        grammar_state.bits[:] = 0
        # Copies of a matcher share lexer states, which may be the limit that was exceeded.
        self._grammars.pop(grammar_state.grammar, None)


class PendingMasks:
    """Masks that are being computed."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> float:
        """Wait until the masks are computed. Returns the waiting time in seconds."""
        started = time.monotonic()
        self._future.result()
        return time.monotonic() - started


def fork(
    grammar_states: Sequence[GrammarState], parents: Sequence[int], possible: Sequence[bool]
) -> list[GrammarState]:
    """Grammar states of new beams, copied from their parents. Impossible beams get a failed state."""
    children = []
    unclaimed = set(range(len(grammar_states)))
    for parent, is_possible in zip(parents, possible, strict=True):
        own = parent in unclaimed and is_possible
        child = grammar_states[parent] if own else grammar_states[parent].fork()
        if is_possible:
            unclaimed.discard(parent)
        else:
            child.failure = NO_ALLOWED_TOKEN
        children.append(child)
    return children


def _vocabulary(tokens: list[bytes], end: int) -> llguidance.TokenizerWrapper:
    """A tokenizer wrapper with only a vocabulary. llguidance needs a tokenizer only for forced tokens."""
    return llguidance.TokenizerWrapper(
        SimpleNamespace(tokens=tokens, eos_token_id=end, bos_token_id=None, special_token_ids=[end])
    )


@cache
def _executor() -> llguidance.LLExecutor:
    """The threads that compute masks, shared by all models."""
    return llguidance.LLExecutor()
