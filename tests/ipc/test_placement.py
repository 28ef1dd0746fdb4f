"""A request goes to the least loaded worker, or to the worker that has the beginning of its prompt in its cache."""

from __future__ import annotations

import pytest

from server.ipc.client import placement
from server.ipc.wire.encode_messages import Encode, Encoded
from server.ipc.wire.generate_messages import Generate, GenerateRow, Tokens
from server.ipc.wire.params import GenerationParams
from tests.ipc.observing import submit
from tests.ipc.test_client import finished
from tests.ipc.test_lost_workers import Workers

BLOCK = 16


def converse(workers: Workers, prompt: list[int], salt: str = "", model: str = "decoder", stays: bool = False) -> int:
    """Submit a prompt. Returns the epoch of the worker that got it. stays: whether the request is left open."""
    before = {epoch: len(sent) for epoch, sent in workers.sent.items()}
    row = GenerateRow(workers.client.next_id(), 1)
    call = submit(workers.client, Generate(model, GenerationParams(), [prompt], [row], cache_salt=salt))
    (epoch,) = [epoch for epoch, sent in workers.sent.items() if len(sent) > before[epoch]]
    if not stays:
        call.close()
    return epoch


async def test_requests_go_to_the_least_loaded_worker() -> None:
    workers = Workers(1, 2)
    for _ in range(6):
        workers.submit()
    assert [len(workers.rows(epoch)) for epoch in (1, 2)] == [3, 3]
    workers.output(1, tokens=[Tokens(1, [7]), Tokens(3, [7]), Tokens(5, [7])])
    # Three running sequences count as less load than one waiting sequence.
    for _ in range(2):
        workers.submit()
    assert [len(workers.rows(epoch)) for epoch in (1, 2)] == [5, 3]
    workers.output(2, finished=[finished(id, 7) for id in (2, 4, 6)])
    workers.submit()
    assert len(workers.rows(2)) == 4


async def test_the_load_is_zero_when_everything_has_ended() -> None:
    workers = Workers(1, 2)
    calls = [workers.submit(), workers.encode(3), workers.submit(), workers.encode(2)]
    workers.output(1, tokens=[Tokens(1, [7])])
    workers.output(2, encoded=[Encoded(2, 1, b"")])
    workers.client.on_lost(2)
    for call in calls:
        call.close()
    (worker,) = workers.client._dispatcher.workers.values()
    assert (worker.open, worker.running, worker.waiting, worker.load) == (0, 0, 0, 0)


async def test_a_conversation_stays_with_its_worker() -> None:
    workers = Workers(1, 2)
    first, second = [3] * 40, [4] * 40
    busy = workers.submit()
    homes = {converse(workers, first): first}
    busy.close()
    homes[converse(workers, second)] = second
    assert sorted(homes) == [1, 2]
    for turn in range(1, 5):
        for epoch, prompt in homes.items():
            assert converse(workers, prompt + [9] * 20 * turn) == epoch
    # A prompt that begins with the same system prompt goes to the same worker.
    assert converse(workers, first[:BLOCK] + [5] * 40) == next(epoch for epoch in homes if homes[epoch] is first)


@pytest.mark.parametrize("other", [{"salt": "key"}, {"model": "seq2seq"}], ids=["salt", "model"])
async def test_a_prompt_of_another_key_or_model_has_no_home(other: dict[str, str]) -> None:
    workers = Workers(1, 2)
    busy = workers.submit()
    assert converse(workers, [3] * 32) == 2
    busy.close()
    assert converse(workers, [3] * 32, **other) == 1
    assert converse(workers, [3] * 32) == 2


async def test_a_longer_common_beginning_outweighs_more_load() -> None:
    workers = Workers(1, 2)
    # Each request waits, which counts as a load of 4. A worker that has n cached blocks of the prompt is chosen if its
    # load exceeds that of the other worker by at most n.
    assert [converse(workers, [3] * 40, stays=True) for _ in range(4)] == [1, 2, 2, 1]
    workers = Workers(1, 2)
    assert [converse(workers, [3] * 70, stays=True) for _ in range(4)] == [1, 1, 2, 2]


async def test_a_lost_home_is_forgotten() -> None:
    workers = Workers(1, 2, 3)
    prompt = [3] * 40
    assert converse(workers, prompt) == 1
    workers.client.on_lost(1)
    assert [converse(workers, prompt) for _ in range(2)] == [2, 2]


async def test_the_number_of_remembered_prompts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_PREFIXES", 4)
    workers = Workers(1, 2)
    for token in range(10):
        converse(workers, [token] * 40)
    assert len(workers.client._dispatcher._placement._homes) == 4


async def test_a_worker_that_is_silent_gets_no_requests_while_another_answers() -> None:
    workers = Workers(1, 2)
    hung = workers.client._dispatcher.workers[1]
    hung.last_message_seconds -= 7200.0
    assert [converse(workers, [3] * 40) for _ in range(4)] == [2] * 4
    workers.client._dispatcher.workers[2].last_message_seconds -= 7200.0
    assert converse(workers, [8] * 40) == 1
    workers.output(1, tokens=[])
    workers.output(2, tokens=[])
    assert converse(workers, [9] * 40) == 1


async def test_many_texts_are_shared_between_the_workers_and_few_are_not() -> None:
    workers = Workers(1, 2)
    workers.encode(8, tokens=100)
    assert [len(sent) for sent in workers.sent.values()] == [1, 0]
    workers = Workers(1, 2)
    call = workers.encode(12, tokens=100)
    (one,), (two,) = workers.sent.values()
    assert isinstance(one, Encode) and isinstance(two, Encode) and len(one.items) == len(two.items) == 6
    assert workers.waiting == (12, 1200) and one.call_id == two.call_id
    for epoch, message in ((2, two), (1, one)):
        workers.output(epoch, encoded=[Encoded(message.sequence_id, index, b"") for index in range(6)])
    found: list[int] = []
    while events := await call.events():
        found += [event.index for _, event in events if isinstance(event, Encoded)]
    assert found == [*range(6, 12), *range(6)] and workers.waiting == (0, 0)


async def test_the_rows_of_one_generation_stay_together() -> None:
    workers = Workers(1, 2)
    workers.submit(prompts=8, tokens=64)
    assert [len(workers.rows(epoch)) for epoch in (1, 2)] == [8, 0]
