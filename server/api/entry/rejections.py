"""Count the errors that the server answers with, and keep the reason of a refusal for the access log."""

from __future__ import annotations

from starlette.types import Scope

from server.api.entry.scope import REFUSAL
from server.errors import Overloaded, RequestError
from server.metrics import Metrics


def count_error(error: RequestError, metrics: Metrics, scope: Scope) -> None:
    """Count an error in the metrics before it is sent, and keep the reason of an Overloaded error in the scope.

    Errors of clients that have left (status 499) are not counted; such a request is counted as cancelled elsewhere.
    """
    if error.status != 499:
        metrics.rejected.labels(error.reason).inc()
    if isinstance(error, Overloaded):
        scope[REFUSAL] = error.refusal
