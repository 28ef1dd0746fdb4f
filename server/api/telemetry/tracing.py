"""OpenTelemetry traces: a span for each request, with child spans for its stages. Needs the extra `triptych[otel]`.

The span continues the trace in the client's header `traceparent`. Its children are `tokenize`, `render template`, and
the engine's stages: `queue`, `prefill` and `decode`, or `encode` for an encoder. If a request has several sequences,
the stages are those of the sequence that ended last. The OTEL_* environment variables configure exporter, sampler and
resource. This module is imported only if traces are on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from starlette.types import Scope

from server.api.entry.scope import CALL, KEY_LIMITS, OPERATION
from server.api.telemetry import trace_attributes as names
from server.api.telemetry.telemetry import version
from server.errors import StartError
from server.ipc.client.call import Call
from server.operations.stages import STAGES, Stage

FLUSH_SECONDS = 2.0
"""Maximum time for sending the last spans when the server stops."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


class RequestSpan:
    """The span of one request, from its arrival to its last byte.

    span: the OpenTelemetry span.
    method: HTTP method of the request, for the name of the span.
    stages: filled by `server.operations.stages` while the request is in progress.
    """

    def __init__(self, span: Span, method: str) -> None:
        self.span = span
        self.method = method
        self.stages: list[Stage] = []
        STAGES.set(self.stages)

    @property
    def trace_id(self) -> str:
        """Id of the trace, in hexadecimal."""
        return f"{self.span.get_span_context().trace_id:032x}"


class Tracing:
    """Starts and ends the spans of requests. provider: exports the spans."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("triptych", version())

    def begin(self, scope: Scope, headers: Mapping[str, str], arrival: float, request_id: str) -> RequestSpan:
        """Start the span of a request. arrival: time of arrival, in seconds of the monotonic clock."""
        method = scope["method"] if scope["method"] in names.METHODS else "_OTHER"
        shown = "HTTP" if method == "_OTHER" else method
        span = self._tracer.start_span(
            shown,
            propagate.extract(headers),
            SpanKind.SERVER,
            {names.METHOD: method, names.REQUEST_ID: request_id},
            start_time=_epoch_nanoseconds(arrival),
        )
        return RequestSpan(span, shown)

    def end(self, request: RequestSpan, scope: Scope, status: int, route: str | None) -> None:
        """End the span of a request and add its stages.

        status: HTTP status of the response; 499 if the client disconnected before a status was sent.
        route: template of the path, or None if no route has the path.
        """
        span = request.span
        attributes: dict[str, Any] = {names.STATUS: status}
        if route is not None:
            attributes[names.ROUTE] = route
            span.update_name(f"{request.method} {route}")
        if KEY_LIMITS in scope:
            attributes[names.KEY_NAME] = scope[KEY_LIMITS].name
        call = scope.get(CALL)
        failure = str(status) if status >= 500 else ""
        if isinstance(call, Call):
            operation = scope[OPERATION]
            attributes |= {names.PROVIDER: "triptych", names.OPERATION: names.OPERATIONS.get(operation, operation)}
            if call.model:
                attributes |= {
                    names.REQUEST_MODEL: call.model,
                    names.RESPONSE_MODEL: call.model,
                    names.INPUT_TOKENS: call.prompt_tokens,
                    names.OUTPUT_TOKENS: call.completion_tokens,
                }
            if call.finish_reasons:
                attributes[names.FINISH_REASONS] = call.finish_reasons
            failure = call.failure or failure
        if failure:
            attributes[names.ERROR_TYPE] = failure
            span.set_status(Status(StatusCode.ERROR))
        span.set_attributes(attributes)
        context = set_span_in_context(span)
        for name, start, end in (*request.stages, *_engine_stages(call)):
            child = self._tracer.start_span(name, context, start_time=_epoch_nanoseconds(start))
            child.end(_epoch_nanoseconds(max(start, end)))
        span.end()

    def stop(self) -> None:
        """Send the last spans. Waits `FLUSH_SECONDS` at most."""
        # A thread that does not keep the process alive, because an exporter waits long for an unreachable endpoint.
        thread = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)


def start_tracing() -> Tracing:
    """Create a `Tracing` with the exporter that the OTEL_* environment variables configure.

    Raises StartError if they name no endpoint, or another protocol than http/protobuf.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        raise StartError(f"traces: set {_ENDPOINTS[1]} to the URL of a collector, such as http://localhost:4318")
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise StartError(f"traces: the protocol must be {_PROTOCOL}, not {protocol[:32]!r}; see {_PROTOCOLS[1]}")
    # Attributes given here would take precedence over those of the environment.
    from_environment = Resource.create()
    defaults = Resource({SERVICE_NAME: "triptych", SERVICE_VERSION: version()})
    has_name = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = defaults.merge(from_environment) if has_name else from_environment.merge(defaults)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def _engine_stages(call: object) -> Iterator[Stage]:
    """Yield the engine's stages of the sequence that ended last. If it was ended early, it has one stage, `engine`.

    call: the request's `Call`, or None if it never reached an operation.
    """
    if not isinstance(call, Call) or not call.submitted:
        return
    end = call.ended_at or time.monotonic()
    if call.stage_seconds is None:
        yield Stage("encode" if call.encoded else "engine", call.submitted, end)
        return
    queue, prefill, decode = call.stage_seconds
    decoding = max(call.submitted, end - decode)
    prefilling = max(call.submitted, decoding - prefill)
    yield Stage("queue", max(call.submitted, prefilling - queue), prefilling)
    yield Stage("prefill", prefilling, decoding)
    yield Stage("decode", decoding, end)


def _epoch_nanoseconds(seconds: float) -> int:
    """Convert a time of the monotonic clock, in seconds, to nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - seconds) * 1e9)
