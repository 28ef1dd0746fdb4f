"""Log-probabilities of chosen tokens, for requests that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from models.backends import interface as ops
from models.logits import LogitsTopK
from server.engine.beam_search import Ids
from server.engine.device_copies import read_together, to_device
from server.engine.output_rows import rows_at
from server.engine.running_beams import Describe
from server.engine.sequence import SequenceGroup
from server.ipc.logprobs import TokenLogprob


def describe(logits: Tensor, top_k: LogitsTopK, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities of chosen tokens under the raw distribution.

    logits: [rows, vocab], float32, before any processing.
    top_k: top-k of the logits with log-sum-exp; at least max(tops) candidates.
    tokens: the chosen token of each row.
    tops: number of alternatives to report for each row.
    """
    places = to_device(tokens, logits.device)[:, None]
    read = read_together(top_k.ids, top_k.log_probs, top_k.log_probs_of(logits.gather(1, places))[:, 0])
    ids, values, own = (array.tolist() for array in read)
    return [
        TokenLogprob(token, logprob, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, logprob, row_ids, row_values, top in zip(tokens, own, ids, values, tops, strict=True)
    ]


def processed_top(logits: Tensor, indices: Sequence[int]) -> tuple[Tensor, LogitsTopK]:
    """Processed logits of some rows, and their largest one with log-sum-exp. logits: [rows, vocab], float32."""
    rows = rows_at(logits, indices)
    return rows, ops.logits_top_k(rows, 1, with_logsumexp=True)


def beam_reports(
    raw: Tensor, processed: Tensor, top_k: LogitsTopK, candidates: Tensor, groups: Sequence[SequenceGroup]
) -> list[Tensor]:
    """The numbers of the rows of beams from which `describers` makes log-probabilities.

    raw, processed: logits before and after processing: [rows, vocab], float32. top_k: top-k of the raw logits.
    candidates: [rows, candidates], int64, token ids; -1 where there is none.
    Returns ids and log-probabilities of the likeliest tokens, log-probabilities of the candidates, and those after
    processing if a group reports them.
    """
    places = candidates.clamp(min=0)
    reports = [top_k.ids, top_k.log_probs, top_k.log_probs_of(raw.gather(1, places))]
    if any(group.params.logprobs and group.params.processed_logprobs for group in groups):
        rows, after = processed_top(processed, range(len(processed)))
        reports.append(after.log_probs_of(rows.gather(1, places)))
    return reports


def describers(
    candidates: Ids, reports: Sequence[NDArray[Any]], groups: Sequence[SequenceGroup], starts: Ids
) -> list[Describe | None]:
    """For each group a function that describes a candidate of one of its beams.

    None for a group that reports no log-probabilities.
    candidates: [rows, candidates], token ids. reports: see `beam_reports`. starts: first row of each group.
    """
    tokens = candidates.tolist()
    ids, values, *own = (report.tolist() for report in reports)

    def describer(first_row: int, logprobs: list[list[float]], top: int) -> Describe:
        def describe(row: int, token: int) -> TokenLogprob:
            place = first_row + row
            tops = list(zip(ids[place][:top], values[place][:top], strict=True))
            return TokenLogprob(token, logprobs[place][tokens[place].index(token)], tops)

        return describe

    return [
        describer(start, own[1 if group.params.processed_logprobs else 0], group.params.top_logprobs)
        if group.params.logprobs
        else None
        for group, start in zip(groups, starts.tolist(), strict=True)
    ]
