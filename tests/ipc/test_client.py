"""The engine client: admission, ids, aborts, deadlines. A list that records the sent messages replaces the worker."""

from __future__ import annotations

import asyncio
import time

import pytest

from server.errors import ClientGone, Overloaded, RequestTooLarge
from server.ipc.client import call as module
from server.ipc.client.call import Call, SequenceEvent
from server.ipc.client.client import EngineClient
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.generate_messages import Finished, Generate, GenerateRow, Hypothesis, Tokens
from server.ipc.wire.message_base import Message
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Abort, Failed, StepOutput
from tests.ipc.observing import Recorder, submit
from tests.ipc.one_row import one_row

DECODER = ModelInfo(
    "decoder", "fake", "F", ["generate"], "float32", 1, 4, 100, 8, 512, block_size=16, kv_blocks={"self": 8}
)
SEQ2SEQ = ModelInfo(
    "seq2seq",
    "fake",
    "F",
    ["translate"],
    "float32",
    1,
    4,
    100,
    8,
    512,
    256,
    16,
    {"self": 8, "cross": 2},
    is_encoder_decoder=True,
)
ENCODER = ModelInfo("encoder", "fake", "F", ["embed"], "float32", 1, 4, 100, 8, 512)


class Bench:
    def __init__(self, requests: int = 8, tokens: int = 400) -> None:
        self.recorder = Recorder()
        self.client = EngineClient(self.recorder, requests, tokens)
        self.sent: list[Message] = []
        self.client.on_ready([DECODER, SEQ2SEQ, ENCODER], "cpu", self.sent.append)

    def generate(self, tokens: int = 10, new: int = 4, beams: int = 1) -> Generate:
        return self.generate_all([tokens], new, beams)

    def generate_all(self, tokens: list[int], new: int = 4, beams: int = 1) -> Generate:
        """A request with several prompts, and one row for each.

        tokens: number of tokens of each prompt. new: largest number of new tokens. beams: number of beams.
        """
        rows = [GenerateRow(self.client.next_id(), new, index) for index in range(len(tokens))]
        return Generate("decoder", GenerationParams(num_beams=beams), [[5] * count for count in tokens], rows)

    def submit(self, message: Generate | Encode | None = None) -> Call:
        return submit(self.client, message or self.generate())

    def output(self, **events: list) -> None:
        self.client.on_output(StepOutput(1, **events))

    @property
    def waiting(self) -> tuple[int, int]:
        return self.client.queue.requests, self.client.queue.tokens

    @property
    def aborted(self) -> list[int]:
        return [message.sequence_id for message in self.sent if isinstance(message, Abort)]


def finished(sequence_id: int, *tokens: int) -> Finished:
    return Finished(sequence_id, [Hypothesis(list(tokens), "stop")], 0.0, 0.0, 0.0)


async def test_admission_counts_sequences_before_their_first_step() -> None:
    bench = Bench(requests=4, tokens=100)
    calls = [bench.submit() for _ in range(4)]
    assert bench.waiting == (4, 40)
    with pytest.raises(Overloaded) as refused:
        bench.submit()
    assert refused.value.retry_after and len(bench.sent) == 4
    bench.output(tokens=[Tokens(1, [7])])
    assert bench.waiting == (3, 30)
    calls.append(bench.submit())
    bench.output(failed=[Failed(2, "engine_error", "x")], finished=[finished(3, 1)])
    assert bench.waiting == (2, 20)
    for call in calls:
        call.close()
    assert bench.waiting == (0, 0) and bench.client.num_open_sequences == 0
    assert bench.aborted == [1, 4, 6]  # 5 was rejected; 2 and 3 had ended


async def test_admission_counts_tokens_and_admits_requests_as_a_whole() -> None:
    bench = Bench()
    for _ in range(3):
        bench.submit(bench.generate(120))
    with pytest.raises(Overloaded, match=r"360 tokens.*400, --max-queue-tokens"):
        bench.submit(bench.generate_all([20, 21]))
    assert bench.waiting == (3, 360)
    bench.submit(bench.generate_all([20, 20]))
    assert bench.waiting == (5, 400)


async def test_a_text_above_the_queue_limit_is_too_large() -> None:
    bench = Bench()
    with pytest.raises(RequestTooLarge, match=r"401 tokens.*400.*--max-queue-tokens"):
        bench.submit(Encode(bench.client.next_id(), "encoder", "embed", [EncodeItem([1] * 401)]))
    assert bench.waiting == (0, 0) and bench.sent == []


@pytest.mark.parametrize(
    ("tokens", "new", "beams", "fits"), [(64, 64, 1, True), (64, 65, 1, False), (16, 16, 4, True), (16, 17, 4, False)]
)
async def test_the_kv_pool_must_hold_the_worst_case(tokens: int, new: int, beams: int, fits: bool) -> None:
    bench = Bench()
    if fits:
        bench.submit(bench.generate(tokens, new, beams))
    else:
        with pytest.raises(RequestTooLarge, match="8") as refused:
            bench.submit(bench.generate(tokens, new, beams))
        assert refused.value.param == "max_new_tokens"


async def test_the_cross_pool_must_hold_the_source() -> None:
    bench = Bench()
    bench.submit(one_row(bench.client.next_id(), "seq2seq", [5] * 32, [2], max_new_tokens=8))
    with pytest.raises(RequestTooLarge, match="cross"):
        bench.submit(one_row(bench.client.next_id(), "seq2seq", [5] * 33, [2], max_new_tokens=8))


async def test_events_reach_their_call_by_index_and_accumulate_for_a_slow_reader() -> None:
    bench = Bench()
    call, other = bench.submit(bench.generate_all([10, 10])), bench.submit()
    bench.output(tokens=[Tokens(2, [7]), Tokens(3, [1])])
    bench.output(tokens=[Tokens(1, [8]), Tokens(2, [9])])
    assert [(index, event.token_ids) for index, event in await call.events() if isinstance(event, Tokens)] == [
        (1, [7]),
        (0, [8]),
        (1, [9]),
    ]
    bench.output(finished=[finished(1, 8), finished(2, 7, 9)])
    assert [index for index, _ in await call.events()] == [0, 1]
    assert await call.events() == []
    assert len(await other.events()) == 1


async def test_an_encode_request_ends_with_its_last_item() -> None:
    bench = Bench()
    items = [EncodeItem([1, 2]), EncodeItem([3])]
    call = bench.submit(Encode(bench.client.next_id(), "encoder", "embed", items))
    assert bench.waiting == (2, 3)
    bench.output(encoded=[Encoded(1, 1, b"")])
    assert [event for _, event in await call.events()] == [Encoded(1, 1, b"")]
    assert bench.waiting == (1, 2)
    assert bench.client.num_open_sequences == 1
    bench.output(encoded=[Encoded(1, 0, b"")])
    assert len(await call.events()) == 1
    assert await call.events() == [] and bench.client.num_open_sequences == 0
    call.close()
    assert bench.aborted == []


async def test_a_disconnected_client_wakes_the_reader_and_aborts() -> None:
    bench = Bench()
    call = bench.submit(bench.generate_all([10, 10]))
    bench.output(tokens=[Tokens(1, [7])])
    await call.events()
    reader = asyncio.create_task(call.events())
    await asyncio.sleep(0)
    call.leave()
    with pytest.raises(ClientGone):
        await reader
    assert sorted(bench.aborted) == [1, 2] and sorted(bench.recorder.cancelled) == ["running", "waiting"]
    call.leave()
    assert len(bench.aborted) == 2 and len(bench.recorder.cancelled) == 2


async def test_events_after_an_abort_are_dropped() -> None:
    bench = Bench()
    call = bench.submit(bench.generate_all([10, 10]))
    call.stop(0)
    assert bench.aborted == [1] and bench.recorder.finished == [None]
    bench.output(tokens=[Tokens(1, [7]), Tokens(2, [8])], finished=[finished(1, 7)], failed=[Failed(99, "timeout", "")])
    assert [index for index, _ in await call.events()] == [1]


async def test_a_cancelled_reader_aborts_through_the_with_block() -> None:
    bench = Bench()

    async def read() -> None:
        with bench.submit() as call:
            await call.events()

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.aborted == [1] and bench.client.num_open_sequences == 0


async def test_the_client_ends_requests_whose_deadline_the_worker_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_SLACK_SECONDS", 0.01)
    bench = Bench()
    call = submit(bench.client, bench.generate(), deadline=time.monotonic() + 0.02)
    ((_, event),) = await call.events()
    assert isinstance(event, Failed) and event.code == "timeout"
    assert bench.aborted == [1]


async def test_the_observer_receives_all_events() -> None:
    bench = Bench()
    bench.submit()
    bench.output(tokens=[Tokens(1, [7])])
    bench.output(tokens=[Tokens(1, [8, 9])])
    bench.output(finished=[finished(1, 7, 8, 9, 10)])
    assert bench.recorder.tokens == [(1, True), (2, False), (1, False)]
    assert len(bench.recorder.first) == 1 and bench.recorder.admitted == [("decoder", 10)]
    assert isinstance(bench.recorder.finished[0], Finished)


async def test_forward_delivers_a_step_at_once_and_as_a_whole() -> None:
    bench = Bench()
    call = bench.submit(bench.generate_all([10, 10]))
    bench.output(tokens=[Tokens(1, [7])])
    taken: list[list[int]] = []

    def take(events: list[tuple[int, SequenceEvent]]) -> bool:
        taken.append([index for index, _ in events])
        return True

    forwarding = asyncio.create_task(call.forward(take))
    await asyncio.sleep(0)
    assert taken == [[0]]  # events from before `forward`
    bench.output(tokens=[Tokens(1, [8]), Tokens(2, [9])])
    assert taken == [[0], [0, 1]]  # delivered within the call of `bench.output`
    bench.output(finished=[finished(2, 9)], tokens=[Tokens(1, [8])])
    bench.output(finished=[finished(1, 7, 8, 8)])
    assert taken == [[0], [0, 1], [0, 1], [0]]
    assert await forwarding is False


async def test_forward_stops_at_a_full_receiver_without_losing_events() -> None:
    bench = Bench()
    call = bench.submit()
    taken: list[SequenceEvent] = []

    def take(events: list[tuple[int, SequenceEvent]]) -> bool:
        taken.extend(event for _, event in events)
        return False

    forwarding = asyncio.create_task(call.forward(take))
    await asyncio.sleep(0)
    for token in range(3):
        bench.output(tokens=[Tokens(1, [token])])
    assert len(taken) == 1 and await forwarding is True
    assert await call.forward(take) is True and len(taken) == 3
    bench.output(finished=[finished(1, 0, 1, 2)])
    assert await call.forward(take) is True and len(taken) == 4
    assert await call.forward(take) is False


async def test_forward_raises_errors_of_its_receiver_and_serves_other_calls() -> None:
    bench = Bench()
    call, other = bench.submit(), bench.submit()

    def take(events: list[tuple[int, SequenceEvent]]) -> bool:
        raise ValueError("no")

    forwarding = asyncio.create_task(call.forward(take))
    await asyncio.sleep(0)
    bench.output(tokens=[Tokens(1, [7]), Tokens(2, [7])])
    with pytest.raises(ValueError, match="no"):
        await forwarding
    assert len(await other.events()) == 1


async def test_a_disconnected_client_ends_forward() -> None:
    bench = Bench()
    call = bench.submit()
    forwarding = asyncio.create_task(call.forward(lambda events: True))
    await asyncio.sleep(0)
    call.leave()
    with pytest.raises(ClientGone):
        await forwarding
    assert bench.aborted == [1]


async def test_a_client_that_leaves_before_submission_is_not_served() -> None:
    bench = Bench()
    call = Call(bench.client)
    call.leave()
    with pytest.raises(ClientGone):
        call.submit(bench.generate())
    assert bench.sent == [] and bench.waiting == (0, 0)


async def test_a_call_submits_again_after_its_sequences_have_ended() -> None:
    bench = Bench()
    call = bench.submit()
    bench.output(finished=[finished(1, 7)])
    assert len(await call.events()) == 1
    call.submit(bench.generate())
    bench.output(finished=[finished(2, 8)])
    assert [index for index, _ in await call.events()] == [0]
    assert await call.events() == []
