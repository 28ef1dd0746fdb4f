"""From a step's logits to its requests' next tokens. Knows requests and logits; not schedules, blocks or messages' way.

Rows of all requests are processed and chosen from together; what follows is a few numbers a row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.backends import interface as ops
from models.backends.interface import Survey
from models.scoring import Scoring
from server.engine.beam_search import Describe, advance_together
from server.engine.constraint import Constraint
from server.engine.logits import Logits
from server.engine.logits_processors import ProcessorRow, is_needed, process, takes_log_probs
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


class Turn(NamedTuple):
    """One token to choose: what stands before it, and how many tokens of that are new."""

    request: Request
    tokens: Sequence[int]
    num_generated: int


def turns(request: Request) -> list[Turn]:
    """The next token of a single row, and the one after each token of its draft, as if that were right so far."""
    (row,) = request.rows
    made = request.num_generated
    after = [([*row.tokens, *row.draft[:count]], made + count) for count in range(1, len(row.draft) + 1)]
    return [Turn(request, row.tokens, made), *(Turn(request, *turn) for turn in after)]


def scoring(logits: Logits, requests: Sequence[Request]) -> Scoring | None:
    """What the layers can do for `select` while they are at it; None where logits are to be made in parts."""
    return logits.scoring(sum(map(_num_rows, requests)), *_wanted(requests))


def select(hidden: Tensor, logits: Logits, requests: Sequence[Request], scored: Scoring | None = None) -> list[Choice]:
    """Choose for each request; beams advance.

    hidden: [rows, hidden], the rows of each request in order, and of a row with a draft as many as it has turns.
    scored: what has become of them already, of `scoring`.
    """
    if scored is not None:
        return _select(scored.logits, scored.seen, requests)
    choices, start = [], 0
    for part, num_rows in _parts(requests, logits.rows):
        found = logits(hidden[start : start + num_rows])
        choices += _select(found, _survey(found, part), part)
        start += num_rows
    return choices


def _parts(requests: Sequence[Request], most: int) -> Iterator[tuple[list[Request], int]]:
    """The requests in order, those together whose rows are no more than `most`, and how many rows these are."""
    part: list[Request] = []
    num_rows = 0
    for request in requests:
        own = _num_rows(request)
        if part and num_rows + own > most:
            yield part, num_rows
            part, num_rows = [], 0
        part.append(request)
        num_rows += own
    if part:
        yield part, num_rows


def _num_rows(request: Request) -> int:
    return len(request.rows) + len(request.rows[0].draft)


def _select(logits: Tensor, seen: Survey, requests: Sequence[Request]) -> list[Choice]:
    """Like `select`, of requests whose logits are held together."""
    finite = seen.finite.tolist()
    choices, singles, groups = [], [], []
    start = 0
    for request in requests:
        rows = range(start, start + _num_rows(request))
        start = rows.stop
        if not all(finite[rows.start : rows.stop]):
            # A guess whose value is not finite spoils what stands before it as well: 0 * NaN is NaN.
            spoiled = bool(request.rows[0].draft)
            choices.append(Choice(request, failed=not spoiled, spoiled=spoiled))
        elif request.beams is None:
            singles.append((request, rows))
        else:
            groups.append((request, rows))
    if singles:
        single_rows = [row for _, rows in singles for row in rows]
        choices += _select_tokens(
            _rows(logits, single_rows), seen.rows(single_rows), [request for request, _ in singles]
        )
    if groups:
        beam_rows = [row for _, rows in groups for row in rows]
        choices += _select_beams(_rows(logits, beam_rows), seen.rows(beam_rows), [request for request, _ in groups])
    return choices


def _survey(logits: Tensor, requests: Sequence[Request]) -> Survey:
    count, with_log_sums = _wanted(requests)
    return ops.survey(logits, min(count, logits.shape[1]), with_log_sums)


def _wanted(requests: Sequence[Request]) -> tuple[int, bool]:
    """How many of the largest logits any of the requests has to know of its rows, and whether their log-sums; those
    that need less are told more."""
    counts = [request.params.top_logprobs for request in requests if request.params.logprobs]
    counts += [request.beams.num_candidates for request in requests if request.beams is not None]
    return max(1, *counts) if counts else 1, bool(counts)


def _select_tokens(logits: Tensor, seen: Survey, requests: Sequence[Request]) -> list[Choice]:
    places = [turn for request in requests for turn in turns(request)]
    reported = [index for index, turn in enumerate(places) if turn.request.params.logprobs]
    raw = _rows(logits, reported) if reported else logits
    if raw is logits and reported and any(is_needed(request.params) for request in requests):
        raw = logits.clone()
    chosen, alive = choose(logits, places, seen)
    described: dict[int, TokenLogprob] = {}
    if reported:
        tokens = [chosen[index] for index in reported]
        tops = [places[index].request.params.top_logprobs for index in reported]
        described = dict(zip(reported, describe(raw, seen.rows(reported), tokens, tops), strict=True))
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


def choose(logits: Tensor, places: Sequence[Turn], seen: Survey) -> tuple[list[int], list[bool]]:
    """The token of each turn, and whether it may follow at all. logits: [turns, vocab], overwritten; seen: of these."""
    tokens = [ids[0] for ids in seen.ids.tolist()]
    values = [logits[0] for logits in seen.values.tolist()]

    def take(indices: Sequence[int], others: Tensor, logits_of_them: Tensor) -> None:
        for index, token, value in zip(indices, others.tolist(), logits_of_them.tolist(), strict=True):
            tokens[index], values[index] = token, value

    busy = [index for index, turn in enumerate(places) if is_needed(turn.request.params)]
    if busy:
        process(logits, [_processor_row(turn) for turn in places])
        again = ops.survey(_rows(logits, busy))
        take(busy, again.ids[:, 0], again.values[:, 0])
    sampled = [index for index, turn in enumerate(places) if turn.request.params.do_sample]
    if sampled:
        own = _rows(logits, sampled)
        drawn = sample(own, [_sampler_row(places[index]) for index in sampled])
        take(sampled, drawn, own.gather(1, drawn[:, None])[:, 0])
    return tokens, [value > -torch.inf for value in values]


def _select_beams(logits: Tensor, seen: Survey, requests: Sequence[Request]) -> list[Choice]:
    reported = any(request.params.logprobs for request in requests)
    raw = logits.clone() if reported and any(is_needed(request.params) for request in requests) else logits
    reporters = _reporters(raw, seen, requests)
    values, tokens = (tensor.cpu().numpy() for tensor in _candidates(logits, seen, requests))
    offsets = [0, *accumulate(len(request.rows) for request in requests)]
    choices = []
    together: dict[Hashable, list[int]] = {}
    best = np.maximum.reduceat(values[:, 0], offsets[:-1]).tolist()
    for index, request in enumerate(requests):
        assert request.beams is not None
        if best[index] == -np.inf:
            choices.append(Choice(request, exhausted=True))
        else:
            together.setdefault(request.beams.shape, []).append(index)
    for indices in together.values():
        members = [requests[index] for index in indices]
        searches = [request.beams for request in members if request.beams is not None]
        width = min(searches[0].num_candidates, values.shape[1])
        first = np.array([offsets[index] for index in indices])
        rows = first[:, None] + np.arange(len(members[0].rows))
        own = [reporters[index] for index in indices]
        parents = advance_together(searches, values[rows, :width], tokens[rows, :width], own)
        choices += [Choice(request, parents=rows) for request, rows in zip(members, parents, strict=True)]
    return choices


def _candidates(logits: Tensor, seen: Survey, requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
    """What may follow each row of the beams: the best log-probabilities after processors, and their tokens.

    Most processors do not care what is added to all logits of a row, so that it is taken off the few that are left in
    the end. For the others it is taken off first.
    """
    owners = [request for request in requests for _ in request.rows]
    busy = [index for index, request in enumerate(owners) if is_needed(request.params)]
    if not busy:
        return seen.log_probs, seen.ids
    rows = [row for request in requests if is_needed(request.params) for row in _processor_rows(request)]
    before, scores = seen.rows(busy), _rows(logits, busy)
    absolute = [index for index, row in enumerate(rows) if takes_log_probs(row)]
    if absolute:
        own = before.rows(absolute).to_log_probs(_rows(scores, absolute))
        if own.data_ptr() != scores.data_ptr():
            scores[torch.tensor(absolute, device=logits.device)] = own
    process(scores, rows)
    renormalized = [index for index, row in enumerate(rows) if row.params.renormalize_logits]
    after = ops.survey(scores, seen.values.shape[1], with_log_sums=bool(renormalized))
    values = before.log_probs_of(after.values)
    values = _replaced(values, absolute, after.values[absolute])
    if renormalized:
        # A row that nothing may follow has no distribution.
        own = after.rows(renormalized).log_probs
        values = _replaced(values, renormalized, own.masked_fill(own.isnan(), -torch.inf))
    return _replaced(seen.log_probs, busy, values), _replaced(seen.ids, busy, after.ids)


def describe(logits: Tensor, seen: Survey, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """What to report of each row's token. logits: [rows, vocab], float32, as they came; seen: of these, with their sums
    and with as many of the largest as `tops`, the alternatives of each row, asks for."""
    places = torch.tensor(tokens, device=logits.device)[:, None]
    own = seen.log_probs_of(logits.gather(1, places))[:, 0].tolist()
    return [
        TokenLogprob(token, logprob, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, logprob, row_ids, row_values, top in zip(
            tokens, own, seen.ids.tolist(), seen.log_probs.tolist(), tops, strict=True
        )
    ]


def _reporters(logits: Tensor, seen: Survey, requests: Sequence[Request]) -> list[Describe | None]:
    """What tells each request of the tokens that its beams take, if it asked; logits, seen: as for `describe`."""
    if not any(request.params.logprobs for request in requests):
        return [None] * len(requests)
    ids, values = seen.ids.tolist(), seen.log_probs.tolist()
    starts = accumulate((len(request.rows) for request in requests), initial=0)

    def reporter(first_row: int, top: int) -> Describe:
        def report(row: int, token: int) -> TokenLogprob:
            place = first_row + row
            tops = list(zip(ids[place][:top], values[place][:top], strict=True))
            return TokenLogprob(token, float(seen.log_prob(place, logits[place, token])), tops)

        return report

    return [
        reporter(start, request.params.top_logprobs) if request.params.logprobs else None
        for request, start in zip(requests, starts, strict=False)
    ]


def _processor_row(turn: Turn) -> ProcessorRow:
    request = turn.request
    # A request with a grammar takes no drafts: its mask is that of the next token alone.
    constraint = request.constraints[0] if request.constraints else None
    return ProcessorRow(
        request.params, request.max_new_tokens, turn.tokens, turn.num_generated, request.tables, constraint
    )


def _processor_rows(request: Request) -> list[ProcessorRow]:
    constraints: Sequence[Constraint | None] = request.constraints or [None] * len(request.rows)
    params, limit, generated = request.params, request.max_new_tokens, request.num_generated
    return [
        ProcessorRow(params, limit, row.tokens, generated, request.tables, constraint)
        for row, constraint in zip(request.rows, constraints, strict=True)
    ]


def _sampler_row(turn: Turn) -> SamplerRow:
    params = turn.request.params
    return SamplerRow(
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.typical_p,
        seed=turn.request.seed,
        position=turn.num_generated,
    )


def _rows(logits: Tensor, indices: Sequence[int]) -> Tensor:
    """Some rows: the tensor itself when that is all of them in order, else a copy."""
    if len(indices) == logits.shape[0] and list(indices) == list(range(len(indices))):
        return logits
    return logits[torch.tensor(indices, device=logits.device)]


def _replaced(values: Tensor, indices: Sequence[int], others: Tensor) -> Tensor:
    """The values with some rows replaced."""
    if not indices:
        return values
    if len(indices) == values.shape[0] and list(indices) == list(range(len(indices))):
        return others
    return values.index_copy(0, torch.tensor(indices, dtype=torch.int64, device=values.device), others)
