"""Choose the number of threads of a worker where the operator sets none: no more than its models gain from.

After each operation of a step, its threads wait for each other (they meet). With n threads a step takes
work / n + operations * meeting(n) seconds. The time of a meeting grows with n, because each thread writes to the same
cache line. It is assumed to grow in proportion to n, which is an upper estimate.
See docs/decisions/0178-threads-of-a-worker.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from models.config import ModelConfig

MIN_CORES = 8
"""With fewer cores, a worker uses all of them: the rates below are estimates, and little can be lost."""
MEETING_SECONDS = 2e-6
"""Seconds that two threads take to meet after an operation."""
CORE_BYTES_PER_SECOND = 20e9
"""Bytes of weights that one core reads from memory per second."""
CORE_OPERATIONS_PER_SECOND = 1e11
"""Additions and multiplications that one core computes per second in matrix products."""
OPERATIONS_PER_LAYER = 9
"""Operations of a layer after which threads meet: four products, attention, norms, rotary embedding, activation."""
PROMPT_TOKENS, NEW_TOKENS, TEXT_TOKENS = 512, 128, 128
"""Sizes of a typical request, in tokens: prompt and new tokens if the model generates; a text for an encoder."""


class RequestWork(NamedTuple):
    """The work of one typical request for a model.

    seconds: time that one thread takes. operations: number of operations after which threads meet, over all steps.
    """

    seconds: float
    operations: int


def request_work(config: ModelConfig, parameters: int, weight_bytes: int, generates: bool) -> RequestWork:
    """Estimate the work of a typical request for a model.

    parameters, weight_bytes: number of parameters, and bytes of the weights. generates: whether the model generates
        text.
    """
    layers = sum(len(stack.layers) for stack in (config.encoder, config.decoder) if stack is not None)
    in_products = parameters - (0 if generates else config.vocab_size * config.hidden_size)
    tokens, steps = (PROMPT_TOKENS, NEW_TOKENS) if generates else (TEXT_TOKENS, 0)
    seconds = tokens * 2 * max(in_products, 0) / CORE_OPERATIONS_PER_SECOND
    seconds += steps * weight_bytes / CORE_BYTES_PER_SECOND
    return RequestWork(seconds, (1 + steps) * layers * OPERATIONS_PER_LAYER)


def best_threads(cores: int, work: RequestWork, meeting_seconds: float = MEETING_SECONDS) -> int:
    """The number of threads, from 1 to `cores`, with the shortest expected time.

    work / n + operations * meeting_seconds * n / 2 is least at the root of 2 * work / (operations * meeting_seconds).

    meeting_seconds: time that two threads take to meet after an operation.
    """
    if work.operations <= 0 or meeting_seconds <= 0:
        return cores
    best: float = (2 * work.seconds / (work.operations * meeting_seconds)) ** 0.5
    return max(1, min(cores, round(best)))


def threads_for(models: Iterable[RequestWork], cores: int) -> int:
    """Number of threads for a worker: as many as the model that gains from the most threads; `cores` without models.

    models: work of a request for each model.
    """
    return max((best_threads(cores, work) for work in models), default=cores)
