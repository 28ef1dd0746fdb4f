"""The prefill budget chooses good sizes of prompt chunks beside streams, with simulated durations of GPU and CPU steps.

On the GPU, a step without prefill is a CUDA graph, but a step with prefill needs time to launch each kernel (its fixed
part). The durations are those of an H200 with a LLaMA of 8 billion parameters in bfloat16.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest

from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.scheduling.prefill_budget import MAX_STEP_STRETCH, MIN_PREFILL_TOKENS, PrefillBudget
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceGroup
from tests.ipc.one_row import one_row

Cost = Callable[[int, int], float]
"""Function that returns the seconds of a step, given its number of decode tokens and its number of prefill tokens."""
CHUNKS = (16, 64, 128, 256, 512, 1024, 2048)
GPU_STEP_TOKENS = 2048


def decode_graph(decode_tokens: int) -> float:
    return 0.005 + 0.001 * decode_tokens / 64


def linear(fixed_seconds: float) -> Cost:
    """Step durations of a GPU. A step with prefill takes longer by a fixed part, and by 0.03 ms per prefill token."""
    return lambda decode, prefill: decode_graph(decode) + (fixed_seconds + 3e-5 * prefill if prefill else 0.0)


def measured(decode: int, prefill: int) -> float:
    """Measured step durations of a GPU. Up to 512 prefill tokens, only the launches of the kernels count."""
    if not prefill:
        return decode_graph(decode)
    return float(np.interp(prefill, (0, 512, 2048, 8000), (0.020, 0.021, 0.054, 0.253)))


def cpu(token_seconds: float) -> Cost:
    """Step durations of a CPU, without a fixed part for prefill. token_seconds: seconds per prefill token."""
    return lambda decode, prefill: 0.008 + 0.00025 * decode + token_seconds * prefill


class FixedChunks(PrefillBudget):
    """A budget that allows the same number of prefill tokens in each step."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def max_prefill_tokens(self, *counts: int) -> int:
        return self.tokens


class CostPerToken(PrefillBudget):
    """The budget of decision 26, with one cost per prefill token: the mean over the last 2,048 tokens.

    It answers like the budget `other`, and records both answers.

    choices: for each step, the number of prefill tokens of decision 26, and the number of `other`.
    """

    def __init__(self, other: PrefillBudget) -> None:
        super().__init__()
        self.other = other
        self.choices: list[tuple[int, int]] = []
        self.tokens = self.seconds = 0.0

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        if prefill_tokens and self._decode_step_seconds:
            keep = 2048 / (2048 + prefill_tokens)
            self.tokens = keep * self.tokens + prefill_tokens
            self.seconds = keep * self.seconds + max(seconds - self._decode_seconds(max(decode_tokens, 1)), 0.0)
        super().observe(decode_tokens, prefill_tokens, seconds)
        self.other.observe(decode_tokens, prefill_tokens, seconds)

    def max_prefill_tokens(self, decoding: int, just_started: int, waiting: int, decode_tokens: int) -> int | None:
        found = self.other.max_prefill_tokens(decoding, just_started, waiting, decode_tokens)
        if found is not None:
            decode, bounds = self._decode_seconds(decode_tokens), []
            if decoding:
                bounds.append(MAX_STEP_STRETCH * decode * max(waiting / decoding, 1.0))
            if just_started:
                bounds.append(max(decode, self._last_step_seconds) * max(waiting / just_started, 1.0))
            before = max(int(min(bounds) / (self.seconds / self.tokens)), MIN_PREFILL_TOKENS)
            self.choices.append((before, found))
        return found


@dataclass
class Run:
    """The results of a simulation.

    seconds: simulated duration. gaps: times between two tokens of a stream, in seconds.
    first: times to the first token, in seconds. chunks: numbers of prefill tokens in steps with decode tokens.
    """

    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)


def simulate(
    cost: Cost,
    budget: PrefillBudget,
    requests: Iterable[tuple[float, int, int]],
    step_tokens: int = GPU_STEP_TOKENS,
    noise: float = 0.0,
) -> Run:
    """Simulate the scheduler with requests.

    cost: duration of a step. requests: for each, its arrival in seconds, its prompt tokens and its new tokens.
    step_tokens: largest number of tokens in a step. noise: relative error of the measured durations.
    """
    rng, run = random.Random(7), Run()
    scheduler = Scheduler(BlockTables(BlockManager(4000, 16), None), step_tokens, 128)
    scheduler.prefill_budget = budget
    coming = sorted(requests)[::-1]
    arrived: dict[SequenceGroup, float] = {}
    latest: dict[SequenceGroup, float] = {}
    while True:
        while coming and coming[-1][0] <= run.seconds:
            arrival, prompt, new = coming.pop()
            tokens = [rng.randrange(1000) for _ in range(prompt)]
            message = one_row(len(arrived), "m", tokens, [], max_new_tokens=new)
            group = SequenceGroup(message, message.rows[0], False, arrival)
            arrived[group] = arrival
            scheduler.add(group)
        schedule = scheduler.schedule()
        if schedule is None:
            if not coming:
                return run
            run.seconds = coming[-1][0]
            continue
        decode, prefill = schedule.num_decode_tokens, schedule.num_prefill_tokens
        took = cost(decode, prefill) * rng.lognormvariate(0.0, noise)
        run.seconds += took
        if decode and prefill:
            run.chunks.append(prefill)
        budget.observe(decode, prefill, took)
        ready = [row.group for row in schedule.rows if row.needs_logits]
        scheduler.computed(schedule)
        for group in ready:
            if group in latest:
                run.gaps.append(run.seconds - latest[group])
            else:
                run.first.append(run.seconds - arrived[group])
            latest[group] = run.seconds
            scheduler.append(group, [7])
            if group.num_generated == group.max_new_tokens:
                scheduler.remove(group)


def gpu_budget() -> PrefillBudget:
    """A budget that has measured steps of a GPU with a fixed part of 15 ms."""
    budget, cost = PrefillBudget(has_fixed_part=True), linear(0.015)
    for decode in (1, 4, 16, 64):
        budget.observe(decode, 0, cost(decode, 0))
        for prefill in (16, 200, 1000) * 3:
            budget.observe(decode, prefill, cost(decode, prefill))
    return budget


def test_the_tokens_of_a_chunk_may_take_as_long_as_the_fixed_part():
    budget = gpu_budget()
    assert budget.max_prefill_tokens(64, 0, 1, 64) == pytest.approx(500, abs=10)
    assert budget.max_prefill_tokens(64, 0, 64, 64) == pytest.approx(500, abs=10)
    # With two waiting requests per stream, the allowed delay is twice as long: 60 ms, of which the fixed part takes 15.
    assert budget.max_prefill_tokens(32, 0, 64, 32) == pytest.approx(1500, abs=20)
    budget.observe(64, 0, 0.006)
    assert budget.max_prefill_tokens(0, 64, 1, 64) == pytest.approx(500, abs=10)


def test_a_stretch_of_more_than_twice_the_fixed_part_is_kept():
    budget = gpu_budget()
    budget.observe(0, 1000, 0.066)
    # A request that has one token may be delayed as long as its own first step took, here 66 ms.
    assert budget.max_prefill_tokens(0, 64, 1, 64) == pytest.approx((0.066 - 0.015) / 3e-5, abs=40)


START = 1.0
"""Arrival of the requests in seconds. Three earlier requests give the budget some measurements before."""
EARLIER = [(0.0, 20, 30), (0.05, 60, 30), (0.1, 100, 30)]
AT_ONCE = [(START, 128, 128)] * 64
IN_TURN = [(START + 0.003 * number, 128, 128) for number in range(64)]


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("requests", [AT_ONCE, IN_TURN], ids=["at once", "in turn"])
@pytest.mark.parametrize("cost", [linear(0.015), linear(0.020), measured], ids=["15 ms", "20 ms", "measured"])
def test_streams_of_a_gpu_end_nearly_as_early_as_with_the_best_chunks(cost, requests, noise):
    best = min(simulate(cost, FixedChunks(tokens), EARLIER + requests, noise=noise).seconds for tokens in CHUNKS)
    found = simulate(cost, PrefillBudget(has_fixed_part=True), EARLIER + requests, noise=noise)
    assert found.seconds - START < 1.3 * (best - START)


def test_with_one_cost_per_token_the_same_streams_take_several_times_as_long():
    costs = linear(0.015), linear(0.015)
    budgets = PrefillBudget(has_fixed_part=False), PrefillBudget(has_fixed_part=True)
    before, found = (simulate(*pair, EARLIER + AT_ONCE) for pair in zip(costs, budgets, strict=True))
    assert before.seconds - START > 3 * (found.seconds - START)
    assert np.median(before.chunks) == MIN_PREFILL_TOKENS


@pytest.mark.parametrize("fixed", [0.005, 0.015])
def test_a_long_prompt_is_read_in_chunks_that_take_as_long_as_the_fixed_part(fixed):
    requests = [(START, 128, 500)] * 63 + [(START + 1.5, 8000, 10)]
    found = simulate(linear(fixed), PrefillBudget(has_fixed_part=True), EARLIER + requests)
    assert np.median(found.chunks[-10:]) == pytest.approx(fixed / 3e-5, rel=0.25)
    assert np.percentile(found.gaps, 99) < 0.006 + 2.2 * fixed
    # The prompt needs about 16 or 50 steps, each as long as a decode step plus twice the fixed part.
    assert max(found.first) < 1.5 * (8000 * 3e-5 / fixed) * (0.006 + 2 * fixed)


def poisson(rate: float, count: int, prompt: tuple[int, int], new: int) -> list[tuple[float, int, int]]:
    rng, now, requests = random.Random(3), START, []
    for _ in range(count):
        now += rng.expovariate(rate)
        requests.append((now, rng.randint(*prompt), new))
    return requests


@pytest.mark.parametrize("has_fixed_part", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("token_seconds", [0.0005, 0.0001, 0.00005])
def test_a_cpu_gets_the_chunks_of_one_cost_per_token(has_fixed_part, noise, token_seconds):
    both = CostPerToken(PrefillBudget(has_fixed_part))
    requests = EARLIER + poisson(2.0, 60, (60, 300), 80)
    found = simulate(cpu(token_seconds), both, requests, step_tokens=512, noise=noise)
    before, after = np.array(both.choices[20:]).T
    if not has_fixed_part:
        assert np.array_equal(before, after)
    assert np.median(after / before) == pytest.approx(1.0, abs=0.01)
    assert np.percentile(after / before, [5, 95]) == pytest.approx([1.0, 1.0], abs=0.05)
    assert np.percentile(found.gaps, 99) < 3 * np.median(found.gaps)
