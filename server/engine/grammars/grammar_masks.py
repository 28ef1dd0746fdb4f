"""Grammars of structured answers: the position of each sequence in its grammar, and masks of allowed tokens.

A mask depends only on tokens that are known when a step is scheduled. The masks of a step are therefore computed in
parallel with its forward pass, by threads that do not hold Python's lock. `GrammarWaits` delays a group whose masks are
not done when the forward pass ends.

The library llguidance computes the masks. It runs an Earley parser, over a lexer that uses derivatives of regular
expressions, along the trie of the vocabulary.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from types import SimpleNamespace

import llguidance
import numpy as np

from server.engine.grammars.marker_tokens import MarkerTokens
from server.engine.grammars.mask_threads import MaskRow, MaskTask, MaskThreads
from server.engine.sequences.grammar_state import Bits, CompiledGrammar, GrammarState

CACHED_GRAMMARS = 16
MAX_LEXER_STATES = 1 << 15
"""Most lexer states of one grammar. A state takes one to two kilobytes."""
LIMITS = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)

TOO_COMPLEX = "`response_format` grew too complex"
_REFUSED = "doesn't satisfy the grammar"
"""Part of the library's error about a token that the grammar does not allow."""
NO_ALLOWED_TOKEN = "`response_format` cannot be followed: no token of the model's vocabulary goes on from here"


class GrammarMasks:
    """Computes grammar masks for one model, and caches its compiled grammars.

    tokens: bytes of each token, by id; empty for special tokens.
    vocab_size: number of logits.
    """

    def __init__(self, tokens: Sequence[bytes], vocab_size: int) -> None:
        self._tokens = [*tokens[:vocab_size], *[b""] * (vocab_size - len(tokens))]
        # An extra id after the last logit stands for the end of the text; its bit in a mask says whether it may end.
        self._end = vocab_size
        # 256 more ids stand for single bytes. They spell the text that follows a marker within the same token.
        self._first_byte = vocab_size + 1
        spelled = [*self._tokens, b"", *(bytes([byte]) for byte in range(256))]
        self._words = vocab_size // 32 + 1
        self._all_words = (len(spelled) + 31) // 32
        self._vocabulary = llguidance.LLTokenizer(
            _vocabulary(spelled, self._end), n_vocab=len(spelled), eos_token=self._end
        )
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._marker_tokens = MarkerTokens(self._tokens)
        self.threads = MaskThreads(self._make)

    def prepare(self, grammar_state: GrammarState) -> None:
        """Set the grammars of all sections of a grammar state. A grammar that is not cached is compiled in a thread."""
        for text in {section.grammar for section in grammar_state.sections if section.grammar}:
            grammar_state.grammars[text] = self._compiled(text)

    def start(self, tasks: Sequence[MaskTask]) -> None:
        """Compute masks in threads. tasks: one for each sequence group. Their grammars must be compiled."""
        self.threads.start(tasks)

    def _compiled(self, text: str) -> CompiledGrammar:
        found = self._grammars.get(text)
        if found is None or (found.matcher is not None and found.has_failed):
            found = self._grammars[text] = CompiledGrammar(text)
            self.threads.start_slowly(partial(self._compile, found))
        self._grammars.move_to_end(text)
        if len(self._grammars) > CACHED_GRAMMARS:
            self._grammars.popitem(last=False)
        return found

    def _compile(self, grammar: CompiledGrammar) -> None:
        grammar.started = time.monotonic()
        grammar.matcher = llguidance.LLMatcher(self._vocabulary, grammar.text, limits=LIMITS, log_level=0)

    def _make(self, rows: Sequence[MaskRow]) -> None:
        """Compute the mask of the next token for each sequence of one group."""
        for grammar_state, tokens, ends, other_ends in rows:
            if not self._consume(grammar_state, tokens, ends, other_ends):
                continue
            is_stored = self._store_mask(grammar_state, ends, other_ends)
            if not is_stored and self._fall_back(grammar_state):
                is_stored = self._store_mask(grammar_state, ends, other_ends)
            if not is_stored:
                self._fail(grammar_state)

    def _consume(
        self, grammar_state: GrammarState, tokens: Sequence[int], ends: Sequence[int], other_ends: Sequence[int]
    ) -> bool:
        """Read the new tokens of a sequence.

        tokens: all tokens of the sequence. ends, other_ends: end tokens and stop tokens of the request.
        Returns whether the current section has a grammar whose mask must be computed.
        """
        grammar_state.accepts = grammar_state.is_complete = False
        grammar_state.bits = np.zeros(self._words, dtype=np.uint32)
        if grammar_state.failure:
            return False
        grammar_state.tokens = tokens
        for token in tokens[grammar_state.num_consumed :]:
            self._advance(grammar_state, token)
            grammar_state.num_consumed += 1
        section = grammar_state.section
        if not section.grammar and not grammar_state.failure:
            grammar_state.accepts = section.may_end
            grammar_state.bits = self._free_mask(grammar_state, () if section.may_end else (*ends, *other_ends))
            return False
        if grammar_state.matcher is None and not grammar_state.failure:
            grammar_state.matcher = _matcher(grammar_state)
            if grammar_state.matcher.is_error() and not self._fall_back(grammar_state):
                self._fail(grammar_state)
        return not grammar_state.failure

    def _advance(self, grammar_state: GrammarState, token: int) -> None:
        """Read one token: advance the grammar of the section, and enter another section after a marker."""
        if grammar_state.failure:
            return
        if grammar_state.section.grammar:
            self._read(grammar_state, [token])
        data = self._tokens[token] if token < len(self._tokens) else b""
        if not data:
            marker = grammar_state.scanner.of_token(token)
            if marker is not None:
                grammar_state.enter(marker.section, grammar_state.num_consumed + 1)
            return
        while data and grammar_state.section.markers:
            found = grammar_state.scanner.push(data.decode("latin-1"))
            if found is None:
                return
            marker, end = found
            grammar_state.enter(marker.section, grammar_state.num_consumed + 1)
            data = data[end:]
            if data and grammar_state.section.grammar:
                rest = [self._first_byte + byte for byte in data]
                self._read(grammar_state, rest)
                grammar_state.section_bytes = rest

    def _read(self, grammar_state: GrammarState, tokens: list[int]) -> None:
        """Advance the grammar of the current section by some tokens.

        If the grammar refuses a token, the section's fallback grammar is used. If there is no fallback, the grammar
        state fails.
        """
        if grammar_state.matcher is None:
            grammar_state.matcher = _matcher(grammar_state)
        if not grammar_state.matcher.consume_tokens(tokens) and not self._fall_back(grammar_state, tokens):
            self._fail(grammar_state)

    def _fall_back(self, grammar_state: GrammarState, tokens: Sequence[int] = ()) -> bool:
        """Replace the grammar of the section by the section's fallback grammar, because the grammar grew too complex.

        tokens: tokens to read in addition to those that the section has already read.
        Returns False if the section has no fallback that is not yet in use, if its grammar has refused a token, or if
        the fallback does not allow the text of the section.
        """
        section, failed = grammar_state.section, grammar_state.matcher
        if not section.fallback or grammar_state.uses_fallback or failed is None or _REFUSED in failed.get_error():
            return False
        grammar_state.grammars[section.grammar].has_failed = True
        read = grammar_state.tokens[grammar_state.section_start : grammar_state.num_consumed]
        matcher = llguidance.LLMatcher(self._vocabulary, section.fallback, limits=LIMITS, log_level=0)
        matcher.consume_tokens([*grammar_state.section_bytes, *read, *tokens])
        if matcher.is_error():
            return False
        grammar_state.matcher, grammar_state.uses_fallback = matcher, True
        return True

    def _free_mask(self, grammar_state: GrammarState, ends: Sequence[int]) -> Bits | None:
        """The mask in a section without a grammar. None if it allows every token."""
        scanner = grammar_state.scanner
        key = grammar_state.index, scanner.held, bool(scanner.start_markers)
        masks = grammar_state.free_masks
        if key not in masks:
            banned = {*ends, *self._misleading(grammar_state)}
            masks[key] = self._all_but(banned) if banned else None
        return masks[key]

    def _misleading(self, grammar_state: GrammarState) -> Iterable[int]:
        """Tokens that complete a marker and continue with text that the grammar of the next section does not allow."""
        texts = [marker.text for marker in grammar_state.section.markers if marker.text and not marker.at_start]
        for token in self._marker_tokens.candidates(grammar_state.scanner, texts):
            tried = grammar_state.fork()
            self._advance(tried, token)
            if tried.failure:
                yield token

    def _all_but(self, banned: Iterable[int]) -> Bits:
        mask: Bits = np.full(self._words, 0xFFFFFFFF, dtype=np.uint32)
        for token in banned:
            mask[token // 32] &= ~np.uint32(1 << token % 32)
        return mask

    def _store_mask(self, grammar_state: GrammarState, ends: Sequence[int], other_ends: Sequence[int]) -> bool:
        """Store the mask that the matcher computes for the next token. Returns whether it allows any token.

        ends: end tokens, allowed only if the grammar accepts the text.
        other_ends: stop tokens, allowed if the grammar accepts the text, or if it allows them as part of the text.
        """
        assert grammar_state.matcher is not None
        mask: Bits = np.zeros(self._all_words, dtype=np.uint32)
        grammar_state.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        word, bit = divmod(self._end, 32)
        may_end = bool(mask[word] >> np.uint32(bit) & np.uint32(1))
        mask = mask[: self._words]
        mask[word] &= np.uint32((1 << bit) - 1)
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
        return grammar_state.accepts or has_text_token

    def _fail(self, grammar_state: GrammarState) -> None:
        assert grammar_state.matcher is not None
        reason = grammar_state.matcher.get_error().partition("\n")[0]
        no_token = not reason or reason.startswith("NoExtension")
        grammar_state.failure = NO_ALLOWED_TOKEN if no_token else f"{TOO_COMPLEX}: {reason[:200]}"
        grammar_state.bits = np.zeros(self._words, dtype=np.uint32)
        # Copies of a matcher share lexer states, and the limit that was exceeded may be that of these states.
        grammar_state.grammars[grammar_state.section.grammar].has_failed = True


def _matcher(grammar_state: GrammarState) -> llguidance.LLMatcher:
    """A matcher at the start of the grammar of the current section."""
    matcher = grammar_state.grammars[grammar_state.section.grammar].matcher
    assert matcher is not None, "masks are computed after the grammars were compiled"
    return matcher.deep_copy()


def _vocabulary(tokens: list[bytes], end: int) -> llguidance.TokenizerWrapper:
    """A tokenizer wrapper with only a vocabulary. llguidance needs a tokenizer only for forced tokens."""
    return llguidance.TokenizerWrapper(
        SimpleNamespace(tokens=tokens, eos_token_id=end, bos_token_id=None, special_token_ids=[end])
    )
