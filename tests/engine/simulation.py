"""Simulate an engine to check the scheduler: tokens are random, and the cache stores texts instead of tensors.

Each slot of the fake cache contains the text up to its token, so that a wrong or overwritten slot is detected. Block
ownership and the order of computation are checked after every event. With a prefix cache, a reused block must contain
the prefix of the same client, and its tokens must have had finite logits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.cache.host_pool import CopyFailed, HostPool
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from tests.ipc.one_row import one_row

VOCAB = 50

POISON = ("poison",)


class Simulation:
    """A scheduler with a fake cache, and all groups that were added.

    cross: whether groups have an encoded source, which needs a second pool of blocks.
    prefix: whether the prefix cache is on. Prompts then share prefixes, and each client has one of two salts.
    drafts: whether sequences without beams get random drafts, of which a random part is accepted.
    host: whether blocks that leave the prefix cache are kept in host memory, where some copies are damaged.
    sizes: block_size, blocks, max_batch_tokens and max_batch_rows; those not given are random.
    """

    def __init__(
        self, rng: random.Random, cross: bool, prefix: bool = False, drafts: bool = False, host: bool = False, **sizes
    ) -> None:
        self.rng = rng
        self.clock = random.Random(0)
        self.drafts = drafts
        self.accepted = 0
        self.short_steps = 0
        self.stems = [[rng.randrange(VOCAB) for _ in range(rng.randint(4, 24))] for _ in range(3)] if prefix else [[]]
        self.failures = 0.03 if prefix else 0.0
        self.block_size = sizes.get("block_size") or rng.choice([1, 2, 4])
        blocks = sizes.get("blocks") or (rng.randint(35, 60) if cross else rng.randint(60, 120)) // self.block_size
        pool = BlockManager(blocks, self.block_size)
        cross_pool = BlockManager(rng.randint(40, 160) // self.block_size, self.block_size) if cross else None
        self.scheduler = Scheduler(
            BlockTables(pool, cross_pool, prefix),
            max_batch_tokens=sizes.get("max_batch_tokens") or rng.choice([2, 8, 16, 64]),
            max_batch_rows=sizes.get("max_batch_rows") or rng.choice([6, 12, 20]),
        )
        self.requests: list[SequenceGroup] = []
        self.refused = 0
        self.salts: dict[SequenceGroup, str] = {}
        self.cache: dict[int, tuple] = {}
        self.verified_slots: set[int] = set()
        self.copies = FakeCopies(self)
        if host:
            self.scheduler.blocks.host = HostPool(pool, rng.randint(4, 60), self.copies)

    def add(self, **params) -> SequenceGroup | None:
        rng = self.rng
        params = {"max_new_tokens": rng.randint(1, 30), "num_beams": rng.choice([1, 1, 2, 3]), **params}
        prompt = rng.choice(self.stems) + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 15))]
        cross = self.scheduler.blocks.cross_pool is not None
        salt = rng.choice("ab") if len(self.stems) > 1 else ""
        start = [1] if cross else []
        message = one_row(len(self.requests), "m", prompt, start, cache_salt=salt, end_token_ids=[0], **params)
        request = SequenceGroup(message, message.rows[0], cross, arrival=0.0)
        if self.scheduler.refusal(request):
            self.refused += 1
            return None
        self.requests.append(request)
        self.salts[request] = salt
        self.scheduler.add(request)
        return request

    def step(self) -> bool:
        schedule = self.scheduler.schedule_short()
        self.short_steps += schedule is not None
        if schedule is None:
            if self.drafts:
                self.propose_drafts()
            schedule = self.scheduler.schedule()
        if schedule is None:
            assert not self.scheduler.running and not self.scheduler.waiting, "groups are left, but no step"
            return False
        self.check_blocks()
        for block in self.scheduler.blocks.take_blocks_to_clear()[0]:
            self.cache |= dict.fromkeys(self.slots_of(block), ())
        assert POISON not in self.cache.values(), "a block with non-finite values is used again"
        self.compute(schedule)
        guessed = sum(len(row.sequence.draft) for row in schedule.rows)
        assert not guessed or guessed + len(schedule.rows) <= self.scheduler.max_batch_tokens
        decoded, added = schedule.num_decode_tokens, schedule.num_prefill_tokens
        seconds = self.clock.uniform(0.5, 2.0) * (1 + decoded) + self.clock.uniform(0.0, 0.05) * added
        self.scheduler.prefill_budget.observe(decoded, added, seconds)
        ready = dict.fromkeys(row.group for row in schedule.rows if row.needs_logits)
        self.scheduler.computed(schedule)
        for request in ready:
            if self.rng.random() < self.failures:
                if request.sequences[0].draft:
                    self.poison(request)
                    self.scheduler.retry_without_draft(request)
                else:
                    self.fail(request)
                continue
            self.verified_slots |= self.slots(request)
            self.scheduler.blocks.publish(request)
            self.choose(request)
        self.check_blocks()
        return True

    def slots(self, request: SequenceGroup) -> set[int]:
        """Slots with the keys and values of all computed tokens of a group."""
        size = self.block_size
        return {
            row.block_table[position // size] * size + position % size
            for row in request.sequences
            for position in range(row.num_computed_tokens)
        }

    def propose_drafts(self) -> None:
        for request in self.scheduler.running:
            if request.accepts_drafts and request.is_ready_to_decode:
                left = request.max_new_tokens - request.num_generated - 1
                count = self.rng.randint(0, max(min(left, 9), 0))
                request.sequences[0].draft = [self.rng.randrange(VOCAB) for _ in range(count)]

    def poison(self, request: SequenceGroup) -> None:
        """Mark as non-finite all slots of a group whose logits were not checked, including the slots of its draft."""
        for row in request.sequences:
            for position in range(row.num_computed_tokens, row.num_computed_tokens + len(row.draft)):
                slot = row.block_table[position // self.block_size] * self.block_size + position % self.block_size
                self.verified_slots.discard(slot)
                self.cache[slot] = POISON
        for slot in self.slots(request) - self.verified_slots:
            self.cache[slot] = POISON

    def fail(self, request: SequenceGroup) -> None:
        """End a group because its logits are not finite."""
        self.poison(request)
        self.scheduler.remove(request, corrupt=True)

    def compute(self, schedule: Schedule) -> None:
        """Simulate a step: check the texts in the slots of earlier tokens, then write those of new tokens."""
        size, sources = self.block_size, set(schedule.sources)
        taken = {row.group for row in schedule.rows}
        assert sources <= taken
        for source, destination, first, end in schedule.copies:
            for offset in range(first, end):
                self.cache[destination * size + offset] = self.cache.get(source * size + offset, ())
                if source * size + offset in self.verified_slots:
                    self.verified_slots.add(destination * size + offset)
        written: set[int] = set()
        for row in schedule.rows:
            request, sequence = row.group, row.sequence
            assert request.status is SequenceStatus.RUNNING and row.num_tokens > 0
            assert request.source_encoded or request in sources or not request.source_token_ids
            start = sequence.num_computed_tokens
            assert start + row.num_tokens <= len(sequence.tokens)
            assert row.needs_logits or not sequence.draft
            assert len(sequence.block_table) * size >= start + row.num_step_tokens
            for position in range(start):
                slot = sequence.block_table[position // size] * size + position % size
                assert self.cache[slot] == self.text(row, position), "a row finds wrong keys and values"
        for row in schedule.rows:
            request, sequence = row.group, row.sequence
            start = sequence.num_computed_tokens
            for position in range(start, start + row.num_step_tokens):
                block = sequence.block_table[position // size]
                assert self.scheduler.blocks.self_pool.references(block) == 1 or position < request.shared_tokens
                assert not self.scheduler.blocks.self_pool.is_published(block), "a published block is written"
                slot = block * size + position % size
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                self.cache[slot] = self.text(row, position)
        self.verified_slots -= written

    def text(self, row: ScheduledRow, position: int) -> tuple:
        """The right content of a slot: the client's salt, and all tokens up to the position.

        They determine the keys and values of a real model.
        """
        return self.salts.get(row.group, ""), *[*row.sequence.tokens, *row.sequence.draft][: position + 1]

    def choose(self, request: SequenceGroup) -> None:
        if request.beams is None:
            draft = request.sequences[0].draft
            right = self.rng.randint(0, len(draft))
            tokens = [*draft[:right], self.rng.randrange(VOCAB)]
            tokens = tokens[: tokens.index(0) + 1 if 0 in tokens else None]
            self.accepted += len(tokens) - 1
            self.scheduler.append(request, tokens)
            self.verified_slots |= self.slots(request)
            row = request.sequences[0]
            assert len(row.block_table) == self.scheduler.blocks.self_pool.blocks_for(row.num_computed_tokens)
            if tokens[-1] == 0 or request.num_generated == request.max_new_tokens:
                self.scheduler.remove(request)
            return
        assert all(row.num_uncomputed_tokens == 0 for row in request.sequences), "beams must decode together"
        rows, width = len(request.sequences), request.beams.num_candidates
        seed = np.random.default_rng(self.rng.randrange(2**32))
        log_probs = -np.sort(seed.exponential(size=(rows, width))).astype(np.float32)
        tokens = np.stack([seed.permutation(VOCAB)[:width] for _ in range(rows)])
        parents = request.beams.advance(log_probs, tokens)
        if request.beams.done:
            self.scheduler.remove(request)
        else:
            self.scheduler.blocks.fork(request, parents)

    def abort(self) -> None:
        living = [request for request in self.requests if request.status is not SequenceStatus.FINISHED]
        if living:
            self.scheduler.remove(self.rng.choice(living))
            self.check_blocks()

    def check_blocks(self) -> None:
        scheduler = self.scheduler
        holding: list[SequenceGroup] = []
        for request in self.requests:
            if request.cross_block_table or any(row.block_table for row in request.sequences):
                assert request.status is not SequenceStatus.FINISHED
                holding.append(request)
        pools = [(scheduler.blocks.self_pool, [row.block_table for r in holding for row in r.sequences])]
        if scheduler.blocks.cross_pool is not None:
            pools.append((scheduler.blocks.cross_pool, [r.cross_block_table for r in holding]))
        for pool, tables in pools:
            owners: Counter[int] = Counter()
            for table in tables:
                owners.update(table)
                assert len(set(table)) == len(table)
            assert pool.free_blocks + pool.used_blocks == pool.num_blocks
            assert pool.used_blocks == len(owners)
            for block in range(pool.num_blocks):
                assert pool.references(block) == owners.get(block, 0)
        groups: Counter[int] = Counter()
        for request in holding:
            groups.update({block for row in request.sequences for block in row.block_table})
        for block, count in groups.items():
            if count > 1:
                assert scheduler.blocks.prefix_cache, "requests share a block"
                assert self.verified_slots.issuperset(self.slots_of(block)), "an unverified block is shared"
        assert sum(request.max_rows for request in scheduler.running) <= scheduler.max_batch_rows

    def slots_of(self, block: int) -> range:
        return range(block * self.block_size, (block + 1) * self.block_size)

    def run_random_events(self, count: int) -> None:
        """Add requests, abort them and run steps in a random order, then run all requests to their end."""
        for _ in range(count):
            event = self.rng.random()
            if event < 0.3:
                self.add()
            elif event < 0.36:
                self.abort()
            else:
                self.step()
        self.run_to_the_end()

    def run_to_the_end(self) -> None:
        for _ in range(5000):
            if not self.step():
                break
        assert all(request.status is SequenceStatus.FINISHED for request in self.requests), "a group never ended"
        assert self.scheduler.blocks.self_pool.used_blocks == 0
        assert self.scheduler.blocks.cross_pool is None or self.scheduler.blocks.cross_pool.used_blocks == 0


class FakeCopies:
    """Copies blocks of a simulation to host memory and back. Implements `BlockCopies`.

    damage: probability that a copy is damaged in host memory. lack: probability that blocks cannot be copied.
    """

    damage, lack = 0.04, 0.04

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.slots: dict[int, list[tuple]] = {}

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._may_fail()
        for block, slot in zip(blocks, slots, strict=True):
            places = self._simulation.slots_of(block)
            assert self._simulation.verified_slots.issuperset(places), "an unverified block is kept"
            self.slots[slot] = [self._simulation.cache[place] for place in places]
            if self._simulation.rng.random() < self.damage:
                self.slots[slot] = [POISON] * len(places)

    def _may_fail(self) -> None:
        if self._simulation.rng.random() < self.lack:
            raise CopyFailed("no memory")

    def to_device(self, slots: Sequence[int], blocks: Sequence[int]) -> list[bool]:
        self._may_fail()
        pool = self._simulation.scheduler.blocks.self_pool
        assert all(pool.references(block) == 1 and not pool.is_published(block) for block in blocks)
        is_right = []
        for slot, block in zip(slots, blocks, strict=True):
            places = self._simulation.slots_of(block)
            self._simulation.cache |= dict(zip(places, self.slots[slot], strict=True))
            is_right.append(POISON not in self.slots[slot])
            change = (
                self._simulation.verified_slots.update
                if is_right[-1]
                else (self._simulation.verified_slots.difference_update)
            )
            change(places)
        return is_right


def queue(simulation: Simulation, prompt: int, max_new_tokens: int = 20) -> SequenceGroup:
    """Queue a group without beams.

    prompt: number of tokens of its prompt, or of its source if the simulation has an encoder.
    """
    cross = simulation.scheduler.blocks.cross_pool is not None
    message = one_row(0, "m", [5] * prompt, [1] if cross else [], max_new_tokens=max_new_tokens)
    request = SequenceGroup(message, message.rows[0], cross, 0.0)
    simulation.requests.append(request)
    simulation.scheduler.add(request)
    return request


def turn(simulation: Simulation) -> Schedule:
    """Run one step, in which every sequence with logits gets the token 7. It is not an end token."""
    schedule = simulation.scheduler.schedule_short() or simulation.scheduler.schedule()
    assert schedule is not None
    simulation.compute(schedule)
    ready = {row.group for row in schedule.rows if row.needs_logits}
    simulation.scheduler.computed(schedule)
    for request in ready:
        simulation.verified_slots |= simulation.slots(request)
        simulation.scheduler.blocks.publish(request)
        request.sequences[0].tokens.append(7)
    return schedule
