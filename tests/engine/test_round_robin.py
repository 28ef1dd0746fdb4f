"""Calls are served in turn: a call with many rows or texts does not delay a call with a single one."""

from __future__ import annotations

import random

from server.engine.encoding.encode_queue import EncodeQueue, EncodeRequest
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from tests.engine.simulation import Simulation, turn


def call(simulation: Simulation, call_id: int, rows: int) -> list[SequenceGroup]:
    """Queue the rows of one call, each with a prompt of 3 tokens and up to 20 new tokens."""
    ids = range(len(simulation.requests) + 1, len(simulation.requests) + rows + 1)
    message = Generate(
        "m", GenerationParams(), [[5] * 3], [GenerateRow(sequence, 20) for sequence in ids], call_id=call_id
    )
    groups = [SequenceGroup(message, row, False, 0.0) for row in message.rows]
    for group in groups:
        simulation.requests.append(group)
        simulation.scheduler.add(group)
    return groups


def test_a_late_call_gets_the_next_free_rows() -> None:
    simulation = Simulation(random.Random(1), cross=False, max_batch_rows=2, max_batch_tokens=64, blocks=400)
    large = call(simulation, 1, 6)
    turn(simulation)
    small = call(simulation, 9, 2)
    assert [group.status for group in large[:3]] == [SequenceStatus.RUNNING] * 2 + [SequenceStatus.WAITING]
    order = []
    while simulation.scheduler.waiting:
        order.append(simulation.scheduler.waiting.next())
        simulation.scheduler.waiting.take(order[-1])
    assert order == [*small, *large[2:]], "the small call has fewer running rows, as long as none of its rows starts"


def test_a_preempted_group_comes_before_its_equals() -> None:
    simulation = Simulation(random.Random(1), cross=False, max_batch_rows=1, max_batch_tokens=64, blocks=400)
    first, second = call(simulation, 1, 2)
    turn(simulation)
    others = call(simulation, 9, 2)
    simulation.scheduler.restart(first)
    assert list(simulation.scheduler.waiting) == [first, second, *others]
    simulation.scheduler.remove(second)
    assert list(simulation.scheduler.waiting) == [first, *others] and len(simulation.scheduler.waiting) == 3


def test_parts_of_one_encode_call_share_its_turns() -> None:
    def encode(sequence_id: int, call_id: int, texts: int) -> EncodeRequest:
        return EncodeRequest(Encode(sequence_id, "m", "embed", [EncodeItem([1])] * texts, call_id=call_id))

    queue = EncodeQueue()
    first, second, other = encode(1, 1, 2), encode(2, 1, 2), encode(3, 3, 2)
    for request in (first, second, other):
        queue.add(request)
    taken = [queue.take(1)[0][0] for _ in range(6)]
    assert taken == [first, other, first, other, second, second]
    assert len(queue) == queue.num_waiting_tokens == 0
    for request in (first, other):
        request.next_item = 1
        queue.add(request)
    queue.remove(first)
    assert queue.take(5) == [(other, 1)]
