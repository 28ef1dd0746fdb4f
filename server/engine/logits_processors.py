"""Changes to logits before a token is chosen: penalties, bans and forced tokens, each row with settings of its own.

Everything that a step bans, in all rows, is collected as (row, token) pairs and written at once; rows that ask for
nothing cost nothing. Knows token ids and settings; not where logits come from or how a token is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from server.ipc.messages import GenerationParams


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """One row: its settings, the decoder's tokens so far (prompt and new ones), and how many of them are new."""

    params: GenerationParams
    tokens: Sequence[int]
    num_generated: int


def is_needed(params: GenerationParams) -> bool:
    """Whether these settings can ever change logits."""
    return bool(
        params.repetition_penalty != 1.0
        or params.no_repeat_ngram_size
        or params.bad_words_ids
        or params.min_new_tokens
        or params.suppress_token_ids
        or params.forced_bos_token_id is not None
        or params.forced_eos_token_id is not None
    )


def process(logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
    """Change logits in place: penalise, ban, then force.

    logits: [rows, vocab], float32. Greedy and sampled rows bring raw logits, beams bring log-probabilities.
    """
    busy = [(index, row) for index, row in enumerate(rows) if is_needed(row.params)]
    if not busy:
        return
    vocab = logits.shape[1]
    _penalise_repetition(logits, busy)
    banned_rows: list[int] = []
    banned_tokens: list[int] = []
    forced: list[tuple[int, int]] = []
    for index, row in busy:
        token = forced_token(row)
        if token is not None:
            forced.append((index, token))
        banned = [] if token is not None else _banned(row)
        # What may never be made stays out even where a token is forced, as the reference has it.
        banned += row.params.suppress_token_ids
        banned_tokens += [token for token in banned if token < vocab]
        banned_rows += [index] * (len(banned_tokens) - len(banned_rows))
    if forced:
        where, tokens = torch.tensor(forced, device=logits.device).unbind(1)
        logits[where] = -torch.inf
        logits[where, tokens] = 0.0
    if banned_rows:
        where, tokens = torch.tensor([banned_rows, banned_tokens], device=logits.device)
        logits[where, tokens] = -torch.inf


def forced_token(row: ProcessorRow) -> int | None:
    """The token that must come next, if the settings leave no choice."""
    if row.num_generated == row.params.max_new_tokens - 1 and row.params.forced_eos_token_id is not None:
        return row.params.forced_eos_token_id
    return row.params.forced_bos_token_id if row.num_generated == 0 else None


def _penalise_repetition(logits: Tensor, busy: Sequence[tuple[int, ProcessorRow]]) -> None:
    """Keskar et al. 2019, arXiv:1909.05858, section 4.1: divide what is positive, multiply what is negative."""
    penalised = [(index, row) for index, row in busy if row.params.repetition_penalty != 1.0]
    if not penalised:
        return
    seen = [np.unique(np.asarray(row.tokens, dtype=np.int64)) for _, row in penalised]
    seen = [tokens[tokens < logits.shape[1]] for tokens in seen]
    counts = [len(tokens) for tokens in seen]
    where = torch.from_numpy(np.repeat([index for index, _ in penalised], counts)).to(logits.device)
    tokens = torch.from_numpy(np.concatenate(seen)).to(logits.device)
    factors = np.repeat([row.params.repetition_penalty for _, row in penalised], counts).astype(np.float32)
    penalty = torch.from_numpy(factors).to(logits.device)
    values = logits[where, tokens]
    logits[where, tokens] = torch.where(values < 0, values * penalty, values / penalty)


def _banned(row: ProcessorRow) -> list[int]:
    """Tokens that must not come next."""
    params = row.params
    banned: list[int] = []
    if params.no_repeat_ngram_size:
        banned += _repeating(row.tokens, params.no_repeat_ngram_size)
    for word in params.bad_words_ids:
        *start, last = word
        tail = list(row.tokens[max(len(row.tokens) - len(start), 0) :])
        if tail == start and (start or last not in params.end_token_ids):
            banned.append(last)
    if row.num_generated < params.min_new_tokens:
        banned += params.end_token_ids
        banned += params.stop_token_ids
    return banned


def _repeating(tokens: Sequence[int], size: int) -> list[int]:
    """Tokens that would complete an n-gram the row already has (Paulus et al. 2017, arXiv:1705.04304, section 2.5)."""
    if len(tokens) < size:
        return []
    text = np.asarray(tokens, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(text, size)
    matches = (windows[:, :-1] == text[len(text) - size + 1 :]).all(axis=1)
    repeating: list[int] = np.unique(windows[matches, -1]).tolist()
    return repeating
