"""From a step's logits to its requests' next tokens. Knows requests and logits; not schedules, blocks or messages' way.

Rows of all requests are processed and chosen from together; what follows is a few numbers a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from server.engine.beam_search import Describe
from server.engine.constraint import Constraint
from server.engine.logits_processors import ProcessorRow, process
from server.engine.sampler import SamplerRow, sample
from server.engine.sequence import Request
from server.ipc.messages import TokenLogprob


@dataclass(slots=True)
class Choice:
    """What became of one request: one of these.

    tokens and logprobs (empty if not asked for): what follows in a single row, more than one where its draft was right.
    parents: the old row of each beam that goes on. failed: its logits are not finite; spoiled: that may be
    the fault of its draft. exhausted: nothing is left that may follow.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    parents: list[int] | None = None
    failed: bool = False
    spoiled: bool = False
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One token to choose: what stands before it, and how many tokens of that are new."""

    request: Request
    tokens: Sequence[int]
    num_generated: int


def turns(request: Request) -> list[Turn]:
    """The next token of a single row, and the one after each token of its draft, as if that were right so far."""
    (row,) = request.rows
    after = [row.tokens, *([*row.tokens, *row.draft[:count]] for count in range(1, len(row.draft) + 1))]
    return [Turn(request, tokens, request.num_generated + count) for count, tokens in enumerate(after)]


@torch.inference_mode()
def select(logits: Tensor, requests: Sequence[Request]) -> list[Choice]:
    """Choose for each request; beams advance. logits: [rows, vocab], float32, overwritten; rows of each in order, and
    of a row with a draft as many as it has turns."""
    # A sum is finite only if all its terms are: one pass, no mask.
    finite = torch.isfinite(logits.sum(dim=-1)).tolist()
    choices, singles, groups = [], [], []
    start = 0
    for request in requests:
        rows = range(start, start + len(request.rows) + len(request.rows[0].draft))
        start = rows.stop
        if not all(finite[row] for row in rows):
            # A guess whose value is not finite spoils what stands before it as well: 0 * NaN is NaN.
            spoiled = bool(request.rows[0].draft)
            choices.append(Choice(request, failed=not spoiled, spoiled=spoiled))
        elif request.beams is None:
            singles.append((request, rows))
        else:
            groups.append((request, rows))
    if singles:
        single_rows = [row for _, rows in singles for row in rows]
        choices += _select_tokens(_rows(logits, single_rows), [request for request, _ in singles])
    if groups:
        beam_rows = [row for _, rows in groups for row in rows]
        choices += _select_beams(_rows(logits, beam_rows), [request for request, _ in groups])
    return choices


def _select_tokens(logits: Tensor, requests: Sequence[Request]) -> list[Choice]:
    places = list(chain.from_iterable(turns(request) for request in requests))
    reported = [index for index, turn in enumerate(places) if turn.request.params.logprobs]
    raw = _rows(logits, reported).log_softmax(dim=-1) if reported else None
    tokens, possible = choose(logits, places)
    chosen, alive = torch.stack([tokens, possible]).tolist()
    described: dict[int, TokenLogprob] = {}
    if raw is not None:
        tops = [places[index].request.params.top_logprobs for index in reported]
        described = dict(zip(reported, describe(raw, tokens[reported], tops), strict=True))
    choices = []
    start = 0
    for request in requests:
        draft = request.rows[0].draft
        choice = Choice(request, exhausted=not alive[start])
        # The draft is right as long as it guessed what is chosen anyway.
        for index, guess in enumerate([*draft, None], start):
            if not alive[index]:
                break
            choice.tokens.append(chosen[index])
            if index in described:
                choice.logprobs.append(described[index])
            if chosen[index] != guess:
                break
        start += 1 + len(draft)
        choices.append(choice)
    return choices


def choose(logits: Tensor, places: Sequence[Turn]) -> tuple[Tensor, Tensor]:
    """The token of each turn, [turns], int64, and whether it may follow at all. logits: [turns, vocab], overwritten."""
    process(logits, [_processor_row(turn) for turn in places])
    tokens = sample(logits, [_sampler_row(turn) for turn in places])
    return tokens, logits.gather(1, tokens[:, None])[:, 0] > -torch.inf


def _select_beams(logits: Tensor, requests: Sequence[Request]) -> list[Choice]:
    raw = logits.log_softmax(dim=-1)
    scores = raw.clone()
    process(scores, [row for request in requests for row in _processor_rows(request)])
    owners = [request for request in requests for _ in request.rows]
    renormalized = [index for index, request in enumerate(owners) if request.params.renormalize_logits]
    if renormalized:
        again = scores[renormalized].log_softmax(dim=-1)
        # A row that nothing may follow has no distribution.
        scores[renormalized] = again.masked_fill_(again.isnan(), -torch.inf)
    vocab = scores.shape[1]
    widths = [min(request.beams.num_candidates, vocab) for request in requests if request.beams is not None]
    values, tokens = (tensor.cpu().numpy() for tensor in scores.topk(max(widths), dim=-1))
    choices = []
    start = 0
    for request, width in zip(requests, widths, strict=True):
        assert request.beams is not None
        rows = slice(start, start + len(request.rows))
        start = rows.stop
        if values[rows, 0].max() == -np.inf:
            choices.append(Choice(request, exhausted=True))
            continue
        reporter = _reporter(raw[rows], request.params.top_logprobs) if request.params.logprobs else None
        parents = request.beams.advance(values[rows, :width], tokens[rows, :width], reporter)
        choices.append(Choice(request, parents=parents))
    return choices


def describe(raw: Tensor, tokens: Tensor, tops: Sequence[int]) -> list[TokenLogprob]:
    """What to report of each row's token. raw: [rows, vocab], log-probabilities; tokens: [rows]; tops: alternatives."""
    own = raw.gather(1, tokens[:, None])[:, 0].tolist()
    count = min(max(tops), raw.shape[1])
    best = raw.topk(count, dim=-1) if count else None
    values = best.values.tolist() if best is not None else [[]] * len(own)
    ids = best.indices.tolist() if best is not None else [[]] * len(own)
    return [
        TokenLogprob(token, logprob, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, logprob, row_ids, row_values, top in zip(tokens.tolist(), own, ids, values, tops, strict=True)
    ]


def _reporter(raw: Tensor, top: int) -> Describe:
    def report(row: int, token: int) -> TokenLogprob:
        return describe(raw[row : row + 1], torch.tensor([token], device=raw.device), [top])[0]

    return report


def _processor_row(turn: Turn) -> ProcessorRow:
    request = turn.request
    # A request with a grammar takes no drafts: its mask is that of the next token alone.
    constraint = request.constraints[0] if request.constraints else None
    return ProcessorRow(request.params, turn.tokens, turn.num_generated, request.tables, constraint)


def _processor_rows(request: Request) -> list[ProcessorRow]:
    constraints: Sequence[Constraint | None] = request.constraints or [None] * len(request.rows)
    return [
        ProcessorRow(request.params, row.tokens, request.num_generated, request.tables, constraint)
        for row, constraint in zip(request.rows, constraints, strict=True)
    ]


def _sampler_row(turn: Turn) -> SamplerRow:
    params = turn.request.params
    if not params.do_sample:
        return SamplerRow()
    return SamplerRow(
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.typical_p,
        seed=params.seed,
        position=turn.num_generated,
    )


def _rows(logits: Tensor, indices: Sequence[int]) -> Tensor:
    """Some rows: the tensor itself when that is all of them in order, else a copy."""
    if list(indices) == list(range(logits.shape[0])):
        return logits
    return logits[torch.tensor(indices, device=logits.device)]
