"""The parts of the Ray Serve application that run without Ray."""

from __future__ import annotations

import asyncio
import importlib
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send

from server.errors import StartError
from server.ray_serve.arguments import check_exposure, read
from server.ray_serve.autoscaling import scale_on_waiting
from server.ray_serve.gathered_metrics import gather
from server.ray_serve.messages import answer, portable_scope

REPOSITORY = Path(__file__).resolve().parents[2]
SCOPE: Scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}


async def test_messages_are_yielded_as_they_come() -> None:
    read_events = asyncio.Semaphore(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"1", b"2"):
            await send({"type": "http.response.body", "body": request["body"] + part, "more_body": True})
            await read_events.acquire()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    batches: list[list[Any]] = []
    async with aclosing(answer(app, SCOPE, b"x")) as messages:
        async for batch in messages:
            batches.append([message.get("body", message.get("status")) for message in batch])
            read_events.release()
    assert batches == [[200, b"x1"], [b"x2"], [b""]]


async def test_closing_the_answer_is_a_disconnect() -> None:
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.body", "body": b"too late"})
        left.set()

    messages = answer(app, SCOPE, b"")
    assert [message["status"] for message in await anext(messages)] == [200]
    await messages.aclose()
    await left.wait()


async def test_cancelling_the_reader_is_a_disconnect() -> None:
    waiting, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        waiting.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async def read_all() -> None:
        async for _ in answer(app, SCOPE, b""):
            pass

    reader = asyncio.create_task(read_all())
    await waiting.wait()
    reader.cancel()
    await left.wait()


async def test_a_fault_of_the_application_reaches_the_reader() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("a fault")

    received: list[Message] = []
    with pytest.raises(ValueError, match="a fault"):
        async for batch in answer(app, SCOPE, b""):
            received += batch
    assert [message["type"] for message in received] == ["http.response.start"]


def test_the_scope_loses_what_cannot_travel_and_the_prefix_of_the_application() -> None:
    scope = SCOPE | {"app": object(), "state": {}, "root_path": "/llm", "path": "/llm/generate", "client": ("a", 1)}
    assert portable_scope(scope) == SCOPE | {"client": ("a", 1)}


def metrics_page(requests: int, seconds: float, running: int) -> bytes:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ["route"], registry=registry).labels("/ready").inc(requests)
    Histogram("seconds", "Seconds.", buckets=(1.0,), registry=registry).observe(seconds)
    Gauge("running", "Running.", registry=registry).set(running)
    return generate_latest(registry)


def test_metrics_of_all_replicas_are_on_one_page() -> None:
    page = gather({"b": metrics_page(5, 0.5, 1), "a": metrics_page(2, 2.0, 0)})
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    assert {name: family.type for name, family in families.items() if not name.endswith("created")} == {
        "requests": "counter",
        "seconds": "histogram",
        "running": "gauge",
    }
    samples = {
        (sample.name, sample.labels["replica"], sample.labels.get("le")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["requests_total", "a", None] == 2
    assert samples["requests_total", "b", None] == 5
    assert samples["running", "b", None] == 1
    assert (samples["seconds_bucket", "a", "1.0"], samples["seconds_bucket", "b", "1.0"]) == (0, 1)
    assert page.count(b"# TYPE requests_total counter") == 1


@dataclass
class Context:
    """A stand-in for the metrics that Ray Serve gives an autoscaling policy."""

    current_num_replicas: int = 2
    target_num_replicas: int = 2
    running: float = 0
    waiting: float = 0
    total_num_requests: float = 0
    total_queued_requests: float | None = None
    config: Any = field(default_factory=lambda: SimpleNamespace(target_ongoing_requests=10.0))

    @property
    def aggregated_metrics(self) -> dict[str, dict[str, float]]:
        return {"running_sequences": {"a": self.running, "b": 0}, "waiting_sequences": {"a": self.waiting}}


@pytest.mark.parametrize(
    ("context", "replicas"),
    [
        (Context(running=20, waiting=0, total_num_requests=200), 2),  # busy, but nothing waits
        (Context(running=20, waiting=2, total_num_requests=22), 2),  # a burst
        (Context(running=20, waiting=10, total_num_requests=30), 3),
        (Context(running=20, waiting=40, total_num_requests=60), 6),
        (Context(running=0, waiting=3), 6),  # no replica is ready: all load or hang
        (Context(running=20, total_num_requests=20, total_queued_requests=20), 4),  # queued before the replicas
        (Context(running=5, total_num_requests=5), 1),
        (Context(), 0),  # Ray Serve applies `min_replicas`
        (Context(current_num_replicas=0, target_num_replicas=1, total_num_requests=3), 1),
    ],
)
def test_replicas_follow_the_waiting_sequences(context: Context, replicas: int) -> None:
    assert scale_on_waiting(context) == (replicas, {})


def test_arguments_are_settings_with_their_messages() -> None:
    settings = read({"models": "llm=/models/llm,mt=/models/mt", "max_batch_rows": "4", "prefix_cache": "false"})
    assert (settings.models, settings.max_batch_rows) == (["llm=/models/llm", "mt=/models/mt"], 4)
    assert settings.prefix_cache is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modles": "llm=/models/llm"}, "modles is not a setting of Triptych"),
        ({"max_batch_rows": "0"}, "max_batch_rows: Input should be greater than or equal to 1, not '0'"),
        ({"port": "9000"}, "port: Ray Serve binds the address; set http_options in its configuration"),
        (
            {"metrics_port": "9001"},
            "metrics_port: only `triptych serve` has this setting; Ray Serve has a listener of its own",
        ),
        ({"config": "/nowhere.toml"}, "config: cannot read /nowhere.toml: No such file or directory"),
    ],
)
def test_an_invalid_argument_is_one_line(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(StartError) as caught:
        read(arguments)
    assert str(caught.value) == message


def test_the_configuration_of_deploy_is_valid() -> None:
    configuration = yaml.safe_load((REPOSITORY / "deploy/ray/serve.yaml").read_text())
    (application,) = configuration["applications"]
    settings = read(application["args"])
    assert settings.models == ["llm=/models/llm"]
    replicas, ingress = application["deployments"]
    assert (replicas["name"], ingress["name"]) == ("triptych", "ingress")
    for path in (application["import_path"], replicas["autoscaling_config"]["policy"]["policy_function"]):
        module, _, name = path.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_a_key_is_required() -> None:
    with pytest.raises(StartError, match="no API key is set"):
        check_exposure(read({}))
    check_exposure(read({"insecure_no_auth": "true"}))
    check_exposure(read({"api_keys": "secret"}))
