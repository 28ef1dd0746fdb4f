"""An HTTP connection to one server: JSON requests, event streams, and retries while the server is busy."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ipaddress
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from server.client import environment
from server.client.errors import CommandError, RequestFailed, Unreachable
from server.near_names import with_name

DEFAULT_URL = "http://127.0.0.1:8000"
RETRIED_STATUSES = frozenset({429, 502, 503})
MAX_PAUSE_SECONDS = 30.0
"""Longest pause before a retry, even if the server asks for a longer pause."""
CONNECT_SECONDS = 10.0
LATE_SECONDS = 30.0
"""Time that the client waits, after the time limit of a request, for the error that the server sends then."""


@dataclass(frozen=True)
class ServerAddress:
    """The server to which requests are sent, and how to send them.

    url: URL of the server, without a path.
    key: API key; empty if no key is sent.
    retries: most further attempts while the server is overloaded, not ready, or not reachable.
    timeout_seconds: time limit of a request; None for the server's limit, which usually is none.
    """

    url: str = DEFAULT_URL
    key: str = ""
    retries: int = 8
    timeout_seconds: float | None = None


@dataclass(frozen=True)
class Answer:
    """A JSON answer.

    value: the JSON value. truncated: indices of the inputs of the request that were cut to fit the model.
    parts: seconds of each part of the request's time in the server, if the request asked for them.
    """

    value: Any
    truncated: frozenset[int] = frozenset()
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event. name: value of its field `event`; empty if it has none. data: its data lines, joined."""

    name: str
    data: str


class Connection:
    """Sends requests to a server, and retries them while it is busy. Use it as an asynchronous context manager.

    transport: replaces the network in tests; None for the network.
    sleep: waits a number of seconds before a retry.
    Raises CommandError for a URL that cannot be the URL of a server.
    """

    def __init__(
        self,
        target: ServerAddress,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.target = target
        self._sleep = sleep
        try:
            address = httpx.URL(target.url)
        except httpx.InvalidURL:
            address = httpx.URL("")
        if address.scheme not in ("http", "https") or not address.host:
            raise CommandError(f"{target.url!r} is not the URL of a server: write it as {DEFAULT_URL}")
        self._client = httpx.AsyncClient(
            base_url=address,
            headers=self._headers(),
            timeout=httpx.Timeout(self._patience_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport,
            trust_env=not _is_loopback(address.host),
        )

    @property
    def _patience_seconds(self) -> float | None:
        """Longest wait for the next byte, in seconds; None for no limit if the request has no time limit."""
        seconds = self.target.timeout_seconds
        return None if seconds is None else seconds + LATE_SECONDS

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.target.key}"} if self.target.key else {}
        if self.target.timeout_seconds is not None:
            headers["X-Timeout-Ms"] = str(max(1, round(self.target.timeout_seconds * 1000)))
        return headers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: Any, breakdown: bool = False) -> Answer:
        """Send a JSON request and return the JSON answer.

        breakdown: ask for the parts of the request's time in the server.
        Raises RequestFailed for an answer that is an error, and Unreachable if no server answers.
        """
        headers = {"headers": {"X-Breakdown": "1"}} if breakdown else {}
        async with self._answer(path, body, **headers) as response:
            places = response.headers.get("x-truncated-inputs", "").split(",")
            truncated = frozenset(int(place) for place in places if place.isdigit())
            return Answer(await _json(response), truncated, _parts(response.headers.get("server-timing", "")))

    async def get(self, path: str) -> Any:
        """Request a JSON document with GET. Raises RequestFailed for an error, and Unreachable if no server answers."""
        async with self._answer(path, None) as response:
            return await _json(response)

    async def text(self, path: str) -> str:
        """Request a document with GET, as text. Raises RequestFailed for an error, Unreachable if no server answers."""
        async with self._answer(path, None) as response:
            return (await response.aread()).decode(errors="replace")

    async def upload(self, path: str, fields: Mapping[str, str], name: str, data: bytes) -> Any:
        """Send a form with a file, and return the JSON answer.

        path: path of the route. fields: the other fields of the form. name, data: name and content of the file.
        Raises RequestFailed for an answer that is an error, and Unreachable if no server answers.
        """
        async with self._answer(path, None, data=fields, files={"file": (name, data)}) as response:
            return await _json(response)

    async def upload_for_text(self, path: str, fields: Mapping[str, str], name: str, data: bytes) -> str:
        """Send a form with a file, and return the answer as text.

        path: path of the route. fields: the other fields of the form. name, data: name and content of the file.
        Raises RequestFailed for an answer that is an error, and Unreachable if no server answers.
        """
        async with self._answer(path, None, data=fields, files={"file": (name, data)}) as response:
            return (await response.aread()).decode(errors="replace")

    async def content(self, path: str, body: Any) -> bytes:
        """Send a JSON request, and return the bytes of the answer.

        Raises RequestFailed for an answer that is an error, and Unreachable if no server answers.
        """
        async with self._answer(path, body) as response:
            return await response.aread()

    async def events(self, path: str, body: Any) -> AsyncIterator[StreamEvent]:
        """Send a JSON request, and yield the server-sent events of the answer. Nothing is retried once it has begun.

        Raises RequestFailed for an error and for an answer that breaks off, and Unreachable if no server answers.
        """
        async with self._answer(path, body) as response:
            try:
                async for event in read_events(response.aiter_bytes()):
                    yield event
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                raise RequestFailed(f"the answer broke off ({_reason(error)})", response.status_code) from None

    @contextlib.asynccontextmanager
    async def _answer(self, path: str, body: Any, **form: Any) -> AsyncIterator[httpx.Response]:
        """Context manager of the response to a request, whose status is 200. The body is not read yet.

        Requests are retried while the server is overloaded, not ready, or not reachable.

        body: JSON; None for a GET request, and for a form. form: `data` and `files` of a form, or further `headers`.
        Raises RequestFailed for another status, and Unreachable if no server answers.
        """
        attempt = 0
        while True:
            last = attempt >= self.target.retries
            method = "GET" if body is None and not form else "POST"
            request = self._client.build_request(method, path, json=body, **form)
            try:
                response = await self._client.send(request, stream=True)
            except httpx.TransportError as error:
                if last or isinstance(error, httpx.TimeoutException | httpx.UnsupportedProtocol):
                    raise self._unreachable(error) from None
                if attempt == 0 and isinstance(error, httpx.ConnectError):
                    raise self._unreachable(error) from None
                pause = pause_seconds(None, attempt)
            else:
                if response.status_code == 200:
                    break
                failure = await _failure(response, body)
                if last or response.status_code not in RETRIED_STATUSES:
                    raise failure
                pause = pause_seconds(response.headers.get("retry-after"), attempt)
            await self._sleep(pause)
            attempt += 1
        try:
            yield response
        except httpx.ReadTimeout as error:
            raise self._unreachable(error) from None
        except httpx.TransportError as error:
            raise Unreachable(f"{self.target.url} closed the connection ({_reason(error)})") from None
        finally:
            await response.aclose()

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        if isinstance(error, httpx.ReadTimeout):
            return Unreachable(f"{self.target.url} sent nothing for {self._patience_seconds or 0:g} s", timed_out=True)
        return Unreachable(
            f"no server answers on {self.target.url} ({_reason(error)}): start one with `triptych serve`, name "
            f"another with --url, or load a model without a server with --load PATH"
        )


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[StreamEvent]:
    """Parse server-sent events whose lines end in LF or CRLF. chunks: bytes of the answer, divided at any place.

    Lines are split as bytes, because httpx would also split text at U+2028, which JSON may contain.
    Source: WHATWG HTML Living Standard, section 9.2.6.
    """
    name, data, rest = "", list[str](), b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.removesuffix(b"\r").decode(errors="replace").partition(":")
            if field == "event":
                name = value.removeprefix(" ")
            elif field == "data":
                data.append(value.removeprefix(" "))
            elif not field and not value:
                if data:
                    yield StreamEvent(name, "\n".join(data))
                name, data = "", []


def pause_seconds(retry_after: str | None, attempt: int) -> float:
    """Seconds to wait before the next attempt.

    retry_after: value of the header `Retry-After`, a number of seconds or a date; None for no header. The pause then
        doubles with each attempt, and has a random factor from 0.5 to 1.
    attempt: index of the attempt that has just failed, from 0.
    """
    if retry_after is not None:
        with contextlib.suppress(ValueError):
            return min(max(float(retry_after), 0.0), MAX_PAUSE_SECONDS)
        with contextlib.suppress(ValueError):
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
            return min(max(seconds, 0.0), MAX_PAUSE_SECONDS)
    # Clients that failed together should not return together.
    return float(min(0.25 * 2**attempt, MAX_PAUSE_SECONDS) * random.uniform(0.5, 1.0))


def _parts(header: str) -> dict[str, float]:
    """Seconds of each part of a `Server-Timing` header. Parts without a duration are left out."""
    found = {}
    for entry in header.split(","):
        name, _, duration = entry.strip().partition(";dur=")
        with contextlib.suppress(ValueError):
            found[name] = float(duration) / 1000
    return found


async def _json(response: httpx.Response) -> Any:
    data = await response.aread()
    try:
        return json.loads(data)
    except ValueError:
        raise CommandError(f"{response.url} did not answer in JSON; is it another server?") from None


async def _failure(response: httpx.Response, body: object) -> RequestFailed:
    """Read the error from an answer whose status is not 200.

    body: JSON body of the request; None for a request without body. The name of its model is put into a message about
        an unknown model.
    """
    try:
        value = json.loads(await response.aread())
        error = value.get("error", value.get("message"))
    except (ValueError, AttributeError, httpx.TransportError):
        error = None
    finally:
        await response.aclose()
    message = error_message(error) or response.reason_phrase or "no reason given"
    if isinstance(body, dict) and "model" in body:
        message = with_name(message, body["model"])
    if response.status_code == 401:
        message += f": set {environment.API_KEY} or --api-key-file"
    return RequestFailed(f"{message} (HTTP {response.status_code})", response.status_code, error)


def error_message(error: object) -> str:
    """Return the message of an error as one line; empty if there is none.

    error: the error of an answer, an object with a `message`, or a string.
    """
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(text.split()) if isinstance(text, str) else ""


def _reason(error: httpx.TransportError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error).lower() or type(error).__name__


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
