"""Count the errors that requests are answered with, and keep why one was refused for its line of the access log."""

from __future__ import annotations

from starlette.types import Scope

from server.api.entry.scope import REFUSAL
from server.errors import Overloaded, RequestError
from server.metrics import Metrics


def count_error(error: RequestError, metrics: Metrics, scope: Scope) -> None:
    """Count an error before it is sent. The request of a client that has left is counted as cancelled instead."""
    if error.status != 499:
        metrics.rejected.labels(error.reason).inc()
    if isinstance(error, Overloaded):
        scope[REFUSAL] = error.refusal
