"""Tracing: the span of a request, its child spans and attributes, the trace id from the client, and the settings."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from server.api.telemetry import tracing
from server.compose import _tracing
from server.errors import StartError
from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from server.ipc.wire.step_messages import Failed
from server.settings.read import load
from server.settings.settings import Settings
from tests.api.conftest import Bench

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "x-api-key": "SECRET-KEY", "x-request-id": "mine"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def bench(tmp_path: Path, spans: InMemorySpanExporter) -> Iterator[Bench]:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.team-a]\nkey = "SECRET-KEY"\n')
    made = Bench(tmp_path, Settings(api_key_file=keys))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    made.state.tracing = tracing.Tracing(provider)
    made.become_ready()
    yield made
    made.runtime.close()


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=HEADERS) as client:
        yield client


def tree(spans: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, ReadableSpan]]:
    """The span of the only request, and its child spans by name."""
    *children, root = spans.get_finished_spans()
    assert all(child.parent is not None and child.parent.span_id == root.context.span_id for child in children)
    assert "SECRET" not in "".join(span.to_json() for span in (*children, root))
    return root, {child.name: child for child in children}


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation(
    bench: Bench,
    http: httpx.AsyncClient,
    spans: InMemorySpanExporter,
    stream: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "triptych.access")
    body = {"prompt": "SECRET", "model": "decoder", "stream": stream}
    posted = asyncio.create_task(http.post("/generate", json=body))
    (row,) = await bench.sent_rows()
    await asyncio.sleep(0.08)  # longer than the stages below take together
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    hypothesis = Hypothesis([100, 101, 102], "length")
    bench.output(finished=[Finished(row.sequence_id, [hypothesis], 0.01, 0.02, 0.03)])
    await posted
    root, stages = tree(spans)
    assert (root.name, root.kind, root.status.status_code) == ("POST /generate", SpanKind.SERVER, StatusCode.UNSET)
    assert root.parent is not None and f"{root.parent.span_id:016x}" == PARENT_ID
    assert f"{root.context.trace_id:032x}" == TRACE_ID
    assert dict(root.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/generate",
        "http.response.status_code": 200,
        "triptych.request_id": "mine",
        "triptych.key.name": "team-a",
        "gen_ai.provider.name": "triptych",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "decoder",
        "gen_ai.response.model": "decoder",
        "gen_ai.usage.input_tokens": 6,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert set(stages) == {"tokenize", "queue", "prefill", "decode"}
    for name, expected in (("queue", 0.01), ("prefill", 0.02), ("decode", 0.03)):
        assert seconds(stages[name]) == pytest.approx(expected, abs=0.001)
    order = [stages[name] for name in ("tokenize", "queue", "prefill", "decode")]
    assert [span.start_time for span in order] == sorted(span.start_time or 0 for span in order)
    assert (root.start_time or 0) <= (order[0].start_time or 0) and (order[-1].end_time or 0) <= (root.end_time or 0)
    (record,) = caplog.records
    assert vars(record)["fields"]["trace_id"] == TRACE_ID and vars(record)["fields"]["request_id"] == "mine"


async def test_an_embedding(bench: Bench, http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    posted = asyncio.create_task(http.post("/embed", json={"inputs": "SECRET", "model": "embedder"}))
    while not bench.sent:
        await asyncio.sleep(0)
    width = bench.infos["embedder"].hidden_size
    bench.output(encoded=[Encoded(bench.sent[0].sequence_id, 0, b"\0\0\x80\x3f" * width, 1)])
    assert (await posted).status_code == 200
    root, stages = tree(spans)
    assert set(stages) == {"tokenize", "encode"}
    assert (root.attributes or {})["gen_ai.operation.name"] == "embeddings"


async def test_a_failure_in_the_engine(bench: Bench, http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    body = {"prompt": "SECRET", "model": "decoder", "stream": True}
    posted = asyncio.create_task(http.post("/generate", json=body))
    (row,) = await bench.sent_rows()
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    for _ in range(20):
        await asyncio.sleep(0)
    bench.output(failed=[Failed(row.sequence_id, "engine_error", "SECRET")])
    assert (await posted).status_code == 200
    root, stages = tree(spans)
    assert root.status.status_code == StatusCode.ERROR and not root.status.description and not root.events
    assert (root.attributes or {})["error.type"] == "engine_error" and set(stages) == {"tokenize", "engine"}


@pytest.mark.parametrize(
    ("method", "path", "name", "status"),
    [
        ("POST", "/generate", "POST /generate", 422),
        ("GET", "/SECRET?SECRET=1", "GET", 404),
        ("SECRET", "/generate", "HTTP /generate", 405),
    ],
)
async def test_refused_requests(
    http: httpx.AsyncClient, spans: InMemorySpanExporter, method: str, path: str, name: str, status: int
) -> None:
    await http.request(method, path, json={"prompt": 1})
    (root,) = spans.get_finished_spans()
    assert root.name == name and root.status.status_code == StatusCode.UNSET
    assert (root.attributes or {})["http.response.status_code"] == status and "SECRET" not in root.to_json()


async def test_probes_are_not_traced(http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    for path in ("/health", "/ready", "/metrics", "/info"):
        assert (await http.get(path)).status_code == 200
    assert not spans.get_finished_spans()


async def test_a_request_without_a_trace_begins_one(http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    await http.post("/tokenize", json={"inputs": "a"}, headers={"traceparent": "not valid"})
    root, _ = tree(spans)
    assert root.parent is None and f"{root.context.trace_id:032x}" != TRACE_ID


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_missing_packages_and_settings_are_one_line(environment: pytest.MonkeyPatch) -> None:
    settings = load({"traces": True})
    with pytest.raises(StartError, match=r"^traces: set OTEL_EXPORTER_OTLP_ENDPOINT to the URL of a collector"):
        _tracing(settings)
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(StartError, match=r"^traces: the protocol must be http/protobuf, not 'grpc'"):
        _tracing(settings)
    environment.setitem(sys.modules, "server.api.telemetry.tracing", None)
    with pytest.raises(StartError, match=r"^traces: install the packages for it: pip install 'triptych\[otel\]'$"):
        _tracing(settings)


@pytest.mark.parametrize(("name", "expected"), [("", "triptych"), ("mine", "mine")])
def test_the_environment_configures_the_resource(environment: pytest.MonkeyPatch, name: str, expected: str) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    environment.setenv("OTEL_SERVICE_NAME", name)
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    made = _tracing(load({"traces": True}))
    assert made is not None
    resource: Resource = made._provider.resource
    assert resource.attributes["service.name"] == expected and resource.attributes["service.version"]
    assert resource.attributes["deployment.environment.name"] == "test"
    made.stop()


def test_without_traces_nothing_of_them_is_imported() -> None:
    code = "import json, sys, server.compose, server.cli; print(json.dumps(list(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not [name for name in json.loads(shown) if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
