"""Computes log-probabilities during prefill: of all prompt tokens, and of one given token at one position (a probe)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.backends.logits import LogitsRequest, LogitsTopK
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.scheduling.schedule import ScheduledRow
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.logprobs import PackedLogprobs


def score_prompts(
    rows: Sequence[ScheduledRow], hidden: Tensor, model: TransformerProtocol
) -> tuple[list[SequenceGroup], list[SequenceGroup]]:
    """Extend `SequenceGroup.prompt_logprobs` by the tokens of this step, and set `SequenceGroup.probe_logprob`.

    rows: rows of the step, before their tokens count as computed.
    hidden: [tokens, hidden], model dtype: all tokens of the rows, in order.
    model: computes the logits.
    The hidden state of position i predicts token i + 1, so the first token has no log-probability.
    A preempted group keeps the log-probabilities of earlier steps.
    Returns the groups whose prompt log-probabilities are complete, and the groups with non-finite logits.
    """
    complete: list[SequenceGroup] = []
    failed: list[SequenceGroup] = []
    start = 0
    for row in rows:
        first, start = start, start + row.num_step_tokens
        group = row.group
        if not group.has_prompt_to_score:
            continue
        done = row.sequence.num_computed_tokens
        if not _probe(row, hidden[first : first + row.num_tokens], model):
            failed.append(group)
            continue
        if not group.reports_prompt_logprobs:
            continue
        last = min(done + row.num_tokens, group.num_prompt_tokens - 1)
        for begin in range(max(done, len(group.prompt_logprobs)), last, model.max_logits_rows):
            end = min(begin + model.max_logits_rows, last)
            tokens, top = row.sequence.tokens[begin + 1 : end + 1], group.params.top_logprobs
            request = LogitsRequest(max(top, 1), with_logsumexp=True)
            logits, top_k = model.logits_top_k(hidden[first + begin - done : first + end - done], request)
            if not bool(top_k.is_finite.all()):
                failed.append(group)
                break
            group.prompt_logprobs.extend(_packed(logits, top_k, tokens, top))
        if group not in failed and len(group.prompt_logprobs) == group.num_prompt_tokens - 1:
            group.prompt_reported = True
            complete.append(group)
    return complete, failed


def _probe(row: ScheduledRow, hidden: Tensor, model: TransformerProtocol) -> bool:
    """Set the log-probability of the token that the request asks for (its probe), if this step computes its position.

    hidden: [tokens, hidden], model dtype: the tokens of the row in this step.
    Returns False if the logits are not finite, and True in all other cases.
    """
    group, probe = row.group, row.group.params.probe
    if probe is None or group.probe_logprob is not None:
        return True
    place = probe.position - row.sequence.num_computed_tokens
    if not 0 <= place < row.num_tokens:
        return True
    logits, top_k = model.logits_top_k(hidden[place : place + 1], LogitsRequest(1, with_logsumexp=True))
    group.probe_logprob = float(top_k.log_prob(0, logits[0, probe.token_id]))
    return bool(top_k.is_finite.all())


def _packed(logits: Tensor, top_k: LogitsTopK, tokens: Sequence[int], top: int) -> PackedLogprobs:
    """Log-probabilities of one token of each row, and of the row's `top` likeliest tokens.

    logits: [rows, vocab], float32. top_k: their top-k with log-sum-exp. tokens: token id of each row.
    """
    places = torch.tensor(tokens, device=logits.device)[:, None]
    own = top_k.log_probs_of(logits.gather(1, places))
    token_ids = torch.cat([places, top_k.ids[:, :top]], dim=1).to(torch.int32)
    values = torch.cat([own, top_k.log_probs[:, :top]], dim=1).to(torch.float32)
    data = [np.ascontiguousarray(tensor.cpu().numpy()) for tensor in (token_ids, values)]
    return PackedLogprobs(token_ids.shape[1], data[0].astype("<i4").tobytes(), data[1].astype("<f4").tobytes())
