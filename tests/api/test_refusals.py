"""A 429 names the limit that refused the request, in the message, in the body of each dialect, and in the metric."""

from __future__ import annotations

import ast
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from server.api.dialects.openai.audio.realtime import error_fields
from server.api.dialects.registry import GET_ROUTES, OWNED_ROUTES, ROUTES
from server.api.entry.door import OVER_CONNECTION_LIMIT, Door
from server.api.entry.live_sessions import MAX_SESSIONS_PER_KEY, LiveSessions
from server.api.routes.error_shape import ErrorShape
from server.errors import InvalidRequest, Overloaded, Refusal
from server.ipc.client.queue import Queue
from server.limits import refusals
from server.limits.key_limits import KeyLimits
from server.limits.refusals import LIMITS
from server.operations.pools import Pools
from tests.api.conftest import Bench

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {id(route.errors): route.errors for route in (*ROUTES, *GET_ROUTES, *OWNED_ROUTES)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.answer.__name__)
def test_each_dialect_has_the_reason_beside_the_message(shape: ErrorShape) -> None:
    refused = Overloaded("4 apples are held", Refusal("apples", "4", "--max-apples"), 3)
    assert refused.message == "4 apples are held (limit 4, --max-apples); try again in 3 s"
    body: Any = shape.render(refused, "r")
    assert body == shape.answer.model_validate(body).model_dump(), "the body is as its schema says"
    holder = body["error"] if isinstance(body.get("error"), dict) else body
    assert holder["reason"] == "apples" and refused.message in holder.values()
    assert "reason" not in str(shape.render(InvalidRequest("no"), "r"))


def test_the_events_of_a_live_session_have_the_reason() -> None:
    refused = error_fields(Overloaded("4 apples are held", Refusal("apples", "4", "--max-apples"), 3))
    assert (refused["type"], refused["code"], refused["reason"]) == ("rate_limit_error", "overloaded", "apples")
    assert error_fields(InvalidRequest("no")) == {
        "type": "invalid_request_error",
        "code": "invalid_request",
        "message": "no",
        "param": None,
    }


def test_the_message_of_a_fixed_limit_says_that_it_is_not_a_setting() -> None:
    assert "(limit 5, not a setting)" in Overloaded("x", Refusal("pool_x", "5", ""), 1).message


@pytest.mark.parametrize(
    ("key", "most", "setting"),
    [
        (None, MAX_SESSIONS_PER_KEY, "not a setting"),
        (KeyLimits("team"), MAX_SESSIONS_PER_KEY, "not a setting"),
        (KeyLimits("team", max_requests=40), MAX_SESSIONS_PER_KEY, "not a setting"),
        (KeyLimits("team", max_requests=2), 2, "max_requests of the key in --api-key-file"),
    ],
    ids=str,
)
def test_a_live_session_is_refused_with_a_setting_only_if_it_helps(
    key: KeyLimits | None, most: int, setting: str
) -> None:
    sessions = LiveSessions()
    with ExitStack() as opened:
        for _ in range(most):
            opened.enter_context(sessions.open(key, lambda: None))
        with pytest.raises(Overloaded) as refused, sessions.open(key, lambda: None):
            pass
    assert refused.value.reason == "live_sessions"
    assert f"{most} live connections are open (limit {most}, {setting})" in refused.value.message


def test_a_refused_connection_names_the_limit_of_open_files_too() -> None:
    """A larger `--max-connections` has no effect if the process may open no more files."""
    with pytest.raises(Overloaded, match=r"\(limit 7, --max-connections, .* ulimit -n ") as refused:
        Door(2, 100, 50).check({OVER_CONNECTION_LIMIT: 7}, Headers({}))
    assert refused.value.reason == "connections"


def test_a_refusal_says_what_is_used_and_what_the_request_adds() -> None:
    """Both numbers are needed: a request may be refused although less than the limit is used."""
    queue = Queue(8, 400)
    queue.enter(2, 306)
    with pytest.raises(Overloaded, match=r"306 tokens wait in the queue, and this request adds 102 \(limit 400, "):
        queue.enter(1, 102)
    with pytest.raises(Overloaded, match=r"2 sequences wait in the queue, and this request adds 7 \(limit 8, "):
        queue.enter(7, 10)
    door = Door(8, 100, 50)
    door.enter({}, Headers({"content-length": "90"}))
    with pytest.raises(Overloaded, match=r"in progress have 90 bytes, and this one 11 \(limit 100 bytes, "):
        door.enter({}, Headers({"content-length": "11"}))


def test_every_reason_is_used_once() -> None:
    pools = Pools()
    pools.close()
    reasons = [limit.reason for limit in (*LIMITS, *(pool.limit for pool in pools))]
    assert len(set(reasons)) == len(reasons) and all(re.fullmatch("[a-z_]+", reason) for reason in reasons)


def fill(bench: Bench, reason: str) -> None:
    """Bring the limit with this reason to its maximum, so that the next request is refused."""
    admission = bench.runtime.admission
    admission.models, admission.max_requests = 2, 4
    if reason == "requests":
        bench.state.door.max_requests = 0
    elif reason == "body_memory":
        bench.state.door.body_bytes = bench.state.door.max_body_bytes
    elif reason == "recordings":
        bench.state.recordings = bench.state.settings.max_recordings
    elif reason == "request_memory":
        admission.total.memory_bytes = admission.memory_bytes
    elif reason == "model_memory":
        admission._by_model["decoder"] = type(admission.total)(1, 1, admission.memory_bytes)
    elif reason == "model_requests":
        admission._by_model["decoder"] = type(admission.total)(4, 1, 1)
    elif reason.startswith("queue"):
        bench.client.queue = Queue(8, 4000)
        bench.client.queue.enter(8 if reason == "queue_requests" else 1, 4000)
    else:
        pools = {pool.limit.reason: pool for pool in bench.runtime.pools}
        pools[reason]._requests = pools[reason].max_waiting + pools[reason].threads


@pytest.mark.parametrize(
    "reason",
    [
        "requests",
        "body_memory",
        "recordings",
        "request_memory",
        "model_memory",
        "model_requests",
        "queue_requests",
        "queue_tokens",
        "pool_tokenize",
    ],
)
async def test_the_limit_that_is_reached_is_named(bench: Bench, http: httpx.AsyncClient, reason: str) -> None:
    bench.become_ready()
    fill(bench, reason)
    if reason == "recordings":
        answer = await http.post("/v1/audio/transcriptions", content=b"x")
    else:
        answer = await http.post("/generate", json={"model": "decoder", "prompt": "abc"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["reason"]) == (429, "overloaded", reason)
    settings = {limit.reason: limit.setting for limit in LIMITS}
    assert f", {settings.get(reason, 'not a setting')}); try again in " in error["message"]
    assert f'requests_rejected_total{{reason="{reason}"}} 1.0' in bench.metrics.render().decode()
    assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_requests": 0}, "key_requests"), ({"max_tokens": 8}, "key_tokens"), ({"max_cost": 1e5}, "key_memory")],
    ids=str,
)
def test_the_limits_of_a_key_are_named(limits: dict[str, Any], reason: str) -> None:
    from server.ipc.client.call import Call
    from server.operations.admission import Admission, _Reserved
    from server.operations.cost import Cost

    class Model:
        name = "m"

    admission = Admission()
    if "max_requests" in limits:
        limits = {"max_requests": 1}
    admission._by_key["team"] = _Reserved(1, 8, 100_000)
    call = Call(None, key=KeyLimits("team", **limits))  # type: ignore[arg-type]
    with pytest.raises(Overloaded) as refused:
        admission.admit(call, Model(), Cost(0, 4, 4))
    assert refused.value.refusal.reason == reason and next(iter(limits)) in refused.value.message
    assert "of the key in --api-key-file" in refused.value.message


def test_the_list_of_places_names_each_place_that_checks_a_limit() -> None:
    """The list in `server.limits.refusals` names the code that checks each limit. It must be correct and complete."""
    lines = re.findall(r"^- `([\w.]+)`.*?: (.*)$", refusals.__doc__ or "", re.MULTILINE)
    listed = {(module, name) for module, names in lines for name in re.findall(r"\b[A-Z_]{4,}\b|pool_limit", names)}
    limits = {name for name, value in vars(refusals).items() if isinstance(value, refusals.Limit)} | {"pool_limit"}
    found = {
        (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), node.id)
        for path in (ROOT / "server").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id in limits and path.stem != "refusals"
    }
    assert listed == found
