"""Name and limits of one API key. `server.api_keys` reads them from the key file, and admission enforces them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyLimits:
    """Limits on the requests of one API key. None for a limit: only the limits of the server apply.

    When the key file changes, later requests have the new limits under the same name.

    name: name that the operator gave the key. It appears in logs and messages; the key itself never does.
    max_requests: most HTTP requests in progress.
    max_tokens: most tokens of all requests in progress together, prompt tokens and tokens to generate.
    max_cost: most bytes of memory that the requests in progress may need in the HTTP process, as estimated by
        `server.operations.cost`.
    is_admin: whether the key may load and unload models.
    requests_per_minute: most requests that begin within a minute.
    tokens_per_minute: most tokens of prompts and answers that are computed within a minute.
    """

    name: str
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    is_admin: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
