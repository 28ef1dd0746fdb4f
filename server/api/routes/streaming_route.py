"""Routes whose answer can be sent as a stream of events, or whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from server.api.bodies.json_answer import MAX_INLINE, json_answer
from server.api.bodies.sse import SERVER_SENT_EVENTS, EventStream, EventWriter, StreamFormat
from server.api.entry.rejections import count_error
from server.api.routes.route import BodyT, ResultT, Route, Spec, call_headers, leaving_on_disconnect
from server.api.state import State, of
from server.api.telemetry.breakdown import breakdown_headers, record_stages
from server.errors import ClientGone, RequestError
from server.ipc.client.call import Call
from server.operations.generating.generation_run import Run, check_complete
from server.system.loop_iterations import next_iteration

DeltaT = TypeVar("DeltaT")
RenderedT = TypeVar("RenderedT", contravariant=True)


class Renderer(Protocol[DeltaT, RenderedT]):
    """Writes one answer in a dialect's format: as one JSON value, or as the bytes of a stream. Used for one request."""

    def whole(self, result: RenderedT) -> Any:
        """The JSON value of an answer that is not streamed."""

    def deltas(self, deltas: list[DeltaT]) -> bytes:
        """Render new parts of the answer as bytes of the stream. Empty bytes are not sent."""

    def end(self, result: RenderedT) -> bytes:
        """The last bytes of a successful stream. result: the whole result."""

    def error(self, error: RequestError, request_id: str) -> bytes:
        """The last bytes of a failed stream: the error in the format of the stream."""


class StreamingSpec(Spec, Protocol):
    """A specification whose result can be streamed. `stream`: whether the client asks for a stream."""

    @property
    def stream(self) -> bool: ...


StreamingSpecT = TypeVar("StreamingSpecT", bound=StreamingSpec)


@dataclass(frozen=True, kw_only=True)
class StreamingRoute(
    Route[BodyT, StreamingSpecT, Run[DeltaT, ResultT]], Generic[BodyT, StreamingSpecT, DeltaT, ResultT]
):
    """A route whose result can be streamed.

    Nothing is sent before the first part of the answer, so that a failure until then still gets its HTTP status, unless
    the model loads for more than `COMMIT_SECONDS`. A later failure is sent as one error event, and the stream ends
    without its usual end event.

    parse: converts a body to a specification. Raises InvalidRequest.
    renderer: creates the renderer of one request, from its body and its started run.
    format: media type and pings of the stream.
    reports_timeouts: the renderer can show that the deadline has ended an answer. On other routes this is an error.
    """

    parse: Callable[[BodyT], StreamingSpecT]
    renderer: Callable[[BodyT, Any], Renderer[DeltaT, ResultT]]
    format: StreamFormat = SERVER_SENT_EVENTS
    reports_timeouts: bool = False

    async def respond(self, request: Request) -> Response:
        state = of(request)
        body = await self.read(request, state)
        record_stages(request)
        call = self.call(request, state, body)
        try:
            spec = await self.specify(request, state, call, body, self.parse)
            with self.renaming(body), leaving_on_disconnect(request, call):
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
                        answer = await json_answer(lambda: renderer.whole(run.result()), run.answer_size, pool, call)
                        answer.headers.update(call_headers(call) | breakdown_headers(request, call))
                        return answer
                first = await run.begin()
        except BaseException:
            call.close()
            raise
        stream = _Stream(self, state, call, run, renderer, first, request.scope)
        return EventStream(stream.events, call.leave, self.format, headers=call_headers(call))

    def check_time(self, run: Run[Any, Any]) -> None:
        """Raise DeadlineExceeded if the deadline has ended the answer, unless the renderer can show that."""
        if not self.reports_timeouts:
            check_complete(run)


@dataclass
class _Stream(Generic[DeltaT, ResultT]):
    """One streamed answer. first: the parts of the answer that have arrived already."""

    route: StreamingRoute[Any, Any, DeltaT, ResultT]
    state: State
    call: Call
    run: Run[DeltaT, ResultT]
    renderer: Renderer[DeltaT, ResultT]
    first: list[DeltaT]
    scope: Scope

    async def events(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """Write the events of the answer directly to the connection, in the call that receives them from the worker.

        Yields bytes that the connection cannot take yet. An error becomes the last event.
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
        """Write or yield the events of the answer, as `events` does. Raises RequestError for a failed answer."""
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
    """A streamed answer whose HTTP status is sent while its model is still loading. preparing: task that loads it."""

    route: StreamingRoute[Any, Any, DeltaT, ResultT]
    state: State
    call: Call
    body: Any
    spec: Any
    preparing: asyncio.Task[None]
    scope: Scope

    async def events(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """Yield a ping, and, when the model is loaded, the events of the answer. An error becomes the last event."""
        metrics, route, call = self.state.runtime.metrics, self.route, self.call
        if route.format.ping:
            yield route.format.ping
        metrics.streams_open.inc()
        renderer: Renderer[DeltaT, ResultT] | None = None
        try:
            with call, route.renaming(self.body):
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
