"""Every limit for which the server refuses a request with 429: its reason, and the setting that raises it.

docs/operations.md has a table of the same limits. Each limit is checked in one place, where the work is. These modules
check them:

- `server.api.entry.door`: CONNECTIONS, REQUESTS, BODY_MEMORY
- `server.api.entry.live_sessions`: LIVE_SESSIONS
- `server.api.routes.recording_route`: RECORDINGS
- `server.api.stored.document_jobs`: DOCUMENTS, KEY_DOCUMENTS
- `server.operations.admission`: REQUEST_MEMORY, MODEL_MEMORY, MODEL_REQUESTS, KEY_REQUESTS, KEY_TOKENS, KEY_MEMORY
- `server.limits.key_rates`, called by the admission: KEY_REQUEST_RATE, KEY_TOKEN_RATE
- `server.operations.pools`: pool_limit, for each pool; its reason begins with `pool_`
- `server.ipc.client.queue`: QUEUE_REQUESTS, QUEUE_TOKENS
- `server.ray_serve.ingress`: REPLICAS

`server.api.connection.arrivals` calls the checks of REQUESTS, BODY_MEMORY, CONNECTIONS and MODEL_REQUESTS once more, as
soon as a request arrives. Most refusals for these limits come from that module.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import Refusal


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit for which requests are refused.

    reason: name of the limit, as in the body of the error, the metric and the access log.
    setting: setting that changes it, as the message names it; empty for no setting.
    """

    reason: str
    setting: str = ""

    def refusal(self, limit: str) -> Refusal:
        """Return the refusal for a request that exceeds the limit. limit: value of the limit, as text."""
        return Refusal(self.reason, limit, self.setting)

    def refusal_at_maximum(self, limit: str) -> Refusal:
        """The same as `refusal`, for a limit that no setting can raise, because it has its largest value."""
        return Refusal(self.reason, limit, "")


CONNECTIONS = Limit("connections", "--max-connections, at most what ulimit -n allows")
REQUESTS = Limit("requests", "--max-requests")
MODEL_REQUESTS = Limit("model_requests", "--max-requests")
"""Limit on the requests in progress for one model, if the server has several models."""
RECORDINGS = Limit("recordings", "--max-recordings")
LIVE_SESSIONS = Limit("live_sessions", "max_requests of the key in --api-key-file")
"""Limit on the live (realtime) connections of one API key. The setting can only lower it."""
DOCUMENTS = Limit("documents", "--documents-memory")
"""Limit on the memory of all documents that are translated or wait to be fetched."""
KEY_DOCUMENTS = Limit("key_documents")
"""Limit on the documents of one API key that are translated or wait to be fetched."""
BODY_MEMORY = Limit("body_memory", "--max-request-memory")
"""Limit on the bytes in the bodies of all requests in progress."""
REQUEST_MEMORY = Limit("request_memory", "--max-request-memory")
"""Limit on the memory that all requests in progress may need."""
MODEL_MEMORY = Limit("model_memory", "--max-request-memory")
"""Limit on the memory that the requests for one model may need, if the server has several models."""
QUEUE_REQUESTS = Limit("queue_requests", "--max-queue-requests")
QUEUE_TOKENS = Limit("queue_tokens", "--max-queue-tokens")
KEY_REQUESTS = Limit("key_requests", "max_requests of the key in --api-key-file")
KEY_TOKENS = Limit("key_tokens", "max_tokens of the key in --api-key-file")
KEY_MEMORY = Limit("key_memory", "max_cost of the key in --api-key-file")
KEY_REQUEST_RATE = Limit("key_requests_per_minute", "requests_per_minute of the key in --api-key-file")
KEY_TOKEN_RATE = Limit("key_tokens_per_minute", "tokens_per_minute of the key in --api-key-file")
REPLICAS = Limit("replicas", "max_queued_requests of the deployment")
"""Limit on the requests that wait for a replica of a Ray Serve application."""

LIMITS = (
    CONNECTIONS,
    REQUESTS,
    MODEL_REQUESTS,
    RECORDINGS,
    LIVE_SESSIONS,
    DOCUMENTS,
    KEY_DOCUMENTS,
    BODY_MEMORY,
    REQUEST_MEMORY,
    MODEL_MEMORY,
    QUEUE_REQUESTS,
    QUEUE_TOKENS,
    KEY_REQUESTS,
    KEY_TOKENS,
    KEY_MEMORY,
    KEY_REQUEST_RATE,
    KEY_TOKEN_RATE,
    REPLICAS,
)
"""All limits, except the limit of each thread pool (`pool_limit`)."""


def pool_limit(name: str) -> Limit:
    """Return the limit on the requests that wait for a thread pool. name: work of the pool, such as `read audio`."""
    return Limit(f"pool_{name.replace(' ', '_')}")
