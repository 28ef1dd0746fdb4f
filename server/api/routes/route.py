"""Records of routes: request schema, parsing, operation, rendering and error format. A dialect is a list of routes.

`respond` does the same for all routes: read the body, parse it, run the operation while watching the connection, and
render the result. `streaming_route` has the routes with streamed answers. A `SharedPath` is one path of several
dialects.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.body import is_large, read_json, validated
from server.api.bodies.body_limits import body_limits
from server.api.bodies.form import is_form, read_fields
from server.api.bodies.json_answer import MAX_INLINE, json_answer
from server.api.bodies.json_pieces import weight
from server.api.bodies.sse import watch_disconnect
from server.api.entry.scope import CALL, KEY_LIMITS, OPERATION
from server.api.fields.fields import Body
from server.api.fields.ignored_parameters import HEADER as IGNORED_PARAMETERS
from server.api.fields.ignored_parameters import header_value, ignored_parameters
from server.api.fields.keep_alive import keep_alive_seconds
from server.api.fields.keys import KEY_DEFERRED, authorize, read_unverified
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorShape
from server.api.state import State, arrival, cache_salt, of
from server.api.telemetry.breakdown import breakdown_headers, record_stages
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.cost import Cost
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.system.loop_iterations import next_iteration


class Spec(Protocol):
    """The input of an operation. `cost` returns upper bounds of the work before any of it is done."""

    def cost(self, model: ServedModel) -> Cost: ...


COMMIT_SECONDS = 15.0
"""If a stream's model is still loading after this time, the HTTP status is sent, so that proxies do not give up."""
TRUNCATED_INPUTS = "X-Truncated-Inputs"
"""Response header: indices of the inputs that were shortened because they were too long."""
ERROR_FORMAT = "x-error-format"
"""Request header: `native` or `tei`, the error format for routes that both dialects have."""
ERROR_SHAPE = "triptych.error_shape"
"""Key in the ASGI scope: the `ErrorShape` of a request whose path belongs to several dialects, once it is known."""

BodyT = TypeVar("BodyT", bound=BaseModel)
SpecT = TypeVar("SpecT", bound=Spec)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class Route(ABC, Generic[BodyT, SpecT, ResultT]):
    """A route that runs one operation.

    path: may contain parameters, as in `/models/{model}`. Their values become fields of the body.
    operation: name of the operation, one of those in `ServedModel.operations`.
    name: operation id in the OpenAPI document, if it differs from `operation`.
    field: if several dialects share the path, a field that only bodies of this dialect have.
    description: text for the OpenAPI document.
    body, answer: schemas of the request and of the answer.
    example: a valid request and its answer, for the OpenAPI document.
    run: function that performs the operation.
    aliases: further paths, which the OpenAPI document leaves out.
    errors: error format.
    takes_forms: the body may also be a form.
    takes_any_content_type: the body is JSON, whatever its content type says.
    key_field: field of the body that may hold the API key; empty if only headers may.
    """

    path: str
    method: ClassVar[str] = "POST"
    operation: str
    name: str = ""
    field: str = ""
    description: str
    body: type[BodyT]
    answer: type[BaseModel]
    example: tuple[Mapping[str, Any], Any]
    run: Callable[[Runtime, Call, SpecT], Awaitable[ResultT]]
    aliases: tuple[str, ...] = ()
    errors: ErrorShape = NATIVE_ERRORS
    takes_forms: bool = False
    takes_any_content_type: bool = False
    key_field: str = ""
    media_type: ClassVar[str] = "application/json"
    fields_in_query: ClassVar[bool] = False
    """Whether the query contains the fields of `body`. The body of the request is then a stream of audio."""

    @property
    def operation_id(self) -> str:
        return self.name or self.operation

    @abstractmethod
    async def respond(self, request: Request) -> Response:
        """Answer one request. Raises RequestError."""

    async def read(self, request: Request, state: State) -> BodyT:
        """Receive and validate the body. Raises RequestError, such as Unauthorized if the request has no valid key."""
        limits = body_limits(state, self.operation)
        reading = (
            read_fields(request, limits)
            if self.takes_forms
            else read_json(request, limits, needs_content_type=not self.takes_any_content_type)
        )
        value = await read_unverified(request, reading)
        authorize(request, state, self.key_field, value.get(self.key_field) if isinstance(value, dict) else None)
        return await validated(request, value, self.body)

    async def specify(
        self, request: Request, state: State, call: Call, body: BodyT, parse: Callable[[BodyT], SpecT]
    ) -> SpecT:
        """Convert a body to the specification of the operation, in a thread if the body is large.

        Adds the names of dropped parameters to `call`. parse: converts the body. Raises InvalidRequest.
        """

        def convert() -> SpecT:
            call.ignore(ignored_parameters(body))
            return parse(body)

        spec = await state.runtime.pools.parse.run(convert, call) if is_large(request) else convert()
        return self.with_default_model(state, spec)

    def renaming(self, body: BodyT) -> contextlib.AbstractContextManager[None]:
        """Context manager that replaces field names in errors of the operation by those of the request."""
        return self.errors.renaming(body.field_names() if isinstance(body, Body) else {})

    def with_default_model(self, state: State, spec: SpecT) -> SpecT:
        """If the operator has set a default model for the path, add it to a specification without a model."""
        default = state.runtime.names.defaults.get(self.path)
        if default is not None and getattr(spec, "model", default) is None:
            spec = replace(spec, model=default)  # type: ignore[type-var]
        return spec

    async def start(self, state: State, call: Call, spec: SpecT) -> ResultT:
        """Wait until the model is loaded, run the operation, and return its result."""
        await state.runtime.prepare(call, self.operation, spec)
        return await self.run(state.runtime, call, spec)

    async def prepare(self, state: State, call: Call, spec: SpecT, is_stream: bool) -> asyncio.Task[None] | None:
        """Load the model that a request needs, and wait until it is loaded. Returns None.

        For a stream, the wait ends after `COMMIT_SECONDS`, and the task that continues to load is returned.
        """
        if state.runtime.registry is None:
            return None
        preparing = asyncio.create_task(state.runtime.prepare(call, self.operation, spec), name="prepare")
        try:
            done, _ = await asyncio.wait({preparing}, timeout=COMMIT_SECONDS if is_stream else None)
        except BaseException:
            preparing.cancel()
            raise
        if not done:
            return preparing
        await preparing
        return None

    def call(self, request: Request, state: State, body: BodyT) -> Call:
        """Create the `Call` for a request, which has its time limits and groups its work in the engine."""
        deadline = state.deadline(request, getattr(body, "timeout_ms", None))
        key = request.scope.get(KEY_LIMITS)
        queue_seconds = state.settings.queue_timeout_seconds
        call = Call(state.runtime.client, deadline, arrival(request), cache_salt(request), key, queue_seconds)
        request.scope[CALL] = call
        request.scope[OPERATION] = self.operation
        registry = state.runtime.registry
        keep_alive = None if registry is None else getattr(body, "keep_alive", None)
        if registry is not None and keep_alive not in (None, ""):
            seconds = keep_alive_seconds(keep_alive)
            call.on_close(lambda: registry.keep(call, seconds))  # before its models are released
        return call


@dataclass(frozen=True, kw_only=True)
class JsonRoute(Route[BodyT, SpecT, ResultT]):
    """A route that answers with one JSON document.

    parse: converts a body to a specification. Raises InvalidRequest.
    render: creates the JSON value of the answer from the body and the result.
    """

    parse: Callable[[BodyT], SpecT]
    render: Callable[[BodyT, ResultT], Any]

    async def respond(self, request: Request) -> Response:
        state = of(request)
        body = await self.read(request, state)
        record_stages(request)
        call = self.call(request, state, body)
        try:
            spec = await self.specify(request, state, call, body, self.parse)
            with self.renaming(body), leaving_on_disconnect(request, call):
                await next_iteration()
                result = await self.start(state, call, spec)
        except BaseException:
            call.close()
            raise
        size = weight(result, MAX_INLINE)
        response = await json_answer(lambda: self.render(body, result), size, state.runtime.pools.render, call)
        if more := call_headers(call) | breakdown_headers(request, call):
            response.headers.update(more)
        return response


@dataclass(frozen=True)
class SharedPath:
    """Routes of several dialects on one path. The route is chosen whose `field` the body contains.

    routes: the first one answers bodies that have none of the fields.
    """

    routes: Sequence[Route[Any, Any, Any]]

    async def respond(self, request: Request) -> Response:
        """Answer one request by the route of its dialect. Raises InvalidRequest for fields of two dialects."""
        state = of(request)
        limits = body_limits(state)
        routes = [route for route in self.routes if route.takes_forms] if is_form(request) else self.routes
        body = await read_unverified(request, (read_fields if routes else read_json)(request, limits))
        found = [route for route in routes if isinstance(body, dict) and route.field in body]
        if len(found) > 1 and KEY_DEFERRED not in request.scope:
            names = " and ".join(f"`{route.field}`" for route in found)
            raise InvalidRequest(
                f"{names} belong to different dialects of this route; send one of them", found[1].field
            )
        route = found[0] if found else routes[0]
        request.scope[ERROR_SHAPE] = route.errors
        return await route.respond(request)


def call_headers(call: Call) -> dict[str, str]:
    """Response headers that name shortened inputs and dropped parameters of a request; empty if there are none."""
    headers = {}
    if call.truncated_inputs:
        headers[TRUNCATED_INPUTS] = ",".join(map(str, call.truncated_inputs))
    if call.ignored:
        headers[IGNORED_PARAMETERS] = header_value(call.ignored)
    return headers


@contextlib.contextmanager
def leaving_on_disconnect(request: Request, call: Call) -> Iterator[None]:
    """Context manager inside which a disconnect of the client ends the call. The body must have been read before."""
    watcher = asyncio.create_task(watch_disconnect(request.receive, call.leave))
    try:
        yield
    finally:
        watcher.cancel()
