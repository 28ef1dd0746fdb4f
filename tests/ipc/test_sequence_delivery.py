"""Every worker with a model gets the model's stored sets of allowed sequences completely, also if it starts later."""

from __future__ import annotations

import asyncio

import pytest

from server.ipc.client import sequence_delivery
from server.ipc.client.dispatch import Dispatcher
from server.ipc.wire.generate_messages import ForgetSequences, SequencePart
from server.ipc.wire.message_base import Message
from server.ipc.wire.params import SequenceTrie

TRIE = SequenceTrie(b"\xff\xff\xff\xff" + bytes(range(16)), bytes(24), bytes(5))
CONTENT = TRIE.tokens + TRIE.first_children + TRIE.ends


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_delivery, "PART_BYTES", 7)
    monkeypatch.setattr(sequence_delivery, "PAUSE_SECONDS", 0)


class Workers:
    """A dispatcher with fake workers. sent: messages that each worker got, by its number."""

    def __init__(self, *numbers: int) -> None:
        self.dispatcher = Dispatcher(0, 1)
        self.sent: dict[int, list[Message]] = {}
        for number in numbers:
            self.add(number)

    def add(self, number: int, models: tuple[str, ...] = ("decoder",)) -> None:
        self.sent[number] = []
        self.dispatcher.add(number, self.sent[number].append, models)

    def contents(self, number: int) -> dict[int, bytes]:
        """The bytes of each stored set that a worker has, by id of the set."""
        found: dict[int, bytes] = {}
        for message in self.sent[number]:
            if isinstance(message, SequencePart):
                assert (message.model, message.num_nodes) == ("decoder", 5)
                found[message.set_id] = found.get(message.set_id, b"") + message.content
            elif isinstance(message, ForgetSequences):
                found.pop(message.set_id, None)
        return found


async def test_workers_with_the_model_get_a_set_once() -> None:
    workers = Workers(1, 2)
    workers.add(3, ("embedder",))
    assert await workers.dispatcher.sequences.add("decoder", TRIE) == 1
    assert [workers.contents(number) for number in (1, 2, 3)] == [{1: CONTENT}, {1: CONTENT}, {}]
    workers.add(4)
    assert workers.contents(4) == {1: CONTENT}
    workers.dispatcher.sequences.forget(1)
    assert [workers.contents(number) for number in (1, 2, 4)] == [{}] * 3
    workers.add(5)
    assert workers.sent[5] == []


@pytest.mark.parametrize("turns", range(8))
async def test_a_worker_that_comes_while_a_set_is_sent_gets_the_whole_set(turns: int) -> None:
    workers = Workers(1)
    workers.dispatcher.workers[1].models.add("embedder")
    sending = asyncio.create_task(workers.dispatcher.sequences.add("decoder", TRIE))
    for _ in range(turns):
        await asyncio.sleep(0)
    workers.add(2)
    workers.dispatcher.send_kept(workers.dispatcher.workers[1], ["embedder"])
    if turns % 2:  # the worker is lost and comes again
        del workers.dispatcher.workers[2]
        workers.add(2)
    await sending
    assert workers.contents(1) == workers.contents(2) == {1: CONTENT}


async def test_a_model_that_is_loaded_again_while_a_set_is_sent_gets_the_whole_set() -> None:
    """If a model is loaded again while a set is being sent, the worker gets the whole set again.

    The worker dropped the earlier parts together with the model.
    """
    workers = Workers(1)
    sending = asyncio.create_task(workers.dispatcher.sequences.add("decoder", TRIE))
    for _ in range(3):
        await asyncio.sleep(0)
    workers.sent[1].clear()
    workers.dispatcher.send_kept(workers.dispatcher.workers[1], ["decoder"])
    await sending
    assert workers.contents(1) == {1: CONTENT}


async def test_a_set_whose_client_leaves_is_forgotten() -> None:
    workers = Workers(1)
    sending = asyncio.create_task(workers.dispatcher.sequences.add("decoder", TRIE))
    for _ in range(3):
        await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert workers.sent[1] and workers.contents(1) == {}
    workers.add(2)
    assert workers.sent[2] == []
