"""Chooses the next tokens of all sequence groups of a step from their logits.

The logits of all rows are processed together on the device. Only a few numbers per row are copied to Python.
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
from models.logits import DecoderOutput, LogitsRequest, LogitsTopK
from server.engine.beam_search import Describe, advance_together
from server.engine.grammar_state import GrammarState
from server.engine.logits_processors import ProcessorRow, is_needed, process, takes_log_probs
from server.engine.runner import TransformerProtocol
from server.engine.sampler import SamplerRow, sample
from server.engine.sequence import SequenceGroup
from server.ipc.logprobs import TokenLogprob


@dataclass(slots=True)
class Selection:
    """Result of one sequence group. Without beams `tokens` is set, with beams `parents`, or one of the flags is true.

    tokens: new tokens of the sequence; more than one if tokens of its draft were accepted.
    logprobs: one for each of `tokens`, empty if the request did not ask for them.
    parents: for each surviving beam, the index of the beam that it continues.
    failed: the logits are not finite.
    retry_without_draft: the logits are not finite, and the draft may be the cause.
    no_token_left: no token has a finite score after processing.
    """

    group: SequenceGroup
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    parents: list[int] | None = None
    failed: bool = False
    retry_without_draft: bool = False
    no_token_left: bool = False


class SamplingPosition(NamedTuple):
    """A place where one token is chosen.

    text: tokens of the sequence, followed by its draft. end: number of tokens before the place.
    """

    group: SequenceGroup
    text: Sequence[int]
    end: int

    @property
    def tokens(self) -> Sequence[int]:
        """All tokens before the place."""
        return self.text if self.end == len(self.text) else self.text[: self.end]

    @property
    def num_generated(self) -> int:
        """Number of generated tokens before the place."""
        return self.end - self.group.num_prompt_tokens


def sampling_positions(group: SequenceGroup) -> list[SamplingPosition]:
    """The position after the last token of a single sequence, and one after each token of its draft."""
    (sequence,) = group.sequences
    tokens, draft = sequence.tokens, sequence.draft
    text = [*tokens, *draft] if draft else tokens
    return [SamplingPosition(group, text, end) for end in range(len(tokens), len(text) + 1)]


def step_logits_request(groups: Sequence[SequenceGroup], max_rows: int) -> LogitsRequest | None:
    """Top-k and log-sum-exp that the decoder computes within the step, for `select`.

    None if no row needs logits, or if more than `max_rows` rows do: `select` then computes them in parts.
    """
    return logits_request(groups) if 0 < sum(map(_num_rows, groups)) <= max_rows else None


def logits_request(groups: Sequence[SequenceGroup]) -> LogitsRequest:
    """Largest top-k count that any group needs, and whether any group needs log-probabilities. Used for all rows."""
    counts = [group.params.top_logprobs for group in groups if group.params.logprobs]
    counts += [group.beams.num_candidates for group in groups if group.beams is not None]
    return LogitsRequest(max(1, *counts) if counts else 1, bool(counts))


def select(output: DecoderOutput, model: TransformerProtocol, groups: Sequence[SequenceGroup]) -> list[Selection]:
    """Choose the next tokens of each group, and advance its beam search if it has one.

    output: decoder output of the step: for each group in order one row per beam, or one row per sampling position.
        Missing logits are computed here from the hidden states, in parts of at most `model.max_logits_rows` rows.
    groups: the sequence groups that get a token in this step.
    """
    if output.logits is not None and output.top_k is not None:
        return _select(output.logits, output.top_k, groups)
    selections, start = [], 0
    for part, num_rows in _parts(groups, model.max_logits_rows):
        logits, top_k = model.logits_top_k(output.hidden[start : start + num_rows], logits_request(part))
        selections += _select(logits, top_k, part)
        start += num_rows
    return selections


def output_of(
    output: DecoderOutput, model: TransformerProtocol, groups: Sequence[SequenceGroup], group: SequenceGroup
) -> DecoderOutput:
    """The rows of one group with their logits, copied to memory of their own.

    output: decoder output of the step. groups: the sequence groups that get a token in this step.
    """
    start = sum(_num_rows(one) for one in groups[: groups.index(group)])
    own = _take(output, range(start, start + _num_rows(group)))
    if own.logits is None:
        logits, top_k = model.logits_top_k(own.hidden, logits_request([group]))
        own = DecoderOutput(own.hidden, logits.clone(), top_k)
    return own


def output_without(
    output: DecoderOutput, groups: Sequence[SequenceGroup], left_out: Sequence[SequenceGroup]
) -> DecoderOutput:
    """The rows of a step without those of some of its groups. groups: all groups that get a token in this step."""
    owners = [group for group in groups for _ in range(_num_rows(group))]
    return _take(output, [index for index, group in enumerate(owners) if group not in left_out])


def _take(output: DecoderOutput, indices: Sequence[int]) -> DecoderOutput:
    """Copies of the rows at `indices`."""
    index = torch.tensor(indices, dtype=torch.int64, device=output.hidden.device)
    hidden, logits, top_k = output
    if top_k is not None:
        logsumexp = None if top_k.logsumexp is None else top_k.logsumexp[index]
        top_k = LogitsTopK(top_k.values[index], top_k.ids[index], logsumexp, top_k.is_finite[index])
    return DecoderOutput(hidden[index], None if logits is None else logits[index], top_k)


def _parts(groups: Sequence[SequenceGroup], most: int) -> Iterator[tuple[list[SequenceGroup], int]]:
    """Split the groups, in order, into parts of at most `most` rows. Yields each part and its number of rows."""
    part: list[SequenceGroup] = []
    num_rows = 0
    for group in groups:
        own = _num_rows(group)
        if part and num_rows + own > most:
            yield part, num_rows
            part, num_rows = [], 0
        part.append(group)
        num_rows += own
    if part:
        yield part, num_rows


def _num_rows(group: SequenceGroup) -> int:
    return len(group.sequences) + len(group.sequences[0].draft)


def _select(logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]) -> list[Selection]:
    """`select` for groups whose logits are in memory. logits: [rows, vocab], float32. top_k: top-k of these logits."""
    finite = top_k.is_finite.tolist()
    selections, singles, beam_groups = [], [], []
    start = 0
    for group in groups:
        rows = range(start, start + _num_rows(group))
        start = rows.stop
        if not all(finite[rows.start : rows.stop]):
            # A draft token with a NaN value also changes the rows before it, although their weight for it is 0: 0 * NaN
            # is NaN.
            has_draft = bool(group.sequences[0].draft)
            selections.append(Selection(group, failed=not has_draft, retry_without_draft=has_draft))
        elif group.beams is None:
            singles.append((group, rows))
        else:
            beam_groups.append((group, rows))
    if singles:
        single_rows = [row for _, rows in singles for row in rows]
        selections += _select_tokens(
            _rows(logits, single_rows), top_k.rows(single_rows), [group for group, _ in singles]
        )
    if beam_groups:
        beam_rows = [row for _, rows in beam_groups for row in rows]
        selections += _select_beams(
            _rows(logits, beam_rows), top_k.rows(beam_rows), [group for group, _ in beam_groups]
        )
    return selections


def _select_tokens(logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]) -> list[Selection]:
    places = [place for group in groups for place in sampling_positions(group)]
    reported = [index for index, place in enumerate(places) if place.group.params.logprobs]
    raw = _rows(logits, reported) if reported else logits
    if raw is logits and reported and any(is_needed(group.params) for group in groups):
        raw = logits.clone()
    chosen, alive = choose(logits, places, top_k)
    described: dict[int, TokenLogprob] = {}
    if reported:
        tokens = [chosen[index] for index in reported]
        tops = [places[index].group.params.top_logprobs for index in reported]
        described = dict(zip(reported, describe(raw, top_k.rows(reported), tokens, tops), strict=True))
    masked = [index for index in reported if places[index].group.params.processed_logprobs]
    if masked:
        tokens = [chosen[index] for index in masked]
        described |= zip(masked, describe(*_processed(logits, masked), tokens, [0] * len(masked)), strict=True)
    selections = []
    start = 0
    for group in groups:
        draft = group.sequences[0].draft
        selection = Selection(group, no_token_left=not alive[start])
        # Draft tokens are accepted as long as they equal the chosen tokens.
        for index, drafted in enumerate([*draft, None], start):
            if not alive[index]:
                break
            selection.tokens.append(chosen[index])
            if index in described:
                selection.logprobs.append(described[index])
            if chosen[index] != drafted:
                break
        start += 1 + len(draft)
        selections.append(selection)
    return selections


def choose(logits: Tensor, places: Sequence[SamplingPosition], top_k: LogitsTopK) -> tuple[list[int], list[bool]]:
    """Choose one token for each sampling position.

    logits: [positions, vocab], float32; overwritten by the processors.
    places: the sampling positions, one for each row.
    top_k: top-k of the logits before processing.
    Returns the tokens, and for each whether its processed logit is finite.
    """
    tokens = [ids[0] for ids in top_k.ids.tolist()]
    values = [logits[0] for logits in top_k.values.tolist()]

    def take(indices: Sequence[int], others: Tensor, logits_of_them: Tensor) -> None:
        for index, token, value in zip(indices, others.tolist(), logits_of_them.tolist(), strict=True):
            tokens[index], values[index] = token, value

    processed = [index for index, place in enumerate(places) if is_needed(place.group.params)]
    if processed:
        process(logits, [_processor_row(place) for place in places])
        again = ops.logits_top_k(_rows(logits, processed))
        take(processed, again.ids[:, 0], again.values[:, 0])
    sampled = [index for index, place in enumerate(places) if place.group.params.do_sample]
    if sampled:
        own = _rows(logits, sampled)
        drawn = sample(own, [_sampler_row(places[index]) for index in sampled])
        take(sampled, drawn, own.gather(1, drawn[:, None])[:, 0])
    return tokens, [value > -torch.inf for value in values]


def _select_beams(logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]) -> list[Selection]:
    reported = any(group.params.logprobs for group in groups)
    raw = logits.clone() if reported and any(is_needed(group.params) for group in groups) else logits
    reporters = _reporters(raw, top_k, groups)
    values, tokens = (tensor.cpu().numpy() for tensor in _candidates(logits, top_k, groups))
    num_best = top_k.values.shape[1]
    masked = [group.params.logprobs and group.params.processed_logprobs for group in groups]
    if any(masked):
        after = _reporters(*_processed(logits, range(len(logits))), groups)
        reporters = [two[own] for own, *two in zip(masked, reporters, after, strict=True)]
    offsets = [0, *accumulate(len(group.sequences) for group in groups)]
    selections = []
    together: dict[Hashable, list[int]] = {}
    best = np.maximum.reduceat(values[:, 0], offsets[:-1]).tolist()
    for index, group in enumerate(groups):
        assert group.beams is not None
        if best[index] == -np.inf:
            selections.append(Selection(group, no_token_left=True))
        else:
            together.setdefault(group.beams.shape, []).append(index)
    for indices in together.values():
        members = [groups[index] for index in indices]
        searches = [group.beams for group in members if group.beams is not None]
        width = min(searches[0].num_candidates, num_best)
        num_further = max(map(len, searches[0].further_tokens), default=0)
        columns = [*range(width), *range(num_best, num_best + num_further)] if num_further else slice(width)
        first = np.array([offsets[index] for index in indices])
        rows = first[:, None] + np.arange(len(members[0].sequences))
        own = [reporters[index] for index in indices]
        parents = advance_together(searches, values[rows][..., columns], tokens[rows][..., columns], own)
        selections += [Selection(group, parents=rows) for group, rows in zip(members, parents, strict=True)]
    return selections


def _candidates(logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]) -> tuple[Tensor, Tensor]:
    """The best continuations of each beam after processing, followed by the `further_tokens` of its search.

    logits: [rows, vocab], float32, raw; overwritten by the processors. top_k: their top-k with log-sum-exp.
    Returns log-probabilities [rows, candidates], float32, the best ones in descending order, and token ids
        [rows, candidates], int64. Rows with fewer further tokens than others end with minus infinity.
    Most processors give the same result if a constant is added to a row. For these rows the log-sum-exp is subtracted
    from the few candidates only. For the others (`takes_log_probs`) it is subtracted from the whole row first.
    """
    owners = [group for group in groups for _ in group.sequences]
    further = _further_tokens(groups, logits.device)
    values, ids = top_k.log_probs_of(_with_further(top_k.values, logits, further)), top_k.ids
    if further is not None:
        ids = torch.cat([ids, further], 1)
    processed = [index for index, group in enumerate(owners) if is_needed(group.params)]
    if not processed:
        return _without_filler(values, ids, further), ids
    rows = [row for group in groups if is_needed(group.params) for row in _processor_rows(group)]
    before, scores = top_k.rows(processed), _rows(logits, processed)
    absolute = [index for index, row in enumerate(rows) if takes_log_probs(row)]
    if absolute:
        own = before.rows(absolute).to_log_probs(_rows(scores, absolute))
        if own.data_ptr() != scores.data_ptr():
            scores[torch.tensor(absolute, device=logits.device)] = own
    process(scores, rows)
    if scores is not logits and any(group.params.processed_logprobs for group in groups):
        logits[torch.tensor(processed, device=logits.device)] = scores
    renormalized = [index for index, row in enumerate(rows) if row.params.renormalize_logits]
    after = ops.logits_top_k(scores, top_k.values.shape[1], with_logsumexp=bool(renormalized))
    own_further = None if further is None else _rows(further, processed)
    picked = _with_further(after.values, scores, own_further)
    changed = _replaced(before.log_probs_of(picked), absolute, picked[absolute])
    if renormalized:
        # log-softmax of a row of -inf is NaN; such a row has no candidates.
        own = after.rows(renormalized).log_probs_of(picked[renormalized])
        changed = _replaced(changed, renormalized, own.masked_fill(own.isnan(), -torch.inf))
    changed_ids = after.ids if own_further is None else torch.cat([after.ids, own_further], 1)
    values, ids = _replaced(values, processed, changed), _replaced(ids, processed, changed_ids)
    return _without_filler(values, ids, further), ids


def _further_tokens(groups: Sequence[SequenceGroup], device: torch.device) -> Tensor | None:
    """`BeamSearch.further_tokens` of each row, filled with -1: [rows, largest number of one row], int64.

    None if no row has any.
    """
    lists: list[Sequence[int]] = []
    for group in groups:
        assert group.beams is not None
        lists += group.beams.further_tokens or [()] * len(group.sequences)
    width = max(map(len, lists))
    if width == 0:
        return None
    return torch.tensor([[*one, *[-1] * (width - len(one))] for one in lists], dtype=torch.int64, device=device)


def _with_further(best: Tensor, logits: Tensor, further: Tensor | None) -> Tensor:
    """The best logits of each row followed by those of its further tokens."""
    return best if further is None else torch.cat([best, logits.gather(1, further.clamp(min=0))], 1)


def _without_filler(values: Tensor, ids: Tensor, further: Tensor | None) -> Tensor:
    """The values, with minus infinity where the id is the filler -1 of `_further_tokens`."""
    return values if further is None else values.masked_fill(ids < 0, -torch.inf)


def _processed(logits: Tensor, indices: Sequence[int]) -> tuple[Tensor, LogitsTopK]:
    """Processed logits of some rows, and their largest one with log-sum-exp. logits: [rows, vocab], float32."""
    rows = _rows(logits, indices)
    return rows, ops.logits_top_k(rows, 1, with_logsumexp=True)


def describe(logits: Tensor, top_k: LogitsTopK, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities of chosen tokens under the raw distribution.

    logits: [rows, vocab], float32, before any processing.
    top_k: top-k of the logits with log-sum-exp; at least max(tops) candidates.
    tokens: the chosen token of each row.
    tops: number of alternatives to report for each row.
    """
    places = torch.tensor(tokens, device=logits.device)[:, None]
    own = top_k.log_probs_of(logits.gather(1, places))[:, 0].tolist()
    return [
        TokenLogprob(token, logprob, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, logprob, row_ids, row_values, top in zip(
            tokens, own, top_k.ids.tolist(), top_k.log_probs.tolist(), tops, strict=True
        )
    ]


def _reporters(logits: Tensor, top_k: LogitsTopK, groups: Sequence[SequenceGroup]) -> list[Describe | None]:
    """For each group a function that describes a token of one of its beams; None if it reports no log-probabilities.

    logits, top_k: as for `describe`.
    """
    if not any(group.params.logprobs for group in groups):
        return [None] * len(groups)
    ids, values = top_k.ids.tolist(), top_k.log_probs.tolist()
    starts = accumulate((len(group.sequences) for group in groups), initial=0)

    def reporter(first_row: int, top: int) -> Describe:
        def report(row: int, token: int) -> TokenLogprob:
            place = first_row + row
            tops = list(zip(ids[place][:top], values[place][:top], strict=True))
            return TokenLogprob(token, float(top_k.log_prob(place, logits[place, token])), tops)

        return report

    return [
        reporter(start, group.params.top_logprobs) if group.params.logprobs else None
        for group, start in zip(groups, starts, strict=False)
    ]


def _processor_row(place: SamplingPosition) -> ProcessorRow:
    group = place.group
    # A group with a grammar has no draft, because a mask is only known for the next token.
    grammar_state = group.grammar_states[0] if group.grammar_states else None
    return ProcessorRow(
        group.params, group.max_new_tokens, place.tokens, place.num_generated, group.tables, grammar_state
    )


def _processor_rows(group: SequenceGroup) -> list[ProcessorRow]:
    grammar_states: Sequence[GrammarState | None] = group.grammar_states or [None] * len(group.sequences)
    params, limit, generated = group.params, group.max_new_tokens, group.num_generated
    return [
        ProcessorRow(params, limit, row.tokens, generated, group.tables, grammar_state)
        for row, grammar_state in zip(group.sequences, grammar_states, strict=True)
    ]


def _sampler_row(place: SamplingPosition) -> SamplerRow:
    params = place.group.params
    return SamplerRow(
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.typical_p,
        seed=place.group.seed,
        position=place.num_generated,
    )


def _rows(logits: Tensor, indices: Sequence[int]) -> Tensor:
    """The rows at `indices`: the tensor itself if these are all rows in order, else a copy."""
    if len(indices) == logits.shape[0] and list(indices) == list(range(len(indices))):
        return logits
    return logits[torch.tensor(indices, device=logits.device)]


def _replaced(values: Tensor, indices: Sequence[int], others: Tensor) -> Tensor:
    """A copy of `values` with the rows at `indices` replaced by `others`."""
    if not indices:
        return values
    if len(indices) == values.shape[0] and list(indices) == list(range(len(indices))):
        return others
    return values.index_copy(0, torch.tensor(indices, dtype=torch.int64, device=values.device), others)
