"""Finds the best continuations of beams on the device, from the logits of a step.

Reads nothing on the host, except for wide searches (`server.engine.device.wide_searches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.backends.choice import backend
from models.backends.logits import LogitsTopK
from server.engine.choosing.logits_processors import ProcessorRow, process, runs_of, takes_log_probs
from server.engine.choosing.sequence_candidates import allowed_candidates
from server.engine.device.device_copies import to_device
from server.engine.device.output_rows import candidates_per_row, replaced, rows_at
from server.engine.device.wide_searches import are_wide, widened
from server.engine.sequences.grammar_state import GrammarState
from server.engine.sequences.sequence import SequenceGroup


def find_candidates(
    logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup], num_unread: int = 0
) -> tuple[Tensor, Tensor]:
    """The best continuations of each beam after processing, then the tokens that its search considers in any case.

    Most processors give the same result if a constant is added to a row. After these, the log-sum-exp is subtracted
    from the few candidates only. Other processors need log-probabilities (`takes_log_probs`): for their rows, the
    log-sum-exp is first subtracted from the whole row.

    logits: [rows, vocab], float32, raw. The processors change them in place.
    top_k: top-k of the raw logits, with log-sum-exp. If processors change all rows, it may have fewer candidates.
    groups: the groups of the rows. A group without beams has one row, which is processed like the row of a beam.
    num_unread: number of tokens at the end of each text that the host has not read. Above 0, the settings of all groups
        must not depend on the text.
    Returns log-probabilities [rows, candidates], float32, those of the best continuations in descending order, and
        token ids [rows, candidates], int64. Rows with fewer further tokens than others end with minus infinity.
    """
    further = _further_tokens(groups, logits.device)
    is_wide = are_wide(groups)
    if not any(group.tables.change_logits for group in groups):
        found = _continuations(top_k.log_probs_of(_with_further(top_k.values, logits, further)), top_k.ids, further)

        def best_raw(rows: list[int], k: int) -> tuple[Tensor, Tensor]:
            best = backend(logits).logits_top_k(rows_at(logits, rows), k)
            return top_k.rows(rows).log_probs_of(best.values), best.ids

        return widened(*found, groups, best_raw) if is_wide else found
    allowed = None if further is not None else allowed_candidates(logits, top_k, groups)
    if allowed is not None:
        return allowed
    owners = [group for group in groups for _ in group.sequences]
    processed = [index for index, group in enumerate(owners) if group.tables.change_logits]
    rows = [row for group in groups if group.tables.change_logits for row in _processor_rows(group, num_unread)]
    before, scores = top_k.rows(processed), rows_at(logits, processed)
    runs = list(runs_of(rows))
    absolute = [index for indices, row in runs if takes_log_probs(row) for index in indices]
    if absolute:
        own = before.rows(absolute).to_log_probs(rows_at(scores, absolute))
        if own.data_ptr() != scores.data_ptr():
            scores[to_device(absolute, logits.device)] = own
    process(scores, rows)
    if scores is not logits and any(group.params.processed_logprobs for group in groups):
        logits[to_device(processed, logits.device)] = scores
    renormalized = [index for indices, row in runs if row.params.renormalize_logits for index in indices]
    count = min(max(top_k.values.shape[1], candidates_per_row(groups)), scores.shape[1])
    after = backend(scores).logits_top_k(scores, count, with_logsumexp=bool(renormalized))
    own_further = None if further is None else rows_at(further, processed)
    convert = _Conversion(before, after, frozenset(absolute), frozenset(renormalized))
    changed = convert(_with_further(after.values, scores, own_further), range(len(processed)))
    values, ids = _continuations(changed, after.ids, own_further)
    if len(processed) == len(logits):

        def best_processed(rows: list[int], k: int) -> tuple[Tensor, Tensor]:
            best = backend(scores).logits_top_k(rows_at(scores, rows), k)
            return convert(best.values, rows), best.ids

        return widened(values, ids, groups, best_processed) if is_wide else (values, ids)
    raw = top_k.log_probs_of(_with_further(top_k.values, logits, further))
    raw_values, raw_ids = _continuations(raw, top_k.ids, further)
    return replaced(raw_values, processed, values), replaced(raw_ids, processed, ids)


class _Conversion(NamedTuple):
    """Converts processed logits to log-probabilities.

    before: top-k of the rows before the processors, with log-sum-exp.
    after: top-k of the rows after the processors, with log-sum-exp if any row is renormalized.
    absolute: indices of rows whose processed logits already are log-probabilities.
    renormalized: indices of rows to which log-softmax is applied after processing.
    """

    before: LogitsTopK
    after: LogitsTopK
    absolute: frozenset[int]
    renormalized: frozenset[int]

    def __call__(self, picked: Tensor, rows: Sequence[int]) -> Tensor:
        """Convert some processed logits of each row to log-probabilities.

        picked: [rows, n], float32: the logits. rows: index of each row in the fields of this object.
        Returns [rows, n], float32.
        """
        absolute = [place for place, row in enumerate(rows) if row in self.absolute]
        renormalized = [place for place, row in enumerate(rows) if row in self.renormalized]
        changed = picked
        if len(renormalized) < len(rows):
            changed = self.before.rows(rows).log_probs_of(picked)
            changed = replaced(changed, absolute, rows_at(picked, absolute)) if absolute else changed
        if renormalized:
            # log-softmax of a row of -inf is NaN; such a row has no candidates.
            own = self.after.rows([rows[place] for place in renormalized]).log_probs_of(rows_at(picked, renormalized))
            changed = replaced(changed, renormalized, own.masked_fill(own.isnan(), -torch.inf))
        return changed


def _further_tokens(groups: Sequence[SequenceGroup], device: torch.device) -> Tensor | None:
    """The tokens that are considered in any case (`BeamSearch.further_tokens`): [rows, width], int64; None without any.

    width: the largest number of further tokens of a row. Shorter rows are filled up with -1.
    """
    if not any(group.beams is not None and group.beams.further_tokens for group in groups):
        return None
    lists: list[Sequence[int]] = []
    for group in groups:
        lists += (group.beams is not None and group.beams.further_tokens) or [()] * len(group.sequences)
    width = max(map(len, lists))
    if width == 0:
        return None
    return to_device([[*further, *[-1] * (width - len(further))] for further in lists], device)


def _with_further(best: Tensor, logits: Tensor, further: Tensor | None) -> Tensor:
    """Append the logits of each row's further tokens to its best logits.

    best: [rows, k]. logits: [rows, vocab]. further: [rows, width], with -1 for missing tokens; None if no row has them.
    Returns [rows, k + width]. Missing tokens get the logit of token 0.
    """
    return best if further is None else torch.cat([best, logits.gather(1, further.clamp(min=0))], 1)


def _continuations(values: Tensor, ids: Tensor, further: Tensor | None) -> tuple[Tensor, Tensor]:
    """Append the ids of further tokens to `ids`, and set the values of missing tokens to minus infinity.

    values: [rows, k + width], of the tokens in `ids` and `further`. ids: [rows, k].
    further: [rows, width], with -1 for missing tokens; None if no row has them.
    Returns values and token ids, both [rows, k + width].
    """
    if further is None:
        return values, ids
    ids = torch.cat([ids, further], 1)
    return values.masked_fill(ids < 0, -torch.inf), ids


def _processor_rows(group: SequenceGroup, num_unread: int) -> list[ProcessorRow]:
    params, limit, generated = group.params, group.max_new_tokens, group.num_generated + num_unread
    if group.tables.only_ban:
        return [ProcessorRow(params, limit, (), generated, group.tables)] * len(group.sequences)
    grammar_states: Sequence[GrammarState | None] = group.grammar_states or [None] * len(group.sequences)
    nodes = [-1] * len(group.sequences) if group.nodes is None else group.nodes.tolist()
    return [
        ProcessorRow(params, limit, row.tokens, generated, group.tables, grammar_state, node)
        for row, grammar_state, node in zip(group.sequences, grammar_states, nodes, strict=True)
    ]
