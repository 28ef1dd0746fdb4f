"""Choose the number of threads of a worker where the operator sets none: at most as many as its models gain from.

The threads of a step meet after each of its operations. With n threads a step takes work / n + operations * meeting(n).
The time of a meeting grows with n, because each thread writes to the same cache line; it is taken to grow in
proportion, which is an upper estimate. See docs/decisions/0178-threads-of-a-worker.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from models.config import ModelConfig

MIN_CORES = 8
"""With fewer cores, a worker uses all of them: the rates below are estimates, and little can be lost."""
MEETING_SECONDS = 2e-6
"""Time in which two threads meet after an operation."""
CORE_BYTES_PER_SECOND = 20e9
"""Bytes of weights that one core reads from memory."""
CORE_OPERATIONS_PER_SECOND = 1e11
"""Additions and multiplications of one core in matrix products."""
OPERATIONS_PER_LAYER = 9
"""Operations of a layer after which threads meet: four products, attention, norms, rotary embedding, activation."""
PROMPT_TOKENS, NEW_TOKENS, TEXT_TOKENS = 512, 128, 128
"""A typical request: prompt and new tokens of a model that generates, tokens of a text for an encoder."""


class RequestWork(NamedTuple):
    """The work of one typical request for a model.

    seconds: time of one thread. operations: operations after which threads meet, over all steps.
    """

    seconds: float
    operations: int


def request_work(config: ModelConfig, parameters: int, weight_bytes: int, generates: bool) -> RequestWork:
    """The work of a typical request. parameters, weight_bytes: size of the weights. generates: it makes new tokens."""
    layers = sum(len(stack.layers) for stack in (config.encoder, config.decoder) if stack is not None)
    in_products = parameters - (0 if generates else config.vocab_size * config.hidden_size)
    tokens, steps = (PROMPT_TOKENS, NEW_TOKENS) if generates else (TEXT_TOKENS, 0)
    seconds = tokens * 2 * max(in_products, 0) / CORE_OPERATIONS_PER_SECOND
    seconds += steps * weight_bytes / CORE_BYTES_PER_SECOND
    return RequestWork(seconds, (1 + steps) * layers * OPERATIONS_PER_LAYER)


def best_threads(cores: int, work: RequestWork, meeting_seconds: float = MEETING_SECONDS) -> int:
    """The number of threads, from 1 to `cores`, with the shortest expected time.

    work / n + operations * meeting_seconds * n / 2 is least at the root of 2 * work / (operations * meeting_seconds).
    meeting_seconds: time in which two threads meet.
    """
    if work.operations <= 0 or meeting_seconds <= 0:
        return cores
    best: float = (2 * work.seconds / (work.operations * meeting_seconds)) ** 0.5
    return max(1, min(cores, round(best)))


def threads_for(models: Iterable[RequestWork], cores: int) -> int:
    """Threads of a worker with these models: those of the model that gains from the most; `cores` without models."""
    return max((best_threads(cores, work) for work in models), default=cores)
