"""Sequence groups: the unit that the engine admits, schedules, preempts and finishes.

A group is one sequence, or all beams of one beam search. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import numpy as np

from server.engine.beams.allowed_sequences import TrieArrays
from server.engine.beams.beam_groups import make_search
from server.engine.beams.beam_lanes import BeamLanes
from server.engine.sequences.ahead_fields import may_run_ahead
from server.engine.sequences.grammar_state import GrammarState
from server.engine.sequences.prefix_keys import root_key
from server.engine.sequences.sequence_state import SequenceState
from server.engine.sequences.token_tables import Ids, TokenTables
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.logprobs import Logprobs, TokenLogprob
from server.ipc.wire.params import GenerationParams


class SequenceStatus(Enum):
    """State of a sequence group. Preemption changes RUNNING to WAITING; FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class CachedSequence:
    """One sequence of tokens and its blocks in the KV cache.

    tokens: prompt (or decoder start tokens) and generated tokens.
    num_computed_tokens: number of leading tokens whose keys and values are in the cache.
    block_table: blocks of the `self` pool, in order; enough for `num_computed_tokens`.
    block_keys: prefix cache keys of leading full blocks, as far as they were needed.
    published_blocks: number of leading blocks of the table that other groups can find by their keys.
    draft: draft tokens after the last token. They are computed and verified in the next step.
    verified_tokens: number of leading computed tokens for which later logits were finite.
    state: slots of the state memory while the sequence runs; None for a model without mixers.
    repeated_tokens: number of accepted draft tokens after the computed ones, which the next step computes again because
        the state does not contain them.
    """

    tokens: list[int]
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    published_blocks: int = 0
    draft: list[int] = field(default_factory=list)
    verified_tokens: int = 0
    state: SequenceState | None = None
    repeated_tokens: int = 0

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.tokens) - self.num_computed_tokens


SHORT_NEW_TOKENS = 32
"""A message that asks for at most this many tokens, over all rows and beams, is short: it runs only briefly."""


class SequenceGroup:
    """One row of a `Generate` message, from admission to its end.

    key, call_id: API key and call of the request. Keys, and the calls of a key, take turns to start groups.
    is_short: whether the message asks for at most SHORT_NEW_TOKENS tokens, over all its rows and beams.
    sequences: one sequence before the first new token, afterwards one for each beam. All have equally many tokens.
    source_token_ids: source text of an encoder-decoder, else empty.
    source_frames: audio source in place of text, one of `Generate.frames`.
    num_source_tokens: length of the source in the cross-attention cache.
    recorded_tokens: leading source positions that belong to the recording; the other positions are padding.
    has_attention: whether the result has the attention weights of its tokens over the source.
    source_encoded: whether the cross-attention blocks are filled.
    adapter: name of the adapter; empty for a group without adapter.
    tables: token settings of the request as arrays.
    grammar_states: position of each sequence in the grammar; empty without a grammar.
    nodes: [sequences], int64: node of each text in `tables.sequences`; None without such sequences.
    prompt_logprobs: log-probabilities of the prompt from its second token on, as far as computed.
    probe_logprob: log-probability of the token of `GenerationParams.probe`; None until it is computed.
    root_key: start of the hash chain of the block keys. Texts with different root keys share no blocks.
    cached_tokens: prompt tokens found in the prefix cache at the first admission; None before it or without a cache.
    accepts_drafts: whether speculative decoding is possible.
    runs_ahead: whether steps that are launched ahead support all fields that the request sets
        (`server.engine.sequences.ahead_fields`).
    lanes: while a device moves the beams, where the tokens of their texts are; else None. The sequences then have the
        tokens of the lanes, not those of the beams.
    preempted_tokens: computed tokens that were dropped by a preemption; 0 after the next admission.
    shared_tokens: after a preemption, number of leading tokens that the beams share again. Only the first beam computes
        them.
    copies: block copies to do before the next step: (source block, destination block, first slot, end slot).
    writable_tokens: steps can write to all uncomputed positions below this one without copying blocks, because no
        block with such a position is shared.
    rope_length: minimum text length for rotary embeddings that depend on the length: the length of the prompt, or of
        the text at the last restart.
    arrival, first_scheduled, first_token: seconds of time.monotonic(), or None if not reached yet.
    start_deadline: seconds of time.monotonic() after which the HTTP process ends the request if it has not started; or
        None.
    report_due: seconds of time.monotonic() from which the next `StepOutput.computing` reports the group.
    """

    def __init__(
        self,
        message: Generate,
        row: GenerateRow,
        is_encoder_decoder: bool,
        arrival: float,
        num_source_tokens: int | None = None,
        adapter: str = "",
        key_variant: Callable[[int], str] = lambda length: "",
        stored_sequences: TrieArrays | None = None,
    ) -> None:
        """Make a waiting group from one row of a message.

        arrival: seconds of time.monotonic().
        num_source_tokens: length of an audio source; None for the length of the source text.
        key_variant: returns a label for the length of a prompt. Prompts share cached keys only if their labels are
            equal.
        stored_sequences: the stored set that the settings of the row name; None if they name no set.
        """
        params = message.params_of(row)
        self.sequence_id = row.sequence_id
        self.key = message.key
        self.call_id = message.call_id or row.sequence_id
        self.params: GenerationParams = params
        self.max_new_tokens = row.max_new_tokens
        self.is_short = len(message.rows) * row.max_new_tokens * params.num_beams <= SHORT_NEW_TOKENS
        self.seed = row.seed
        self.reports_prompt_logprobs = row.prompt_logprobs
        self.adapter = adapter
        self.status = SequenceStatus.WAITING
        text = [] if message.frames else message.prompts[row.prompt]
        prompt = row.decoder_token_ids if is_encoder_decoder else text
        self.source_token_ids: list[int] = text if is_encoder_decoder else []
        self.source_frames = message.frames[row.prompt] if message.frames else b""
        self.num_source_tokens = len(self.source_token_ids) if num_source_tokens is None else num_source_tokens
        self.recorded_tokens = row.recorded_tokens
        self.has_attention = params.attention and row.attention
        self.source_encoded = False
        self.cross_block_table: list[int] = []
        self.num_prompt_tokens = len(prompt)
        self.rope_length = len(prompt)
        self.sequences = [CachedSequence(list(prompt))]
        self.preempted_tokens = 0
        self.shared_tokens = 0
        self.copies: list[tuple[int, int, int, int]] = []
        self.writable_tokens = 0
        # Keys and values of the same text differ between adapters, and in some models between lengths of the text.
        self._salt, self._key_variant = f"{adapter} {message.cache_salt}", key_variant
        self.root_key = self._root_key()
        self.cached_tokens: int | None = None
        self.accepts_drafts = params.num_beams == 1 and not params.sections and not params.has_sequences
        self.runs_ahead = may_run_ahead(params, row)
        self.lanes: BeamLanes | None = None
        self.tables = TokenTables.of(params, text, stored_sequences)
        self.end_ids = frozenset((*params.end_token_ids, *params.stop_token_ids))
        self.beams = make_search(params, row.max_new_tokens, self.end_ids)
        self.grammar_states: list[GrammarState] = []
        if params.sections:
            forced = params.forced_bos_token_id is not None
            self.grammar_states = [GrammarState(params.sections, self.num_prompt_tokens + forced)]
        self.nodes: Ids | None = None if self.tables.sequences is None else np.zeros(1, dtype=np.int64)
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs = Logprobs()
        self.prompt_reported = False
        self.probe_logprob: float | None = None
        self.num_reported_tokens = 0
        self.arrival = arrival
        self.first_scheduled: float | None = None
        self.first_token: float | None = None
        self.start_deadline = message.start_deadline
        self.report_due = 0.0

    @property
    def max_rows(self) -> int:
        """Rows of a step that the group takes once its beams differ."""
        return self.params.num_beams

    @property
    def num_tokens(self) -> int:
        """Number of tokens of each sequence: prompt and generated tokens."""
        return len(self.sequences[0].tokens)

    @property
    def num_generated(self) -> int:
        return len(self.sequences[0].tokens) - self.num_prompt_tokens

    @property
    def is_complete(self) -> bool:
        """Whether the grammar, or the allowed sequences, allow the text to end here.

        False for a group with several sequences, and for a request without a grammar and allowed sequences.
        """
        if self.nodes is not None and self.tables.sequences is not None:
            return len(self.nodes) == 1 and self.tables.sequences.may_end(int(self.nodes[0]))
        return len(self.grammar_states) == 1 and self.grammar_states[0].accepts

    @property
    def has_prompt_to_score(self) -> bool:
        """Whether log-probabilities of the prompt, or of the probed token, still have to be computed."""
        unprobed = self.params.probe is not None and self.probe_logprob is None
        return unprobed or (self.reports_prompt_logprobs and not self.prompt_reported)

    @property
    def is_ready_to_decode(self) -> bool:
        """Whether the cache has the keys and values of all tokens of each sequence except its last token.

        Accepted draft tokens that a model with mixers computes again do not count.
        """
        for row in self.sequences:  # noqa: SIM110 - `all` with a generator takes three times as long
            if len(row.tokens) - row.num_computed_tokens != 1 + row.repeated_tokens:
                return False
        return True

    @property
    def is_computed(self) -> bool:
        """Whether the keys and values of all tokens of the group are in the cache, so that it needs a next token."""
        return all(len(row.tokens) == row.num_computed_tokens for row in self.sequences)

    @property
    def is_verified(self) -> bool:
        """Whether the logits that were computed from all keys and values of the group were finite."""
        return all(row.verified_tokens == row.num_computed_tokens for row in self.sequences)

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Update `nodes` after a token was added to each text. Does nothing without allowed sequences.

        parents: for each text, the index of the text that it continues.
        tokens: the new token of each text.
        """
        sequences, is_forced = self.tables.sequences, self.params.forced_bos_token_id is not None
        if sequences is None or self.nodes is None:
            return
        self.nodes = self.nodes[np.asarray(parents, dtype=np.int64)]
        if self.num_generated > 1 or not is_forced:
            self.nodes = sequences.children(self.nodes, np.asarray(tokens, dtype=np.int64))

    def outgrow(self) -> None:
        """Let rotary embeddings depend on the present length of the text.

        All keys and values must then be computed again.
        """
        self.rope_length = self.num_tokens
        self.root_key = self._root_key()
        for row in self.sequences:
            row.block_keys = []

    def _root_key(self) -> bytes:
        return root_key(f"{self._salt} {self._key_variant(self.rope_length)}")

    def uncomputed_tokens(self) -> list[tuple[CachedSequence, int]]:
        """Sequences to prefill, each with the number of its tokens to compute.

        A single sequence is computed including its last token, so that its prefill gives the next token. Beams are
        computed up to the token before the last one, and later decode together. Beams that share tokens with the first
        beam are computed after it.
        """
        if len(self.sequences) == 1:
            return [(self.sequences[0], self.sequences[0].num_uncomputed_tokens)]
        first = self.sequences[0]
        ready = self.sequences if first.num_computed_tokens >= self.shared_tokens else [first]
        return [
            (sequence, sequence.num_uncomputed_tokens - 1) for sequence in ready if sequence.num_uncomputed_tokens > 1
        ]

    def common_tokens(self) -> int:
        """Number of leading tokens that all sequences share, without the last token."""
        texts = [row.tokens for row in self.sequences]
        limit = self.num_tokens - 1
        for earlier, later in pairwise(texts):
            limit = common_length(earlier, later, limit)
        return limit


def common_length(one: list[int], other: list[int], limit: int) -> int:
    """Number of leading tokens that two texts share, at most `limit`. Both have at least `limit` tokens."""
    # Beams usually differ near the end only, and comparing slices is faster than comparing tokens in a loop.
    same, step = max(limit - 1, 0), 1
    while one[:same] != other[:same]:
        same, step = max(same - step, 0), 2 * step
    while same < limit and one[same] == other[same]:
        same += 1
    return same
