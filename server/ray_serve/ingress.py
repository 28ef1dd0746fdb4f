"""The ingress: reads each request, forwards it to a replica, and passes the answer on as it comes.

If a replica is lost before its answer has begun, the request is sent once more, to another replica. If the answer has
begun, it is cut off without a proper end, so that no client takes it for complete.
The bodies of all requests in progress are limited as in a server without Ray. A request without a valid API key is
forwarded without its body; the replica refuses it.
With models on demand, a request goes to a replica that has its model (`server.ray_serve.router`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import Any

from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.bodies.body import receive as receive_body
from server.api.bodies.form import is_form
from server.api.bodies.sse import dumps
from server.api.dialects.huggingface.hub_speech import is_recording
from server.api.dialects.native.sequence_routes import MAX_SET_BYTES
from server.api.dialects.registry import KEYS_IN_FIELDS, error_shape, has_secret, is_chat
from server.api.entry.door import LIVE_PATHS, SEQUENCE_SETS, Door
from server.api.entry.middleware import sent_key, without_slash
from server.api.state import BODY_DIVISOR
from server.errors import ClientGone, NotReady, Overloaded, RequestError
from server.limits.refusals import REPLICAS
from server.log_format import start_logging
from server.metrics import CONTENT_TYPE
from server.operations.admission import default_memory_bytes
from server.operations.model_names import ModelNames, pairs
from server.ray_serve.arguments import read
from server.ray_serve.gathered_metrics import gather
from server.ray_serve.messages import portable_scope
from server.ray_serve.multiplexing import MAX_INLINE_BYTES, requested_model
from server.settings.settings import Settings
from server.system.memory import usable_memory_bytes

log = logging.getLogger("triptych.ray")

_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError)
"""Errors of a call whose replica has died or cannot be reached."""
ATTEMPTS = 2
METRICS_SECONDS = 5.0
"""Time limit for collecting the metrics of all replicas."""


class ReplicaLost(Exception):
    """A replica was lost after its answer had begun. Ray Serve then closes the client's connection."""


class Ingress:
    """The Ray Serve deployment `ingress`.

    replicas: handle to call the replicas. arguments: settings of Triptych by name, and `config`, the path of a TOML
        file.
    """

    def __init__(self, replicas: DeploymentHandle, arguments: Mapping[str, Any]) -> None:
        settings = read(arguments)
        start_logging(settings.log_level, settings.log_format)
        self._app = Forwarder(replicas, settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The ASGI application that Ray Serve runs."""
        return self._app


class Forwarder:
    """An ASGI application that forwards each HTTP request to a replica. It closes WebSockets at once.

    replicas: handle to call the replicas.
    """

    def __init__(self, replicas: DeploymentHandle, settings: Settings) -> None:
        self._replicas = replicas
        self._streaming = replicas.options(stream=True)
        self._settings = settings
        self._names = ModelNames(pairs(settings.alias))
        self._keys = settings.keys()
        memory = settings.max_request_memory or default_memory_bytes(usable_memory_bytes())
        # Ray Serve limits the number of requests.
        self._door = Door(sys.maxsize, memory // BODY_DIVISOR, settings.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._handle_http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, has_entered = 0, False
        held: Scope = {}

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            self._door.receive(held, received)
            return message

        request = Request(portable_scope(scope), receive_counted)
        held["path"] = _path(request)
        send = _without_second_request_id(request, send)
        try:
            body = b""
            if self._may_have_body(request):
                self._door.enter(held, request.headers)
                has_entered = True
                body = await self._read_body(request)
            if (request.method, request.scope["path"]) == ("GET", "/metrics"):
                await self._send_metrics(request, send)
            else:
                await self._forward(request, body, send)
        except ClientGone:
            pass
        except BackPressureError:
            full = Overloaded("all replicas are full", REPLICAS.refusal("of Ray Serve"), retry_after=1)
            await self._send_error(request, send, full)
        except DeploymentUnavailableError:
            await self._send_error(request, send, NotReady("no replica could be started", retry_after=5))
        except RequestError as error:
            await self._send_error(request, send, error)
        finally:
            if has_entered:
                self._door.leave(held)

    def _may_have_body(self, request: Request) -> bool:
        """Whether to read a request's body: its key is valid, it needs no key, or its body may have the key."""
        path, key = _path(request), sent_key(request.headers)
        has_own_secret = has_secret(path) or (not key and (request.method, path) in KEYS_IN_FIELDS)
        return not self._keys or has_own_secret or self._keys.find(key) is not None

    async def _read_body(self, request: Request) -> bytes:
        """Read the whole body, under the largest limits of the path. The replica applies the exact limits of the route.

        Raises BodyTooLarge, BodyTimeout, Overloaded, or ClientGone if the client disconnects.
        """
        settings, path = self._settings, _path(request)
        largest, seconds = settings.max_body_bytes, settings.body_timeout_seconds
        if is_form(request):
            largest = max(largest, settings.max_audio_bytes, settings.max_document_bytes)
            seconds = max(settings.audio_timeout_seconds, settings.document_timeout_seconds)
        elif path.startswith(SEQUENCE_SETS):
            largest = MAX_SET_BYTES
        elif is_chat(path):
            largest = settings.max_chat_body_bytes
        elif path in LIVE_PATHS or (path.startswith("/models/") and is_recording(request)):
            largest, seconds = max(largest, settings.max_audio_bytes), settings.audio_timeout_seconds
        return await receive_body(request, largest, seconds)

    async def _forward(self, request: Request, body: bytes, send: Send) -> None:
        """Send a request to a replica, and to another replica if the first is lost before its answer has begun.

        Raises NotReady if the second replica is lost too, and ReplicaLost if the answer had begun.
        """
        handle = self._streaming
        if model := await self._model(request.scope["path"], body):
            handle = handle.options(multiplexed_model_id=model)
        for attempt in range(1, ATTEMPTS + 1):
            begun = False
            response = handle.answer.remote(request.scope, body)
            try:
                async for messages in response:
                    for message in messages:
                        begun = True
                        await send(message)
                return
            except _LOST as error:
                log.warning("attempt %d: the replica was lost (%s)", attempt, type(error).__name__)
                response.cancel()
                if begun:
                    raise ReplicaLost("the replica was lost after its answer had begun") from None
            except BaseException:
                response.cancel()
                raise
        raise NotReady(f"{ATTEMPTS} replicas were lost while they worked on this request", retry_after=5)

    async def _model(self, path: str, body: bytes) -> str:
        """The model by which the replica is chosen; empty for any replica."""
        if not self._settings.on_demand:
            return ""
        if len(body) > MAX_INLINE_BYTES:
            name = await asyncio.to_thread(requested_model, path, body)
        else:
            name = requested_model(path, body)
        # An alias that is also the name of a model only chooses another replica.
        return self._names.resolve(name, ()) if name else ""

    async def _send_metrics(self, request: Request, send: Send) -> None:
        """Answer with the metrics of all replicas.

        The request is first sent to one replica, which checks the API key. If it refuses, its answer is passed on.
        """
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._forward(request, b"", keep)
        if messages[0]["status"] == 200:
            pages = await self._replicas.broadcast("metrics_page").results_async(
                timeout_s=METRICS_SECONDS, return_exceptions=True
            )
            page = gather(dict(found for found in pages if not isinstance(found, BaseException)))
            await Response(page, media_type=CONTENT_TYPE)(request.scope, request.receive, send)
        else:
            for message in messages:
                await send(message)

    async def _send_error(self, request: Request, send: Send, error: RequestError) -> None:
        shape = error_shape(request, self._settings.dialect_errors)
        headers = {}
        if error.status in (429, 503):
            headers["retry-after"] = str(error.retry_after or 1)
        if error.status == 408:
            headers["connection"] = "close"
        content = dumps(shape.render(error, request.headers.get("x-request-id", "")))
        response = Response(content, shape.status(error), headers, "application/json")
        await response(request.scope, request.receive, send)


def _path(request: Request) -> str:
    """The path of a request as the replica reads it."""
    return without_slash(request.scope["path"])


def _without_second_request_id(request: Request, send: Send) -> Send:
    """Return a `send` that removes the replica's `X-Request-Id` header, because Ray Serve adds the same header."""
    known = (b"x-request-id", request.headers.get("x-request-id", "").encode("latin-1"))

    async def send_once(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [pair for pair in message["headers"] if tuple(pair) != known]}
        await send(message)

    return send_once


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Confirm the startup and the shutdown of the ASGI lifespan. They need no other work."""
    for _ in range(2):
        await send({"type": (await receive())["type"] + ".complete"})
