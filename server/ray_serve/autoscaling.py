"""Autoscaling policy for Ray Serve: add replicas when sequences wait for an engine, remove them when fewer suffice.

Ray Serve applies the bounds, factors and delays of its autoscaling configuration to the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

RUNNING, WAITING = "running_sequences", "waiting_sequences"
"""Names of the figures that each replica reports, for all models together, and with `model_figure` for each model."""
WAITING_SHARE = 0.1
"""Ratio of waiting to running sequences up to which no replica is added, because short bursts are normal."""


def model_figure(figure: str, model: str) -> str:
    """Name under which a replica reports a number for one model. figure: kind of number, `RUNNING` or `WAITING`."""
    return f"{figure}:{model}"


class AutoscalingConfig(Protocol):
    @property
    def target_ongoing_requests(self) -> float: ...


class Context(Protocol):
    """The part of `ray.serve.config.AutoscalingContext` that the policy reads."""

    @property
    def current_num_replicas(self) -> int: ...
    @property
    def target_num_replicas(self) -> int: ...
    @property
    def total_num_requests(self) -> float: ...
    @property
    def total_queued_requests(self) -> float | None: ...
    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...
    @property
    def config(self) -> AutoscalingConfig: ...


def scale_on_waiting(context: Context) -> tuple[int, dict[str, Any]]:
    """Return how many replicas there should be, and an empty policy state.

    While sequences wait, the replicas run as many as they can. The number of replicas then grows by the factor
    (running + waiting) / running. If the sequences of a single model wait, as many replicas are added as this model
    lacks, because the present replicas may be busy with other models. When few wait, the number shrinks to
    `target_ongoing_requests` requests per replica.
    """
    current = context.current_num_replicas
    if current == 0:
        return context.target_num_replicas, {}
    metrics = context.aggregated_metrics or {}
    running = sum(metrics.get(RUNNING, {}).values())
    waiting = sum(metrics.get(WAITING, {}).values()) + (context.total_queued_requests or 0)
    wanted = max((current + _lacking(metrics, name) for name in metrics if name.startswith(f"{WAITING}:")), default=0)
    if waiting > WAITING_SHARE * running:
        wanted = max(wanted, math.ceil(current * (running + waiting) / max(running, 1.0)))
    if wanted > current:
        return wanted, {}
    return min(math.ceil(context.total_num_requests / context.config.target_ongoing_requests), current), {}


def _lacking(metrics: Mapping[str, Mapping[Any, float]], waiting_name: str) -> int:
    """Number of further replicas that one model needs. waiting_name: `model_figure` of its waiting sequences."""
    model = waiting_name.removeprefix(f"{WAITING}:")
    by_replica = metrics.get(model_figure(RUNNING, model), {})
    waiting, running = sum(metrics[waiting_name].values()), sum(by_replica.values())
    if waiting <= WAITING_SHARE * running or not waiting:
        return 0
    # Without any running sequence the model is being loaded, and how many replicas it needs is not known yet.
    holders = sum(value > 0 for value in by_replica.values())
    return math.ceil(holders * waiting / running) if running else 1
