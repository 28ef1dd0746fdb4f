"""Chooses the next tokens of all sequence groups of a step from their logits.

The logits of all rows are processed together on the device. Only a few numbers per row are copied to the host, where
all beam searches advance together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.backends.choice import backend
from models.backends.logits import DecoderOutput, LogitsTopK
from server.engine.beams.beam_search import BeamSearch, Ids, advance_together
from server.engine.beams.running_beams import Describe, Float32s
from server.engine.choosing.candidates import find_candidates
from server.engine.choosing.logits_processors import process
from server.engine.choosing.sampler import sample
from server.engine.choosing.sampling_positions import SamplingPosition, sampling_positions
from server.engine.choosing.token_reports import beam_reports, describe, describers, processed_top
from server.engine.device.device_copies import HostTopK, read_together
from server.engine.device.output_rows import logits_request, num_output_rows, parts_of, rows_at
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.logprobs import TokenLogprob


@dataclass(slots=True)
class Selection:
    """The result of choosing tokens for one sequence group.

    It has `tokens` for a group without beams, `parents` for a group with beams, or one of the three flags.

    tokens: new tokens of the sequence; more than one if tokens of its draft were accepted.
    logprobs: log-probabilities, one for each of `tokens`; empty if the request did not ask for them.
    parents: for each surviving beam, the index of the beam that it continues.
    failed: the logits are not finite.
    retry_without_draft: the logits are not finite, and the draft may be the cause.
    no_token_left: no token has a finite score after processing.
    """

    group: SequenceGroup
    tokens: list[int] | None = None
    logprobs: Sequence[TokenLogprob] = ()
    parents: list[int] | None = None
    failed: bool = False
    retry_without_draft: bool = False
    no_token_left: bool = False


def select(output: DecoderOutput, model: TransformerProtocol, groups: Sequence[SequenceGroup]) -> list[Selection]:
    """Choose the next tokens of each group, and advance its beam search if it has one.

    output: decoder output of the step: for each group in order one row per beam, or one row per sampling position.
        Missing logits are computed here from the hidden states, in parts of at most `model.max_logits_rows` rows.
    groups: the sequence groups that get a token in this step.
    Returns one selection for each group, in any order.
    """
    selections: list[Selection] = []
    batches: dict[Hashable, list[_SearchBatch]] = {}
    for logits, top_k, part in _logits_parts(output, model, groups):
        chosen, found = _select(logits, top_k, part)
        selections += chosen
        for shape, batch in found.items():
            batches.setdefault(shape, []).append(batch)
    for same in batches.values():
        selections += _advance(same)
    return selections


def _logits_parts(
    output: DecoderOutput, model: TransformerProtocol, groups: Sequence[SequenceGroup]
) -> Iterator[tuple[Tensor, LogitsTopK, Sequence[SequenceGroup]]]:
    """Divide the groups into parts, and yield the logits, their top-k and the groups of each part.

    All parts use the same memory for their logits. A part is therefore invalid once the next one is taken.
    """
    if output.logits is not None and output.top_k is not None:
        yield output.logits, output.top_k, groups
        return
    start = 0
    for part, num_rows in parts_of(groups, model.max_logits_rows):
        yield *model.logits_top_k(output.hidden[start : start + num_rows], logits_request(part)), part
        start += num_rows


class _SearchBatch(NamedTuple):
    """Beam searches of equal shape, and the arguments of `advance_together` for them.

    groups: the groups of the searches, in the order of the other fields.
    log_probs, token_ids: [groups, rows, candidates], float32 and int64. describe: for each group, a function that
        returns the log-probability to report for a row and a token; None for a group that reports no log-probabilities.
    """

    groups: list[SequenceGroup]
    log_probs: Float32s
    token_ids: Ids
    describe: list[Describe | None]


def _advance(batches: Sequence[_SearchBatch]) -> list[Selection]:
    """Advance the beam searches of batches with equal shapes. Returns one selection for each group of the batches."""
    groups = [group for batch in batches for group in batch.groups]
    describe = [describe_row for batch in batches for describe_row in batch.describe]
    log_probs = np.concatenate([batch.log_probs for batch in batches])
    token_ids = np.concatenate([batch.token_ids for batch in batches])
    searches = [group.beams for group in groups if group.beams is not None]
    parents = advance_together(searches, log_probs, token_ids, describe)
    return [Selection(group, parents=rows) for group, rows in zip(groups, parents, strict=True)]


def _search(group: SequenceGroup) -> BeamSearch:
    assert group.beams is not None
    return group.beams


def _select(
    logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]
) -> tuple[list[Selection], dict[Hashable, _SearchBatch]]:
    """Choose the tokens of groups without beams, and find the candidate tokens of groups with beams.

    logits: [rows, vocab], float32; overwritten by the logits processors. top_k: top-k of `logits`.
    Returns selections, and batches of beam searches that have to be advanced. The selections include groups that fail:
    with logits that are not finite, or beams with no token left. The searches of a batch can be advanced together; the
    key of a batch has their `BeamSearch.shape`.
    """
    singles = [group for group in groups if group.beams is None]
    if len(singles) == len(groups):
        return _select_tokens(logits, top_k, singles), {}
    if not singles:
        return _find_candidates(logits, top_k, groups)
    owners = [group for group in groups for _ in range(num_output_rows(group))]
    rows = [index for index, group in enumerate(owners) if group.beams is None]
    selections = _select_tokens(rows_at(logits, rows), top_k.rows(rows), singles)
    rows = [index for index, group in enumerate(owners) if group.beams is not None]
    with_beams = [group for group in groups if group.beams is not None]
    failed, batches = _find_candidates(rows_at(logits, rows), top_k.rows(rows), with_beams)
    return selections + failed, batches


def _select_tokens(logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]) -> list[Selection]:
    """Choose the tokens of groups without beams. Groups with non-finite logits get a selection that says so.

    logits: [rows, vocab], float32. top_k: top-k of these logits.
    """
    best = HostTopK.of(top_k)
    if all(best.is_finite.tolist()):
        return _choose_tokens(logits, top_k, best, groups)
    counts = [num_output_rows(group) for group in groups]
    are_finite = np.logical_and.reduceat(best.is_finite, np.cumsum([0, *counts[:-1]]))
    # A draft token with a NaN value also changes the rows before it, although their weight for it is 0: 0 * NaN is NaN.
    drafts = [(group, bool(group.sequences[0].draft)) for group in groups]
    selections = [
        Selection(group, failed=not has_draft, retry_without_draft=has_draft)
        for (group, has_draft), is_finite in zip(drafts, are_finite, strict=True)
        if not is_finite
    ]
    rows = np.repeat(are_finite, counts).nonzero()[0].tolist()
    if rows:
        rest = [group for group, is_finite in zip(groups, are_finite, strict=True) if is_finite]
        selections += _choose_tokens(rows_at(logits, rows), top_k.rows(rows), best.rows(rows), rest)
    return selections


def _choose_tokens(
    logits: Tensor, top_k: LogitsTopK, best: HostTopK, groups: Sequence[SequenceGroup]
) -> list[Selection]:
    """Choose the tokens of groups without beams, whose logits are finite. Returns one selection for each group.

    logits: [rows, vocab], float32. top_k: top-k of these logits. best: copy of `top_k` on the host.
    """
    places = [place for group in groups for place in sampling_positions(group)]
    reported = [index for index, place in enumerate(places) if place.group.params.logprobs]
    raw = rows_at(logits, reported) if reported else logits
    if raw is logits and reported and any(group.tables.change_logits for group in groups):
        raw = logits.clone()
    chosen, alive = choose(logits, places, best)
    described: dict[int, TokenLogprob] = {}
    if reported:
        tokens = [chosen[index] for index in reported]
        tops = [places[index].group.params.top_logprobs for index in reported]
        described = dict(zip(reported, describe(raw, top_k.rows(reported), tokens, tops), strict=True))
    masked = [index for index in reported if places[index].group.params.processed_logprobs]
    if masked:
        tokens = [chosen[index] for index in masked]
        described |= zip(masked, describe(*processed_top(logits, masked), tokens, [0] * len(masked)), strict=True)
    selections = []
    start = 0
    for group in groups:
        draft = group.sequences[0].draft
        end = start
        # Draft tokens are accepted as long as they equal the chosen tokens.
        for drafted in (*draft, None):
            if not alive[end]:
                break
            end += 1
            if chosen[end - 1] != drafted:
                break
        logprobs = [described[index] for index in range(start, end) if index in described] if described else ()
        selections.append(Selection(group, chosen[start:end], logprobs, no_token_left=not alive[start]))
        start += 1 + len(draft)
    return selections


def choose(logits: Tensor, places: Sequence[SamplingPosition], best: HostTopK) -> tuple[list[int], list[bool]]:
    """Choose one token for each sampling position.

    logits: [positions, vocab], float32; overwritten by the processors.
    places: the sampling positions, one for each row.
    best: top-k of the logits before processing.
    Returns the tokens, and for each token whether its processed logit is above minus infinity.
    """
    tokens, values = best.ids[:, 0].tolist(), best.values[:, 0].tolist()

    def take(indices: Sequence[int], others: Tensor, logits_of_them: Tensor) -> None:
        read = [array.tolist() for array in read_together(others, logits_of_them)]
        for index, token, value in zip(indices, *read, strict=True):
            tokens[index], values[index] = token, value

    processed = [index for index, place in enumerate(places) if place.group.tables.change_logits]
    if processed:
        process(logits, [place.processor_row for place in places])
        own = rows_at(logits, processed)
        again = backend(own).logits_top_k(own)
        take(processed, again.ids[:, 0], again.values[:, 0])
    sampled = [index for index, place in enumerate(places) if place.group.params.do_sample]
    if sampled:
        own = rows_at(logits, sampled)
        drawn = sample(own, [places[index].sampler_row for index in sampled])
        take(sampled, drawn, own.gather(1, drawn[:, None])[:, 0])
    return tokens, [value > -torch.inf for value in values]


def _find_candidates(
    logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]
) -> tuple[list[Selection], dict[Hashable, _SearchBatch]]:
    """Find the candidates of beam searches.

    All rows are processed on the device before the host knows which rows are finite.

    logits: [rows, vocab], float32. top_k: top-k of these logits. groups: groups with beams.
    Returns the selections of groups that cannot continue, and batches of the other searches by their
    `BeamSearch.shape`.
    """
    reported = any(group.params.logprobs for group in groups)
    raw = logits.clone() if reported and any(group.tables.change_logits for group in groups) else logits
    candidates = find_candidates(logits, top_k, groups)
    further = max((len(own) for group in groups for own in _search(group).further_tokens), default=0)
    num_best = candidates[0].shape[1] - further
    reports = beam_reports(raw, logits, top_k, candidates[1], groups) if reported else []
    values, tokens, is_finite, *rest = read_together(*candidates, top_k.is_finite, *reports)
    starts = np.cumsum([0, *(len(group.sequences) for group in groups)])[:-1]
    are_finite = np.logical_and.reduceat(is_finite, starts).tolist()
    best = np.maximum.reduceat(values[:, 0], starts).tolist()
    selections = []
    places: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        if not are_finite[index]:
            selections.append(Selection(group, failed=True))
        elif best[index] == -np.inf:
            selections.append(Selection(group, no_token_left=True))
        elif group.beams is not None:
            places.setdefault(group.beams.shape, []).append(index)
    describe_each = describers(tokens, rest, groups, starts) if reported else [None] * len(groups)
    batches: dict[Hashable, _SearchBatch] = {}
    for shape, indices in places.items():
        members = [groups[index] for index in indices]
        search = _search(members[0])
        width = min(search.num_candidates, num_best)
        num_further = max(map(len, search.further_tokens), default=0)
        columns = [*range(width), *range(num_best, num_best + num_further)] if num_further else slice(width)
        rows = starts[indices][:, None] + np.arange(len(members[0].sequences))
        own = [describe_each[index] for index in indices]
        batches[shape, width] = _SearchBatch(members, values[:, columns][rows], tokens[:, columns][rows], own)
    return selections, batches
