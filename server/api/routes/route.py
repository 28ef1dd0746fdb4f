"""One record per route: request schema, parsing, operation, rendering and error shape. Every dialect is a list of them.

`respond` is the same for all routes: read the body, parse it, run the operation while watching the connection, render.
A `GetRoute` describes the server or its models and runs no operation. A `SharedPath` is one path of several dialects.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from server.api.bodies.body import is_large, read, read_json
from server.api.bodies.body_limits import body_limits
from server.api.bodies.form import is_form, read_fields
from server.api.bodies.json_answer import MAX_INLINE, json_answer, json_response
from server.api.bodies.json_pieces import weight
from server.api.bodies.sse import SERVER_SENT_EVENTS, EventStream, EventWriter, StreamFormat, watch_disconnect
from server.api.entry.rejections import count_error
from server.api.entry.scope import CALL, KEY_LIMITS, OPERATION
from server.api.fields.ignored_parameters import HEADER as IGNORED_PARAMETERS
from server.api.fields.ignored_parameters import header_value, ignored_parameters
from server.api.fields.keep_alive import keep_alive_seconds
from server.api.fields.keys import KEY_DEFERRED, authorize, read_unverified
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorShape
from server.api.state import State, arrival, cache_salt, of
from server.errors import ClientGone, InvalidRequest, RequestError
from server.ipc.client.call import Call
from server.operations.cost import Cost
from server.operations.generating.generation_run import Run, check_complete
from server.operations.runtime import Runtime, ServedModel
from server.system.loop_iterations import next_iteration


class Spec(Protocol):
    """The input of an operation. `cost` bounds its work before any of it is done."""

    def cost(self, model: ServedModel) -> Cost: ...


COMMIT_SECONDS = 15.0
"""A stream whose model is still loading after this time gets its status, so that proxies keep the connection."""
TRUNCATED_INPUTS = "X-Truncated-Inputs"
"""Response header: places, in the request, of the inputs that lost tokens because they were too long."""
ERROR_FORMAT = "x-error-format"
"""Request header: `native` or `tei`, the shape of errors on routes of both dialects."""
ERROR_SHAPE = "triptych.error_shape"
"""Key of the scope for the error shape of a request whose path belongs to several dialects."""

BodyT = TypeVar("BodyT", bound=BaseModel)
SpecT = TypeVar("SpecT", bound=Spec)
ResultT = TypeVar("ResultT")
DeltaT = TypeVar("DeltaT")
RenderedT = TypeVar("RenderedT", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Route(ABC, Generic[BodyT, SpecT, ResultT]):
    """A route that runs one operation.

    path: may contain parameters, as in `/models/{model}`. They are fields of the body.
    operation: name of the operation, as in `ServedModel.operations`.
    name: operation id in the OpenAPI document, if it differs from `operation`.
    field: a field that only bodies of this dialect have, if several dialects share the path.
    description: for the OpenAPI document.
    body, answer: schemas of the request and of the answer.
    example: a valid request and its answer, for the OpenAPI document.
    run: the operation itself.
    aliases: further paths, not in the OpenAPI document.
    errors: how errors are reported.
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

    @property
    def operation_id(self) -> str:
        return self.name or self.operation

    @abstractmethod
    async def respond(self, request: Request) -> Response:
        """Answer one request. Raises RequestError."""

    async def read(self, request: Request, state: State) -> BodyT:
        """The validated body. Raises Unauthorized for a body without a valid key, if the headers had none."""
        limits = body_limits(state, self.operation)
        reading = (
            read_fields(request, limits)
            if self.takes_forms
            else read_json(request, limits, needs_content_type=not self.takes_any_content_type)
        )
        value = await read_unverified(request, reading)
        authorize(request, state, self.key_field, value.get(self.key_field) if isinstance(value, dict) else None)
        return await read(request, self.body, limits)

    async def specify(
        self, request: Request, state: State, call: Call, body: BodyT, parse: Callable[[BodyT], SpecT]
    ) -> SpecT:
        """The specification of a body. A large body is converted in a thread. Raises InvalidRequest."""

        def convert() -> SpecT:
            call.ignore(ignored_parameters(body))
            return parse(body)

        spec = await state.runtime.pools.parse.run(convert, call) if is_large(request) else convert()
        return self.with_default_model(state, spec)

    def with_default_model(self, state: State, spec: SpecT) -> SpecT:
        """The specification; one without a model gets the default model of the path, if the operator has set one."""
        default = state.runtime.names.defaults.get(self.path)
        if default is not None and getattr(spec, "model", default) is None:
            spec = replace(spec, model=default)  # type: ignore[type-var]
        return spec

    async def start(self, state: State, call: Call, spec: SpecT) -> ResultT:
        """Run the operation, after its model is loaded."""
        await state.runtime.prepare(call, self.operation, spec)
        return await self.run(state.runtime, call, spec)

    async def prepare(self, state: State, call: Call, spec: SpecT, is_stream: bool) -> asyncio.Task[None] | None:
        """Load the model. Returns the task that still loads it after `COMMIT_SECONDS`, for a stream only."""
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
        """The engine work of a request, with its time limits."""
        deadline = state.deadline(request, getattr(body, "timeout_ms", None))
        key = request.scope.get(KEY_LIMITS)
        queue_seconds = state.settings.queue_timeout_seconds
        call = Call(state.runtime.client, deadline, arrival(request), cache_salt(request), key, queue_seconds)
        request.scope[CALL] = call
        request.scope[OPERATION] = self.operation
        keep_alive, registry = getattr(body, "keep_alive", None), state.runtime.registry
        if registry is not None and keep_alive not in (None, ""):
            seconds = keep_alive_seconds(keep_alive)
            call.on_close(lambda: registry.keep(call, seconds))  # before its models are released
        return call


@dataclass(frozen=True, kw_only=True)
class JsonRoute(Route[BodyT, SpecT, ResultT]):
    """A route that answers with one JSON document.

    parse: converts a body to a specification. Raises InvalidRequest.
    render: the JSON value of a result.
    """

    parse: Callable[[BodyT], SpecT]
    render: Callable[[BodyT, ResultT], Any]

    async def respond(self, request: Request) -> Response:
        state = of(request)
        body = await self.read(request, state)
        call = self.call(request, state, body)
        try:
            spec = await self.specify(request, state, call, body, self.parse)
            with self.errors.renaming():
                async with leaving_on_disconnect(request, call):
                    await next_iteration()
                    result = await self.start(state, call, spec)
        except BaseException:
            call.close()
            raise
        size = weight(result, MAX_INLINE)
        response = await json_answer(lambda: self.render(body, result), size, state.runtime.pools.render, call)
        response.headers.update(call_headers(call))
        return response


class Renderer(Protocol[DeltaT, RenderedT]):
    """Renders the result of one request of a `StreamingRoute`, whole or as a stream. One instance per request."""

    def whole(self, result: RenderedT) -> Any:
        """The JSON value of the answer without streaming."""

    def deltas(self, deltas: list[DeltaT]) -> bytes:
        """New deltas as bytes of the stream; empty bytes are not sent."""

    def end(self, result: RenderedT) -> bytes:
        """The last bytes of a complete stream."""

    def error(self, error: RequestError, request_id: str) -> bytes:
        """The last bytes of a stream that failed: the error in the format of the stream."""


class StreamingSpec(Spec, Protocol):
    """A specification whose result can be streamed."""

    @property
    def stream(self) -> bool: ...


StreamingSpecT = TypeVar("StreamingSpecT", bound=StreamingSpec)


@dataclass(frozen=True, kw_only=True)
class StreamingRoute(
    Route[BodyT, StreamingSpecT, Run[DeltaT, ResultT]], Generic[BodyT, StreamingSpecT, DeltaT, ResultT]
):
    """A route whose result can be read in parts.

    Nothing is sent before the first deltas, so that a failure until then still gets its HTTP status. A failure after
    the first byte is one error event, and the stream ends without its end event.

    parse: converts a body to a specification. Raises InvalidRequest.
    renderer: creates the renderer of one request, from its body and its submitted run.
    format: media type and pings of the stream.
    reports_timeouts: the renderer reports an answer that its deadline has ended. On other routes that is an error.
    """

    parse: Callable[[BodyT], StreamingSpecT]
    renderer: Callable[[BodyT, Any], Renderer[DeltaT, ResultT]]
    format: StreamFormat = SERVER_SENT_EVENTS
    reports_timeouts: bool = False

    async def respond(self, request: Request) -> Response:
        state = of(request)
        body = await self.read(request, state)
        call = self.call(request, state, body)
        try:
            spec = await self.specify(request, state, call, body, self.parse)
            with self.errors.renaming():
                async with leaving_on_disconnect(request, call):
                    await next_iteration()
                    preparing = await self.prepare(state, call, spec, spec.stream)
                    if preparing is not None:
                        late = _LateStream(self, state, call, body, spec, preparing, request.scope)
                        return EventStream(late.events, call.leave, self.format, headers=call_headers(call))
                    run = await self.run(state.runtime, call, spec)
                    renderer = self.renderer(body, run)
                    if not spec.stream:
                        # The deadline's timer would keep the request in memory after its answer.
                        with call:
                            await run.complete()
                            await next_iteration()
                            self.check_time(run)
                            await next_iteration()
                            pool = state.runtime.pools.render
                            answer = await json_answer(
                                lambda: renderer.whole(run.result()), run.answer_size, pool, call
                            )
                            answer.headers.update(call_headers(call))
                            return answer
                    first = await run.begin()
        except BaseException:
            call.close()
            raise
        stream = _Stream(self, state, call, run, renderer, first, request.scope)
        return EventStream(stream.events, call.leave, self.format, headers=call_headers(call))

    def check_time(self, run: Run[Any, Any]) -> None:
        """Raise DeadlineExceeded for an answer that its deadline has ended, unless the renderer reports that."""
        if not self.reports_timeouts:
            check_complete(run)


@dataclass
class _Stream(Generic[DeltaT, ResultT]):
    """One streamed answer, from the first deltas to the end."""

    route: StreamingRoute[Any, Any, DeltaT, ResultT]
    state: State
    call: Call
    run: Run[DeltaT, ResultT]
    renderer: Renderer[DeltaT, ResultT]
    first: list[DeltaT]
    scope: Scope

    async def events(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """Write deltas to the connection in the call that receives them from the worker.

        Yield the bytes that the connection cannot take yet.
        """
        metrics = self.state.runtime.metrics
        metrics.streams_open.inc()
        try:
            with self.call, self.route.errors.renaming():
                async with contextlib.aclosing(self.answer(writer)) as answer:
                    async for body in answer:
                        yield body
        except ClientGone:
            raise
        except RequestError as error:
            count_error(error, metrics, self.scope)
            yield self.renderer.error(error, self.scope["triptych.request_id"])
        finally:
            metrics.streams_open.dec()

    async def answer(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """The events of an answer that does not fail. Raises RequestError."""
        renderer = self.renderer

        def sink(deltas: list[DeltaT]) -> bool:
            frames = renderer.deltas(deltas)
            return not frames or writer.write(frames)

        if not sink(self.first):
            yield writer.take()
        while await self.run.forward(sink):
            yield writer.take()
        self.route.check_time(self.run)
        if self.run.answer_size < MAX_INLINE:
            yield renderer.end(self.run.result())
        else:
            yield await self.state.runtime.pools.render.run(lambda: renderer.end(self.run.result()), self.call)


@dataclass
class _LateStream(Generic[DeltaT, ResultT]):
    """A streamed answer whose status was sent while its model was loading. preparing: loads the model."""

    route: StreamingRoute[Any, Any, DeltaT, ResultT]
    state: State
    call: Call
    body: Any
    spec: Any
    preparing: asyncio.Task[None]
    scope: Scope

    async def events(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """The events of the answer, or of its failure. Pings are sent meanwhile."""
        metrics, route, call = self.state.runtime.metrics, self.route, self.call
        if route.format.ping:
            yield route.format.ping
        metrics.streams_open.inc()
        renderer: Renderer[DeltaT, ResultT] | None = None
        try:
            with call, route.errors.renaming():
                await self.preparing
                run = await route.run(self.state.runtime, call, self.spec)
                renderer = route.renderer(self.body, run)
                stream = _Stream(route, self.state, call, run, renderer, await run.begin(), self.scope)
                async with contextlib.aclosing(stream.answer(writer)) as answer:
                    async for body in answer:
                        yield body
        except ClientGone:
            raise
        except RequestError as error:
            count_error(error, metrics, self.scope)
            request_id = self.scope["triptych.request_id"]
            if renderer is None:
                yield route.format.failure(route.errors.render(error, request_id))
            else:
                yield renderer.error(error, request_id)
        finally:
            self.preparing.cancel()
            metrics.streams_open.dec()


@dataclass(frozen=True, kw_only=True)
class GetRoute:
    """A `GET` route of a dialect that describes the server or its models.

    render: from the state and the parameters, the JSON value of the answer, or a coroutine that returns it. Raises
        RequestError.
    parameters: names and descriptions of parameters in the query, or in a form. If it is empty, the parameters of a
        request are ignored.
    takes_post: the route also answers `POST`.
    The other fields are those of `Route`.
    """

    path: str
    method: ClassVar[str] = "GET"
    name: str
    description: str
    answer: type[BaseModel]
    example: Any
    render: Callable[[State, Mapping[str, str]], Any]
    errors: ErrorShape = NATIVE_ERRORS
    aliases: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    takes_post: bool = False
    key_field: str = ""

    @property
    def operation_id(self) -> str:
        return self.name

    async def respond(self, request: Request) -> Response:
        """Answer one request. Raises RequestError."""
        state = of(request)
        given: dict[str, Any] = {}
        if self.parameters:
            given = dict(request.query_params)
            if request.headers.get("content-length", "0") != "0":
                fields = await read_unverified(request, read_fields(request, body_limits(state)))
                given |= fields if isinstance(fields, dict) else {}
        authorize(request, state, self.key_field, given.get(self.key_field))
        unknown = next((name for name in given if name not in self.parameters), None)
        if unknown is not None:
            raise InvalidRequest(f"this route takes only {', '.join(f'`{name}`' for name in self.parameters)}")
        if state.runtime.registry is not None:
            await state.runtime.registry.discover()
        found = self.render(state, {**given, **request.path_params})
        return json_response(await found if isinstance(found, Awaitable) else found)


@dataclass(frozen=True)
class SharedPath:
    """Several dialects on one path. A body's dialect is the one whose `field` it has.

    routes: in order of precedence; the first one answers bodies without any of the fields.
    """

    routes: Sequence[Route[Any, Any, Any]]

    async def respond(self, request: Request) -> Response:
        """Answer one request in its dialect. Raises RequestError, InvalidRequest for fields of two dialects."""
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
    """Headers that tell what the server changed in a request: shortened inputs and dropped parameters."""
    headers = {}
    if call.truncated_inputs:
        headers[TRUNCATED_INPUTS] = ",".join(map(str, call.truncated_inputs))
    if call.ignored:
        headers[IGNORED_PARAMETERS] = header_value(call.ignored)
    return headers


@contextlib.asynccontextmanager
async def leaving_on_disconnect(request: Request, call: Call) -> AsyncIterator[None]:
    """Context manager: inside its block, a disconnect of the client ends the call. The body must have been read."""
    watcher = asyncio.create_task(watch_disconnect(request.receive, call.leave))
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
