"""Log-probabilities of a prompt's own tokens, as its chunks are computed. Knows hidden states; not who asked."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.backends import interface as ops
from server.engine.logits import Logits
from server.engine.scheduler import ScheduledRow
from server.engine.selection import describe
from server.engine.sequence import Request


def score_prompts(
    rows: Sequence[ScheduledRow], hidden: Tensor | None, logits: Logits
) -> tuple[list[Request], list[Request]]:
    """Add to `prompt_logprobs` what this step tells: position i speaks of token i + 1, the first is told by none.

    hidden: [tokens, hidden] of the step's rows, in order, before they count as computed; None where nobody asks.
    What an earlier step told, before a preemption, is kept.
    Returns the requests whose prompts are now complete, and those whose numbers are not finite.
    """
    complete: list[Request] = []
    failed: list[Request] = []
    if hidden is None:
        return complete, failed
    start = 0
    for row in rows:
        first, start = start, start + row.width
        request = row.request
        if not request.scores_prompt:
            continue
        done = row.sequence.num_computed_tokens
        last = min(done + row.num_tokens, request.num_prompt_tokens - 1)
        for begin in range(max(done, len(request.prompt_logprobs)), last, logits.rows):
            end = min(begin + logits.rows, last)
            raw = logits(hidden[first + begin - done : first + end - done])
            tokens, top = row.sequence.tokens[begin + 1 : end + 1], request.params.top_logprobs
            seen = ops.survey(raw, min(max(top, 1), raw.shape[1]), with_log_sums=True)
            if not bool(seen.finite.all()):
                failed.append(request)
                break
            request.prompt_logprobs += describe(raw, seen, tokens, [top] * len(tokens))
        if request not in failed and len(request.prompt_logprobs) == request.num_prompt_tokens - 1:
            request.prompt_reported = True
            complete.append(request)
    return complete, failed
