"""Name and limits of one API key. The key file holds them (`server.api_keys`), and admission enforces them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyLimits:
    """Limits on the requests of one API key, in progress and by time. None: only the limits of the server apply.

    When the key file changes, later requests carry the new limits under the same name.

    name: given by the operator. It appears in logs and in messages to the owner of the key; the key itself never does.
    max_requests: number of HTTP requests in progress.
    max_tokens: tokens of all sequences of these requests, prompt tokens and tokens to generate.
    max_cost: bytes of memory that these requests may need in the HTTP process, by `server.operations.cost`.
    is_admin: the key may load and unload models.
    requests_per_minute: number of requests that begin within a minute.
    tokens_per_minute: tokens of prompts and answers that are computed within a minute.
    """

    name: str
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    is_admin: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
