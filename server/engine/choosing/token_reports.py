"""Log-probabilities of chosen tokens, for requests that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from models.backends.choice import backend
from models.backends.logits import LogitsTopK
from server.engine.beams.beam_search import Ids
from server.engine.beams.running_beams import Describe
from server.engine.device.device_copies import read_together, to_device
from server.engine.device.output_rows import rows_at
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.logprobs import TokenLogprob


def describe(logits: Tensor, top_k: LogitsTopK, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities to report for chosen tokens, from logits before any processing.

    logits: [rows, vocab], float32.
    top_k: top-k of the logits with log-sum-exp; at least max(tops) candidates.
    tokens: the chosen token of each row.
    tops: for each row, how many of the most likely tokens to report.
    """
    places = to_device(tokens, logits.device)[:, None]
    read = read_together(top_k.ids, top_k.log_probs, top_k.log_probs_of(logits.gather(1, places))[:, 0])
    ids, values, own = (array.tolist() for array in read)
    return [
        TokenLogprob(token, logprob, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, logprob, row_ids, row_values, top in zip(tokens, own, ids, values, tops, strict=True)
    ]


def processed_top(logits: Tensor, indices: Sequence[int]) -> tuple[Tensor, LogitsTopK]:
    """Processed logits of the rows at `indices`, and their top-1 with log-sum-exp.

    logits: processed logits of all rows, [rows, vocab], float32.
    """
    rows = rows_at(logits, indices)
    return rows, backend(rows).logits_top_k(rows, 1, with_logsumexp=True)


def beam_reports(
    raw: Tensor, processed: Tensor, top_k: LogitsTopK, candidates: Tensor, groups: Sequence[SequenceGroup]
) -> list[Tensor]:
    """Tensors on the device from which `describers` makes the log-probabilities of beams. Each has one row per beam.

    raw, processed: logits before and after processing, [rows, vocab], float32.
    top_k: top-k of the raw logits.
    candidates: token ids, [rows, candidates], int64; -1 where there is no candidate.
    Returns three tensors: ids and log-probabilities of the most likely tokens, and log-probabilities of the candidates.
    If a group reports log-probabilities after processing, a fourth tensor has the processed ones of the candidates.
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
    """Create, for each group, a function that returns the log-probabilities to report for a candidate of a beam.

    The function is None for a group that reports no log-probabilities.

    candidates: [rows, candidates], token ids.
    reports: results of `beam_reports`, copied to the host.
    starts: first row of each group.
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
