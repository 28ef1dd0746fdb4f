"""Changes logits before tokens are chosen: biases, penalties, bans and forced tokens, with separate settings per row.

All bans of a step are collected as (row, token) pairs and written at once. Rows without such settings cost nothing.
The order is that of `transformers`, with presence and frequency penalties after its repetition penalty: bias,
repetition, presence and frequency, allowed tokens, grammars, allowed sequences, bans, forced tokens, suppressed tokens,
timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server.engine.choosing.timestamps import TimestampRow, apply_timestamp_rules
from server.engine.device.device_copies import to_device
from server.engine.sequences.grammar_state import GrammarState
from server.engine.sequences.token_tables import Ids, TokenTables
from server.engine.sequences.token_tables import is_needed as is_needed
from server.ipc.wire.params import GenerationParams


class ProcessorRow(NamedTuple):
    """Settings and text of one row of logits.

    params: settings of the request. max_new_tokens: length limit of the row.
    tokens: tokens of the decoder, prompt included. num_generated: number of generated tokens at their end.
    tables: token settings of the request as arrays.
    grammar_state: state of the grammar after the text, with a computed token mask; None without a grammar.
    node: node of the text in `tables.sequences`. -1 if no allowed sequence begins with the text, or there are none.
    """

    params: GenerationParams
    max_new_tokens: int
    tokens: Sequence[int]
    num_generated: int
    tables: TokenTables
    grammar_state: GrammarState | None = None
    node: int = -1

    @property
    def new(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.num_generated :]


IndexedRows = Sequence[tuple[int, ProcessorRow]]
"""Rows with settings that change logits, each with its index in the logits."""


def takes_log_probs(row: ProcessorRow) -> bool:
    """Whether a row must be converted to log-probabilities before it is processed.

    True if adding a constant to all logits of the row would change the result of its processors.
    """
    return row.params.repetition_penalty != 1.0 or forced_token(row) is not None


def process(logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
    """Apply all processors to logits, in place.

    logits: [rows, vocab], float32: raw logits of greedy and sampled rows. For beams, log-probabilities in the rows for
        which `takes_log_probs` is true.
    rows: settings of each row.
    """
    others: list[tuple[int, ProcessorRow]] = []
    forced: list[tuple[int, int]] = []
    bans: list[tuple[range, Sequence[int]]] = []
    for indices, row in runs_of(rows):
        if not row.tables.change_logits:
            continue
        if not row.tables.only_ban:
            others += [(index, row) for index in indices]
        token = forced_token(row)
        forced += [] if token is None else [(index, token) for index in indices]
        bans.append((indices, banned_tokens(row, token is not None)))
    _add_bias(logits, others)
    _penalise_repetition(logits, others)
    _penalise_counts(logits, others)
    _keep_allowed(logits, others)
    _keep_in_grammar(logits, others)
    _keep_in_sequences(logits, others)
    if forced:
        where, tokens = to_device(forced, logits.device).unbind(1)
        logits[where] = -torch.inf
        logits[where, tokens] = 0.0
    _ban(logits, bans)
    timed = [
        TimestampRow(index, row.params.timestamps, row.params.end_token_ids[0], row.new)
        for index, row in others
        if row.params.timestamps is not None
    ]
    if timed:
        apply_timestamp_rules(logits, timed)


def runs_of(rows: Sequence[ProcessorRow]) -> Iterator[tuple[range, ProcessorRow]]:
    """Group consecutive entries of `rows` that are the same object. Yields their range of indices, and the row."""
    start = 0
    for _, run in groupby(rows, id):
        row, *others = run
        yield range(start, start + 1 + len(others)), row
        start += 1 + len(others)


def forced_token(row: ProcessorRow) -> int | None:
    """The forced next token of a row, or None: a forced first token, or a forced end token at the length limit.

    The end is not forced if the grammar or the allowed sequences of the request do not accept the text.
    """
    may_end = row.grammar_state is None or row.grammar_state.accepts
    may_end = may_end and (row.tables.sequences is None or row.tables.sequences.may_end(row.node))
    if row.num_generated == row.max_new_tokens - 1 and may_end and row.params.forced_eos_token_id is not None:
        return row.params.forced_eos_token_id
    return row.params.forced_bos_token_id if row.num_generated == 0 else None


def _add_bias(logits: Tensor, active: IndexedRows) -> None:
    """Add `logit_bias` to logits (OpenAI API reference)."""
    biased = [(index, row) for index, row in active if row.params.logit_bias]
    if not biased:
        return
    where, tokens, biases = _places(logits, [(index, row.tables.biased, row.tables.biases) for index, row in biased])
    logits[where, tokens] += biases


def _penalise_repetition(logits: Tensor, active: IndexedRows) -> None:
    """For tokens that are already in the row's text, divide positive logits by the penalty and multiply negative ones.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    """
    penalised = [(index, row) for index, row in active if row.params.repetition_penalty != 1.0]
    if not penalised:
        return
    seen = []
    for index, row in penalised:
        ids = np.unique(np.asarray(row.tokens, dtype=np.int64))
        seen.append((index, ids, np.full(len(ids), row.params.repetition_penalty, dtype=np.float32)))
    where, tokens, penalty = _places(logits, seen)
    values = logits[where, tokens]
    logits[where, tokens] = torch.where(values < 0, values * penalty, values / penalty)


def _penalise_counts(logits: Tensor, active: IndexedRows) -> None:
    """Subtract `c * frequency_penalty + presence_penalty` from the logit of a token that was generated c > 0 times.

    Tokens of the prompt are not counted. Source: OpenAI API guide, "Frequency and presence penalties".
    """
    penalised = [
        (index, row)
        for index, row in active
        if row.num_generated and (row.params.presence_penalty or row.params.frequency_penalty)
    ]
    if not penalised:
        return
    made = []
    for index, row in penalised:
        ids, counts = np.unique(np.asarray(row.tokens[-row.num_generated :], dtype=np.int64), return_counts=True)
        penalty = counts * row.params.frequency_penalty + row.params.presence_penalty
        made.append((index, ids, penalty.astype(np.float32)))
    where, tokens, penalties = _places(logits, made)
    logits[where, tokens] -= penalties


def _keep_allowed(logits: Tensor, active: IndexedRows) -> None:
    """Ban all tokens that are not in `allowed_token_ids`, where it is set."""
    limited = [(index, row.tables.allowed) for index, row in active if row.params.allowed_token_ids]
    if not limited:
        return
    mask = torch.full((len(limited), logits.shape[1]), -torch.inf, device=logits.device)
    where, tokens, kept = _places(
        mask, [(n, allowed, np.zeros(len(allowed), dtype=np.float32)) for n, (_, allowed) in enumerate(limited)]
    )
    mask[where, tokens] = kept
    logits[to_device([index for index, _ in limited], logits.device)] += mask


def _keep_in_grammar(logits: Tensor, active: IndexedRows) -> None:
    """Ban the tokens that the grammar does not allow."""
    masks = [
        (n, row.grammar_state.bits)
        for n, row in active
        if row.grammar_state is not None and row.grammar_state.bits is not None
    ]
    if not masks:
        return
    # numpy unpacks bits 20 times faster than shifts in torch.
    stacked = ~np.stack([bits for _, bits in masks]).view(np.uint8)
    unpacked = np.unpackbits(stacked, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
    banned = to_device(unpacked, logits.device)
    if len(masks) == len(logits):
        logits.masked_fill_(banned, -torch.inf)
    else:
        where = to_device([index for index, _ in masks], logits.device)
        logits[where] = logits[where].masked_fill_(banned, -torch.inf)


def _keep_in_sequences(logits: Tensor, active: IndexedRows) -> None:
    """Ban the tokens with which no allowed sequence continues. Rows of one request are looked up together."""
    limited = [(index, row) for index, row in active if row.tables.sequences is not None]
    if not limited:
        return
    rows, tokens = [], []
    for _, run in groupby(limited, lambda entry: id(entry[1].tables)):
        own = list(run)
        sequences = own[0][1].tables.sequences
        assert sequences is not None
        places, following = sequences.next_tokens(np.array([row.node for _, row in own], dtype=np.int64))
        rows.append(np.array([index for index, _ in own], dtype=np.int64)[places])
        tokens.append(following)
    kept = np.stack([np.concatenate(rows), np.concatenate(tokens)])
    where, following = to_device(kept[:, kept[1] < logits.shape[1]], logits.device)
    values = logits[where, following]
    if len(limited) == len(logits):
        logits.fill_(-torch.inf)
    else:
        logits[to_device([index for index, _ in limited], logits.device)] = -torch.inf
    logits[where, following] = values


def _ban(logits: Tensor, bans: Sequence[tuple[range, Sequence[int]]]) -> None:
    """Set the logits of banned tokens to minus infinity. Token ids beyond the last logit are ignored.

    bans: pairs of row indices and the tokens that are banned in each of these rows.
    """
    rows = np.array([index for indices, tokens in bans for index in indices for _ in tokens], dtype=np.int64)
    if not len(rows):
        return
    tokens = np.array([token for indices, tokens in bans for _ in indices for token in tokens], dtype=np.int64)
    real = tokens < logits.shape[1]
    where = to_device(np.stack([rows[real], tokens[real]]), logits.device)
    logits[where[0], where[1]] = -torch.inf


def _places(logits: Tensor, entries: Sequence[tuple[int, Ids, NDArray[np.float32]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten (row, token, value) entries to three tensors on the device: rows, tokens and values.

    Token ids beyond the last logit are left out.

    entries: for each row, its index, token ids [n], and values [n].
    """
    rows = np.repeat([index for index, _, _ in entries], [len(tokens) for _, tokens, _ in entries])
    tokens = np.concatenate([tokens for _, tokens, _ in entries])
    values = np.concatenate([values for _, _, values in entries])
    real = tokens < logits.shape[1]
    places = to_device(np.stack([rows[real], tokens[real]]), logits.device)
    return places[0], places[1], to_device(values[real], logits.device)


def banned_tokens(row: ProcessorRow, is_forced: bool) -> Sequence[int]:
    """Tokens that are banned as the next token of a row.

    is_forced: whether the next token is forced. Then only suppressed tokens are banned.
    """
    params, tables = row.params, row.tables
    # Suppressed tokens stay banned even if one of them is forced, as in transformers.
    banned = params.suppress_token_ids if is_forced else tables.banned
    if row.num_generated == 0 and params.begin_suppress_token_ids:
        banned = [*banned, *params.begin_suppress_token_ids]
    # If the grammar allows only the end, the text ends before `min_new_tokens`.
    is_complete = row.grammar_state is not None and row.grammar_state.is_complete
    if not is_forced and row.num_generated < params.min_new_tokens and not is_complete:
        banned = [*banned, *params.end_token_ids, *params.stop_token_ids]
    return banned if is_forced or tables.only_ban else [*banned, *_banned_by_text(row)]


def _banned_by_text(row: ProcessorRow) -> list[int]:
    """Tokens that would repeat an n-gram, or complete a banned phrase, after the tokens of a row."""
    params = row.params
    banned: list[int] = []
    if params.no_repeat_ngram_size:
        banned += _repeating(row.tokens, row.tokens, params.no_repeat_ngram_size)
    if params.encoder_no_repeat_ngram_size:
        banned += _repeating(row.tables.source, row.tokens, params.encoder_no_repeat_ngram_size)
    for *start, last in row.tables.bad_phrases:
        if list(row.tokens[max(len(row.tokens) - len(start), 0) :]) == start:
            banned.append(last)
    return banned


def _repeating(text: Sequence[int] | Ids, tokens: Sequence[int], size: int) -> list[int]:
    """Tokens that, after `tokens`, complete an n-gram of `text`. size: length of the n-grams.

    Source: Paulus et al. 2017, arXiv:1705.04304, section 2.5.
    """
    if len(text) < size or len(tokens) < size - 1:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(text, dtype=np.int64), size)
    last = np.asarray(tokens[len(tokens) - size + 1 :], dtype=np.int64)
    matches = (windows[:, :-1] == last).all(axis=1)
    repeating: list[int] = np.unique(windows[matches, -1]).tolist()
    return repeating
