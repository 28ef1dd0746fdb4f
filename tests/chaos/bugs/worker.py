"""Planted bugs in the worker. The docstring of each function says what goes wrong."""

from __future__ import annotations

import itertools
import time
from typing import Any

from tests.chaos.bugs.registry import bug, replace


@bug("worker")
def worker_outlives_its_server() -> None:
    """The worker does not exit when its parent process dies, nor when its socket is closed."""
    from server.engine.process import worker

    replace(worker, "die_with_parent", lambda: None)
    old = replace(worker, "main", lambda arguments: (old(arguments), time.sleep(600)))


@bug("worker")
def released_blocks_are_lost() -> None:
    """One of twenty calls that release a sequence's KV blocks frees nothing."""
    from server.engine.cache.block_tables import BlockTables

    count = itertools.count(1)

    def release(self: Any, group: Any, *rest: Any, **named: Any) -> None:
        if next(count) % 20:
            old(self, group, *rest, **named)
            return
        for row in group.sequences:
            row.block_table.clear()

    old = replace(BlockTables, "release", release)


@bug("worker")
def preempted_sequences_lose_a_token() -> None:
    """A preempted sequence continues with a wrong last token."""
    from server.engine.scheduling.scheduler import Scheduler

    def preempt(self: Any, group: Any) -> None:
        for row in group.sequences:
            if group.num_generated:
                row.tokens[-1] = 10
        old(self, group)

    old = replace(Scheduler, "_preempt", preempt)


@bug("worker")
def noise_depends_on_the_batch() -> None:
    """The random numbers of a row depend on its index in the batch."""
    from server.engine.choosing import sampler

    old = replace(
        sampler, "uniform", lambda seeds, positions: old([seed + i for i, seed in enumerate(seeds)], positions)
    )


@bug("worker")
def values_that_are_not_finite_pass() -> None:
    """A row with NaN or infinite logits gets a token instead of an error."""
    from server.engine.choosing import selection

    def select(logits: Any, top_k: Any, groups: Any) -> Any:
        return old(logits.nan_to_num(), top_k._replace(is_finite=top_k.is_finite | True), groups)

    old = replace(selection, "_select", select)


@bug("worker")
def rows_are_never_shared() -> None:
    """A running row keeps its place in the batch until its end, and no call is short enough to start before others."""
    from server.engine.scheduling.fair_rows import FairRows
    from server.engine.sequences import sequence

    replace(FairRows, "victim", lambda self, group: None)
    replace(sequence, "SHORT_NEW_TOKENS", 0)


@bug("worker")
def streams_wait_for_large_work() -> None:
    """A step computes as many tokens of prompts and texts as fit, even while streams run."""
    from server.engine.encoding.encoder_engine import EncoderEngine
    from server.engine.scheduling.scheduler import Scheduler

    replace(Scheduler, "_prefill_limit", lambda self, schedule: self.max_batch_tokens)
    replace(EncoderEngine, "_max_step_tokens", lambda self, decode_seconds: self.max_tokens)


@bug("http", "worker")
def missing_kernels_are_silent() -> None:
    """A worker without compiled kernels logs no warning."""
    from server.engine.process import service

    replace(service.log, "warning", lambda *rest: None)


@bug("worker")
def workers_pack_their_own_weights() -> None:
    """Each worker packs its own copy of the weights instead of sharing one."""
    from tests.chaos.checks import shared_weights

    replace(shared_weights.memory_of_workers, "__defaults__", (False,))


@bug("worker")
def grammars_compile_in_the_step() -> None:
    """The engine step waits until every new grammar is compiled, and one second longer."""
    from server.engine.grammars.grammar_masks import GrammarMasks

    old = replace(GrammarMasks, "start", lambda self, *rest: (time.sleep(1), old(self, *rest))[1])


@bug("worker")
def the_start_has_no_limit() -> None:
    """Reading the settings and tensor names of a checkpoint is stopped only after eight seconds."""
    from server.engine.loading import planning_limit

    replace(planning_limit, "SECONDS", 8.0)


@bug("worker")
def models_load_between_steps() -> None:
    """The main loop itself reads and packs the weights of a new model, so that no step runs meanwhile."""
    from server.engine.process.model_loader import ModelLoader

    def start(self: Any) -> None:
        old(self)
        if self._thread is not None:
            self._thread.join()

    old = replace(ModelLoader, "_start", start)
