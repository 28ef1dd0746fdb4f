"""The ingress and the replica of the Ray application, with stand-ins for Ray's handle and for our server.

The tests need the package ray, but no cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from server.errors import NotReady, StartError
from server.ipc.wire.descriptions import ModelSpec
from server.metrics import Metrics
from server.operations.on_demand.declared import DeclaredModel
from server.ray_serve import build, ingress, replica, router
from server.ray_serve.arguments import read
from server.ray_serve.ingress import Forwarder, ReplicaLost
from tests.waiting import HANG_SECONDS

START = {"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"mine"), (b"a", b"b")]}
END = {"type": "http.response.body", "body": b"done", "more_body": False}
PART = {"type": "http.response.body", "body": b"part ", "more_body": True}

Answer = Callable[[], AsyncGenerator[list[Any], None]]


class FakeResponse:
    """A stand-in for a response of Ray's handle. cancelled: whether `cancel` was called."""

    def __init__(self, batches: AsyncGenerator[list[Any], None]) -> None:
        self._batches = batches
        self.cancelled = False

    def __aiter__(self) -> AsyncIterator[list[Any]]:
        return self._batches

    def cancel(self) -> None:
        self.cancelled = True


class FakeHandle:
    """A stand-in for Ray's handle, which returns `answers` one after the other. requests: the requests it received."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[dict[str, Any], bytes]] = []
        self.responses: list[FakeResponse] = []
        self.models: list[str] = []
        self.answer = SimpleNamespace(remote=self._remote)

    def options(self, stream: bool = True, multiplexed_model_id: str | None = None) -> FakeHandle:
        assert stream
        self.models += [] if multiplexed_model_id is None else [multiplexed_model_id]
        return self

    def _remote(self, scope: dict[str, Any], body: bytes) -> FakeResponse:
        self.requests.append((scope, body))
        self.responses.append(FakeResponse(self._answers[len(self.requests) - 1]()))
        return self.responses[-1]


def answering(*batches: list[Any], error: Exception | None = None) -> Answer:
    async def batches_and_error() -> AsyncGenerator[list[Any], None]:
        for batch in batches:
            yield batch
        if error is not None:
            raise error

    return batches_and_error


async def post(
    handle: FakeHandle, path: str = "/generate", content: bytes = b"the body", **settings: Any
) -> httpx.Response:
    transport = httpx.ASGITransport(Forwarder(handle, read(settings)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.post(path, content=content, headers={"x-request-id": "mine"})


LOST = ActorDiedError()


async def test_an_answer_passes_with_its_body_and_without_a_second_request_id() -> None:
    handle = FakeHandle(answering([START], [PART, END]))
    response = await post(handle)
    assert (response.status_code, response.text) == (200, "part done")
    assert response.headers.get_list("a") == ["b"]
    assert "x-request-id" not in response.headers  # Ray Serve adds this header
    ((scope, body),) = handle.requests
    assert (scope["path"], body) == ("/generate", b"the body")
    assert not handle.responses[0].cancelled


async def test_a_request_without_any_answer_is_sent_to_another_replica() -> None:
    handle = FakeHandle(answering(error=LOST), answering([START, END]))
    response = await post(handle)
    assert (response.status_code, response.text) == (200, "done")
    assert handle.requests[0] == handle.requests[1]
    assert [answer.cancelled for answer in handle.responses] == [True, False]


async def test_an_answer_that_has_begun_is_cut_and_not_sent_again() -> None:
    handle = FakeHandle(answering([START, PART], error=LOST), answering([START, END]))
    with pytest.raises(ReplicaLost):
        await post(handle)
    assert len(handle.requests) == 1


async def test_a_request_that_loses_two_replicas_is_refused() -> None:
    response = await post(FakeHandle(*[answering(error=LOST)] * ingress.ATTEMPTS))
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json()["error"]["code"] == "not_ready"
    assert response.json()["error"]["request_id"] == "mine"


@pytest.mark.parametrize(
    ("error", "status"),
    [(BackPressureError(num_queued_requests=1, max_queued_requests=1), 429), (DeploymentUnavailableError("x"), 503)],
)
async def test_refusals_of_ray_have_the_shape_of_the_dialect(error: Exception, status: int) -> None:
    response = await post(FakeHandle(answering(error=error)), "/api/generate")
    assert response.status_code == status
    assert isinstance(response.json()["error"], str)  # an error in the shape of Ollama
    assert int(response.headers["retry-after"]) > 0


async def test_a_large_body_is_refused_before_any_replica_sees_it() -> None:
    handle = FakeHandle()
    assert (await post(handle, max_body_bytes=3)).status_code == 413
    assert handle.requests == []


@pytest.mark.parametrize(
    ("path", "kind", "method"),
    [
        ("/translate_file", "multipart/form-data; boundary=x", "POST"),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=x", "POST"),
        ("/models/speech", "audio/wav", "POST"),
        ("/allowed_sequences/titles", "application/x-ndjson", "PUT"),
        ("/v1/chat/completions", "application/json", "POST"),
    ],
)
async def test_bodies_have_the_limits_of_their_routes(path: str, kind: str, method: str) -> None:
    """Recordings, documents, conversations and sets of sequences are larger than other bodies."""
    handle = FakeHandle(answering([START, END]))
    transport = httpx.ASGITransport(Forwarder(handle, read({})))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = b"--x\r\n" + bytes(20 << 20)
        response = await client.request(method, path, content=body, headers={"content-type": kind})
        refused = await client.request(method, "/generate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200 and handle.requests[0][1] == body
    assert refused.status_code == 413 and len(handle.requests) == 1


@pytest.mark.parametrize(("announced", "count"), [(True, 4), (False, 2)])
async def test_the_bodies_in_memory_are_limited(announced: bool, count: int) -> None:
    """As many bodies as fit into a third of `max_request_memory`. One of unknown length counts as the largest."""
    going, arrived = asyncio.Event(), 0
    handle = FakeHandle(*[answering([START, END])] * 9)
    app = Forwarder(handle, read({"max_request_memory": "12M"}))

    async def body() -> AsyncIterator[bytes]:
        nonlocal arrived
        yield bytes((1 << 20) - 1)
        arrived += 1
        await going.wait()
        yield b"x"

    async def send() -> httpx.Response:
        headers = {"content-length": str(1 << 20)} if announced else {}
        return await client.post("/generate", content=body(), headers=headers)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        first = [asyncio.create_task(send()) for _ in range(count)]
        async with asyncio.timeout(HANG_SECONDS):
            while arrived < count:
                await asyncio.sleep(0)
        refused = await send()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert "max-request-memory" in refused.text
        going.set()
        assert [(await request).status_code for request in first] == [200] * count
        assert (await send()).status_code == 200, "the memory is free again"
    assert app._door.body_bytes == app._door.requests == 0


@pytest.mark.parametrize(
    ("path", "headers", "is_read"),
    [
        ("/generate", {}, False),
        ("/generate", {"authorization": "Bearer wrong"}, False),
        ("/generate", {"authorization": "Bearer the-key"}, True),
        ("/generate", {"x-api-key": "the-key"}, True),
        ("/translate", {}, True),  # LibreTranslate has the key in the body
        ("/translate/", {}, True),
        ("/translate", {"authorization": "Bearer wrong"}, False),
    ],
)
async def test_a_body_without_a_key_is_not_read(path: str, headers: dict[str, str], is_read: bool) -> None:
    """The replica refuses the request, without its body, in the format of the dialect."""
    handle = FakeHandle(answering([START, END]))
    chunks = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal chunks
        for _ in range(3):
            chunks += 1
            yield b"part"

    transport = httpx.ASGITransport(Forwarder(handle, read({"api_keys": "the-key"})))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.post(path, content=body(), headers=headers)
    ((_, sent),) = handle.requests
    assert sent == (b"part" * 3 if is_read else b"") and chunks == 3 * is_read


async def test_a_cancelled_request_cancels_the_call_of_the_replica() -> None:
    called = asyncio.Event()

    async def never() -> AsyncGenerator[list[Any], None]:
        called.set()
        await asyncio.Event().wait()
        yield []

    handle = FakeHandle(never)
    request = asyncio.create_task(post(handle))
    await called.wait()
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    assert handle.responses[0].cancelled


async def test_a_request_carries_the_name_of_its_model_on_demand() -> None:
    handle = FakeHandle(*[answering([START, END])] * 4)
    body = b'{"model": "gpt-4o", "prompt": "x"}'
    for content, settings in (
        (body, {"memory": "1G", "alias": "gpt-*=llm"}),
        (body, {"memory": "1G"}),
        (b'{"prompt": "x"}', {"memory": "1G"}),
        (body, {}),  # every replica has every model
    ):
        assert (await post(handle, content=content, **settings)).status_code == 200
    assert handle.models == ["llm", "gpt-4o"]


async def test_the_router_ranks_the_replicas_by_their_models() -> None:
    replicas = [
        SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats={"loaded": loaded})
        for name, loaded in (("one", ["a"]), ("two", ["b"]), ("three", []))
    ]
    ids = {replica.replica_id.unique_id: replica for replica in replicas}
    stand_in = SimpleNamespace(curr_replicas=ids, apply_locality_routing=lambda request: {"three"})

    async def chosen(model: str) -> list[list[str]]:
        context = SimpleNamespace(should_backoff=False)
        request = SimpleNamespace(metadata=SimpleNamespace(multiplexed_model_id=model), routing_context=context)
        groups = await router.LoadedModelRouter.choose_replicas(stand_in, replicas, request)
        return [[replica.replica_id.unique_id for replica in group] for group in groups]

    assert (await chosen("b"))[0] == ["two"]
    assert await chosen("") == [["three"]]


def test_a_replica_reports_its_models_and_their_queues() -> None:
    one = fake_replica()
    metrics = Metrics()
    metrics.running.set(3)
    metrics.waiting.set(2)
    metrics.model_running.labels("llm").set(3)
    metrics.model_waiting.labels("llm").set(2)
    models = [DeclaredModel(ModelSpec(name, "/models", "auto")) for name in ("llm", "mt", "embed")]
    models[0].state, models[1].state, models[1].waiting = "loaded", "loading", 4
    registry = SimpleNamespace(models={model.name: model for model in models})
    one._server.state.runtime = SimpleNamespace(metrics=metrics, texts={"llm": None}, registry=registry)
    assert one.record_routing_stats() == {"loaded": ["llm", "mt"], "waiting": {"llm": 2.0, "mt": 4.0}}
    assert one.record_autoscaling_stats() == {
        "running_sequences": 3.0,
        "waiting_sequences": 6.0,
        "running_sequences:llm": 3.0,
        "waiting_sequences:llm": 2.0,
        "waiting_sequences:mt": 4.0,
    }
    one._server.state.runtime.registry = None
    assert one.record_routing_stats()["loaded"] == ["llm"]


def fake_replica(**state: Any) -> Any:
    """A replica whose models are loaded. state: values for `ready` and `failed` of its server."""
    one = replica.Replica.__new__(replica.Replica)
    server = SimpleNamespace(ready=True, failed=False) if not state else SimpleNamespace(**state)
    one._server = SimpleNamespace(state=server, lifecycle=server)  # type: ignore[assignment]
    one._lifespan = None
    one._last_ready_seconds = 0.0
    one._unready_limit_seconds = 30.0
    return one


def test_a_replica_is_unhealthy_when_its_worker_is_given_up_or_gone_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(replica.time, "monotonic", lambda: now)
    one = fake_replica()
    one.check_health()
    one._server.state.ready = False
    now = 125.0
    one.check_health()  # the worker is being replaced
    now = 131.0
    with pytest.raises(NotReady, match="no worker was ready for 31 s"):
        one.check_health()
    one._server.state.ready = True
    one.check_health()
    one._server.state.failed = True
    with pytest.raises(NotReady, match="could not be brought back"):
        one.check_health()


async def test_a_request_waits_for_the_next_worker_and_a_probe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    one = fake_replica(ready=False, failed=False)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200 if one._server.state.ready else 503})

    one._app = app
    assert await anext(one.answer({"method": "GET"}, b"")) == [{"type": "http.response.start", "status": 503}]
    request = asyncio.create_task(anext(one.answer({"method": "POST"}, b"")))
    await asyncio.sleep(0)
    one._server.state.ready = True
    assert (await request)[0]["status"] == 200
    one._server.state.ready = False
    monkeypatch.setattr(replica, "WAIT_SECONDS", 0.0)
    assert (await anext(one.answer({"method": "POST"}, b"")))[0]["status"] == 503


@pytest.mark.parametrize(
    ("settings", "threads"),
    [({}, 8), ({"workers": "2"}, 4), ({"workers": "16"}, 1), ({"threads": "3", "workers": "2"}, 3)],
)
def test_threads_are_the_assigned_cpus(settings: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_assigned_resources=lambda: {"CPU": 8.5})
    monkeypatch.setattr(replica.ray, "get_runtime_context", lambda: context)
    assert replica._with_assigned_threads(read(settings)).threads == threads


def test_the_builder_checks_its_arguments_before_anything_starts() -> None:
    with pytest.raises(StartError, match="modles is not a setting of Triptych"):
        build({"modles": "x"})
    application = build({"models": "llm=/models/llm", "grace_seconds": "7"})
    deployment = application._bound_deployment
    assert deployment.name == "ingress"
    assert deployment.init_args[0]._bound_deployment.name == "triptych"
    assert deployment.init_args[0]._bound_deployment._deployment_config.graceful_shutdown_timeout_s == 17
