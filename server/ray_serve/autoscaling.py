"""Autoscaling policy of the replicas: grow when sequences wait for an engine, shrink when fewer replicas suffice.

Ray Serve applies the bounds, factors and delays of the autoscaling configuration to the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

RUNNING, WAITING = "running_sequences", "waiting_sequences"
"""Names of the figures that each replica reports."""
WAITING_SHARE = 0.1
"""Waiting sequences, as a share of the running ones, that cause no further replica, because bursts are short."""


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
    """The number of replicas, and an empty policy state.

    While sequences wait, the replicas run as many as they can, so the number grows in proportion to running and
    waiting sequences together. It shrinks to `target_ongoing_requests` per replica when none wait.
    """
    current = context.current_num_replicas
    if current == 0:
        return context.target_num_replicas, {}
    metrics = context.aggregated_metrics or {}
    running = sum(metrics.get(RUNNING, {}).values())
    waiting = sum(metrics.get(WAITING, {}).values()) + (context.total_queued_requests or 0)
    if waiting > WAITING_SHARE * running:
        return math.ceil(current * (running + waiting) / max(running, 1.0)), {}
    return min(math.ceil(context.total_num_requests / context.config.target_ongoing_requests), current), {}
