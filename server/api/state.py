"""State of the HTTP application: settings, readiness, draining, API keys. The composition root creates it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from server.api.entry.door import Door
from server.api.entry.live_sessions import LiveSessions
from server.api.entry.page_check import PageCheck
from server.api.entry.scope import CACHE_SALT
from server.api.stored.document_jobs import DocumentJobs
from server.api.stored.stored_responses import StoredResponses
from server.api.stored.suggestions import Suggestions
from server.api_keys import ApiKeys, key_digest
from server.errors import InvalidRequest
from server.operations.runtime import Runtime
from server.settings.settings import Settings

if TYPE_CHECKING:
    from server.api.telemetry.tracing import Tracing

BODY_DIVISOR = 3
"""Bodies of requests in progress may take up to a third of the memory for requests."""


@dataclass
class State:
    """The data that all requests share and that lives as long as the server.

    runtime: models, engine client, metrics and threads, which operations share.
    fresh: returns whether a worker is ready and has sent a heartbeat recently.
    failed: returns whether the server has given up on its workers.
    workers: returns the number of ready workers, and of all workers.
    door: limits the requests in progress.
    page_check: refuses requests from web pages of other sites.
    responses, documents: the stored responses and the documents of all API keys.
    suggestions: file of better translations that users suggest.
    live: the open live connections.
    keys: the accepted API keys; `use_keys` replaces them when the key file changes.
    started: whether all models have been loaded once.
    draining: whether new requests are refused because the server stops.
    tracing: None if traces are off.
    answering: number of requests in progress. recordings: number of requests with a recording in memory.
    start_time: time at which the server started, in seconds since 1970.
    secret: key of the hash that turns API keys into cache salts; different in every process.
    """

    settings: Settings
    runtime: Runtime
    fresh: Callable[[], bool]
    failed: Callable[[], bool]
    workers: Callable[[], tuple[int, int]] = lambda: (1, 1)
    door: Door = field(init=False)
    page_check: PageCheck = field(init=False)
    responses: StoredResponses = field(init=False)
    documents: DocumentJobs = field(init=False)
    suggestions: Suggestions = field(init=False)
    live: LiveSessions = field(default_factory=LiveSessions)
    keys: ApiKeys = field(default_factory=ApiKeys)
    started: bool = False
    draining: bool = False
    tracing: Tracing | None = None
    answering: int = 0
    recordings: int = 0
    start_time: float = field(default_factory=time.time)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        settings, memory = self.settings, self.runtime.admission.memory_bytes
        self.door = Door(settings.max_requests, memory // BODY_DIVISOR, settings.max_body_bytes)
        self.page_check = PageCheck(settings.allowed_hosts, settings.cors_origins)
        self.responses = StoredResponses(settings.responses_memory, settings.responses_ttl_seconds)
        self.suggestions = Suggestions(settings.suggestions)
        self.documents = DocumentJobs(settings.documents_memory, settings.documents_ttl_seconds)
        self.use_keys(self.keys)

    @property
    def ready(self) -> bool:
        return self.started and not self.draining and self.fresh()

    def cache_salt(self, key: bytes) -> str:
        """Hash of an API key that separates the prefix cache entries of different keys, without revealing the key."""
        return self._salt(key_digest(key))

    def use_keys(self, keys: ApiKeys) -> None:
        """Replace the accepted API keys. Stored responses and glossaries of other keys are no longer accessible."""
        self.keys = keys
        salts = {self._salt(digest) for digest in keys.digests} or {""}
        self.responses.use_owners(salts)
        self.runtime.sequence_sets.use_owners(salts)
        lasting = {self._salt(digest): hashlib.sha256(b"owner" + digest).hexdigest()[:32] for digest in keys.digests}
        self.runtime.glossaries.use_owners(lasting or {"": "everybody"})

    def _salt(self, digest: bytes) -> str:
        return hmac.new(self.secret, digest, hashlib.sha256).hexdigest()[:32]

    def deadline(self, request: Request, timeout_ms: int | None) -> float | None:
        """Time in seconds of `time.monotonic()` at which the answer must end; None for no limit.

        The limit counts from the arrival of the request's headers. It is the smaller of `timeout_ms` and the header
        `X-Timeout-Ms` (milliseconds). If both are absent, it is the server's default.

        timeout_ms: field of the body; None if absent.
        Raises InvalidRequest if the header is no integer from 1 to the server's limit, or if the smaller value
            is above it.
        """
        limit = int(self.settings.max_timeout_seconds * 1000)
        header = request.headers.get("x-timeout-ms")
        if header is not None:
            if not (re.fullmatch("[0-9]{1,12}", header) and 1 <= int(header) <= limit):
                raise InvalidRequest(f"the header X-Timeout-Ms must be a number from 1 to {limit}", "x-timeout-ms")
            timeout_ms = min(int(header), timeout_ms or limit)
        if timeout_ms is not None and timeout_ms > limit:
            raise InvalidRequest(f"`timeout_ms` must be at most {limit}", "timeout_ms")
        seconds = self.settings.default_timeout_seconds if timeout_ms is None else timeout_ms / 1000
        return None if seconds is None else arrival(request) + seconds


def of(request: Request) -> State:
    """The state of the application that received a request."""
    state = request.app.state.triptych
    assert isinstance(state, State)
    return state


def arrival(request: Request) -> float:
    """Time of `time.monotonic()` at which the request's headers arrived."""
    seconds = request.scope["triptych.arrival"]
    assert isinstance(seconds, float)
    return seconds


def cache_salt(request: Request) -> str:
    """Text that separates a request's prefix cache entries from those of other API keys. Empty if no key is needed."""
    salt = request.scope[CACHE_SALT]
    assert isinstance(salt, str)
    return salt
