"""An idle server serves a request or calls it too large. What a request itself has reserved never causes a 429."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.types import Scope

from server.api.entry.door import Door
from server.errors import DeadlineExceeded, Overloaded, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.client.client import EngineClient
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.time_limits import TimeLimits
from server.limits.key_limits import KeyLimits
from server.operations.admission import Admission
from server.operations.chatting.chat_spec import ChatSpec
from server.operations.cost import Cost
from server.operations.generating.generation_options import GenerationOptions
from server.operations.turnstile import Turnstile
from tests.api.conftest import Bench
from tests.audio.wavs import wav
from tests.ipc.test_client import ENCODER, Recorder
from tests.operations.chat_bench import ChatBench, write_checkpoint
from tests.operations.test_admission import MIB, Model, new_call, of_bytes
from tests.parity.speech import recording

TEMPLATE = "{% for one in messages %}{{ one.content }}{% endfor %}"
SIZES = st.one_of(st.integers(0, 3), st.integers(0, 12 * MIB), st.sampled_from([7 * MIB, 8 * MIB, 10 * MIB]))
STEPS = st.lists(st.tuples(st.sampled_from(["admit", "extend", "other model"]), SIZES, SIZES), max_size=8)
LIMITS = st.none() | st.integers(1, 12 * MIB)


@given(STEPS, st.integers(1, 4), st.integers(1, 3), st.none() | st.integers(1, 2), LIMITS, LIMITS)
def test_a_call_alone_is_admitted_or_too_large(
    steps: list[tuple[str, int, int]],
    models: int,
    max_requests: int,
    key_requests: int | None,
    key_tokens: int | None,
    key_cost: int | None,
) -> None:
    admission = Admission(10 * MIB, max_requests, models)
    call = new_call(KeyLimits("k", key_requests, key_tokens, key_cost))
    for action, memory, tokens in steps:
        with contextlib.suppress(RequestTooLarge):
            if action == "extend":
                admission.extend(call, memory, "text", "file")
            else:
                admission.admit(call, Model("b" if action == "other model" else "a"), of_bytes(memory, tokens))
    call.close()
    assert admission.total.memory_bytes == admission.total.requests == admission.total.tokens == 0
    assert not admission._by_model and not admission._by_key


def test_the_second_reservation_of_a_call_may_exceed_the_share_of_its_model() -> None:
    admission, call = Admission(8 * MIB, models=2), new_call()
    admission.admit(call, Model(), of_bytes(MIB))
    admission.admit(call, Model(), of_bytes(8 * MIB))
    assert admission.total.memory_bytes == 8 * MIB
    with pytest.raises(Overloaded):
        admission.admit(new_call(), Model("b"), of_bytes(MIB))


def test_a_key_whose_limit_is_below_two_reservations_of_one_call_is_too_small_for_the_call() -> None:
    admission, call = Admission(8 * MIB), new_call(KeyLimits("k", max_tokens=100))
    admission.admit(call, Model(), Cost(0, 60, 0))
    with pytest.raises(RequestTooLarge, match="110 tokens"):
        admission.admit(call, Model(), Cost(0, 110, 0))


@pytest.mark.parametrize("max_requests", [1, 2, 3])
def test_one_of_several_models_always_gets_a_request(max_requests: int) -> None:
    Admission(MIB, max_requests, models=3).admit(new_call(), Model(), of_bytes(0))


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 24), st.integers(1, 80))
def test_an_empty_queue_takes_every_request_whose_texts_fit(sizes: list[int], requests: int, tokens: int) -> None:
    async def submit() -> None:
        client, sent = EngineClient(Recorder(), requests, tokens), []
        client.on_ready([ENCODER], "cpu", lambda *messages: sent.extend(messages))
        with Call(client) as call:
            message = Encode(call.next_id(), ENCODER.name, "embed", [EncodeItem([1] * size) for size in sizes])
            if max(sizes) > tokens:
                with pytest.raises(RequestTooLarge):
                    call.submit(message)
            else:
                call.submit(message)
                assert sent

    asyncio.run(submit())


@given(st.integers(0, 1000), st.booleans(), st.integers(1, 100))
def test_the_door_lets_every_first_request_in(size: int, announced: bool, limit: int) -> None:
    door, scope = Door(1, limit, 20), {}
    headers = Headers({"content-length": str(size)} if announced else {"transfer-encoding": "chunked"})
    door.enter(scope, headers)
    door.receive(scope, size)
    door.leave(scope)
    assert door.requests == door.body_bytes == 0


async def test_bodies_of_recordings_wait_for_room_in_their_order() -> None:
    door = Door(9, 100, 20)
    scopes: list[Scope] = [{"path": "/v1/audio/transcriptions"} for _ in range(4)]
    got: list[int] = []

    async def wait(place: int, size: int) -> None:
        door.enter(scopes[place], Headers({"content-length": str(size)}))
        await door.wait_for_body(scopes[place], size, TimeLimits())
        got.append(place)

    tasks = [asyncio.create_task(wait(place, size)) for place, size in enumerate((90, 50, 400, 10))]
    for ended in range(4):
        await asyncio.sleep(0.001)
        # The last body has room beside the first one, but two earlier bodies wait.
        assert got == list(range(ended + 1))
        assert door.body_bytes <= 400
        door.drop_body(scopes[ended])
    await asyncio.gather(*tasks)
    for scope in scopes:
        door.leave(scope)
    assert door.requests == door.body_bytes == 0


async def test_a_body_waits_as_long_as_the_queue_allows() -> None:
    door, first, second = Door(9, 100, 20), {}, {}
    door.enter(first, Headers({"content-length": "90"}))
    with pytest.raises(DeadlineExceeded, match=r"--queue-timeout-seconds.*the bodies of earlier requests"):
        await door.wait_for_body(second, 90, TimeLimits(queue_seconds=0.01))
    door.leave(first)
    await door.wait_for_body(second, 90, TimeLimits())


async def test_a_recording_waits_for_memory_that_others_have_reserved() -> None:
    admission, first, second = Admission(10 * MIB, models=2), new_call(), new_call()
    admission.admit(first, Model(), of_bytes(7 * MIB))
    waiting = asyncio.create_task(admission.admit_in_turn(second, Model(), of_bytes(6 * MIB), "file"))
    await asyncio.sleep(0.001)
    assert not waiting.done() and admission.total.memory_bytes == 7 * MIB
    first.close()
    await waiting
    assert admission.total.memory_bytes == 6 * MIB
    with pytest.raises(RequestTooLarge):
        await admission.admit_in_turn(new_call(), Model(), of_bytes(11 * MIB), "file")


async def test_turns_go_to_those_who_wait_and_not_to_those_who_left() -> None:
    turnstile, order = Turnstile(), []
    calls = [new_call() for _ in range(4)]

    async def work(place: int) -> None:
        async with turnstile.turn(calls[place], calls[place].limits, "a turn was needed"):
            order.append(place)
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(work(place)) for place in range(4)]
    await asyncio.sleep(0)
    calls[1].leave()
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 3] and results[0] is results[3] is None
    async with turnstile.turn(None, TimeLimits(), "a turn was needed"):
        order.append(4)


async def test_as_many_recordings_as_allowed_are_answered_at_once(bench: Bench) -> None:
    """The bodies together exceed the memory for bodies, so some wait. No model here reads audio, so each gets a 400."""
    bench.become_ready()
    file = wav(recording(0.5))
    bench.state.door.max_body_bytes = 2 * len(file)
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        number = bench.state.settings.max_recordings
        sent = [http.post("/v1/audio/transcriptions", files={"file": ("a.wav", file)}) for _ in range(number)]
        answers = await asyncio.gather(*sent)
    assert [answer.status_code for answer in answers] == [400] * number
    assert bench.state.recordings == bench.state.door.body_bytes == 0


async def test_a_chat_that_needs_all_memory_of_the_requests_runs_beside_another_model(tmp_path: Path) -> None:
    """A chat is admitted twice, before its template is rendered and once its tokens are counted; it pays only once."""
    bench = ChatBench(write_checkpoint(tmp_path / "llm", TEMPLATE))
    spec = ChatSpec([{"role": "user", "content": "hello"}], GenerationOptions(max_new_tokens=4))
    bench.runtime.admission.models = 2
    bench.runtime.admission.memory_bytes = spec.cost(bench.runtime.model("llm")).memory_bytes
    result, _ = await bench.ask(spec)
    assert result.model == "llm"
    bench.close()
