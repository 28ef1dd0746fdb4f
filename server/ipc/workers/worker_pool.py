"""The workers of a server: one `Supervisor` for each, started, restarted and stopped together.

The first worker starts alone, because it reports the number of devices. Several workers on a CPU divide its cores
and share the memory of the weights. The pool fails if a supervisor gives up or raises an unexpected exception.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from server.errors import StartError
from server.ipc.wire.descriptions import DeviceChoice, EngineOptions, ModelSpec
from server.ipc.wire.step_messages import FailureCode
from server.ipc.workers.supervisor import Supervisor, SupervisorLimits, WorkerListener
from server.ipc.workers.weight_memory import WeightMemory
from server.ipc.workers.worker_process import WORKER_COMMAND
from server.system.cores import CoreShare, divide_cores

log = logging.getLogger("triptych.supervisor")

POLL_SECONDS = 0.02


class PoolListener(WorkerListener, Protocol):
    """The methods of `EngineClient` that a pool uses.

    retire: sends no further requests to a worker.
    open_on: returns the number of sequences of a worker that have not ended.
    fail_all: ends every open sequence with a failure.
    restored: waits until a new worker has the models that other workers loaded after their start.
    """

    def retire(self, epoch: int) -> None: ...

    def open_on(self, epoch: int) -> int: ...

    def fail_all(self, code: FailureCode, message: str) -> None: ...

    async def restored(self, epoch: int) -> None: ...


class WorkerPool:
    """Keeps the workers of a server running from `start` to `stop`. All methods must be called on one event loop.

    models, device, options: configuration of each worker. `options.threads` is the number of threads of one worker; 0
        divides the cores among the workers.
    client: receives the messages of all workers.
    num_workers: number of workers; 0 means one for each CUDA device, or one on a CPU.
    limits: time limits and number of restarts of each worker.
    command: command that starts a worker process.
    grace_seconds: time that the running requests of a worker get to finish before it is replaced by `restart`.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        device: DeviceChoice,
        options: EngineOptions,
        client: PoolListener,
        num_workers: int = 1,
        limits: SupervisorLimits | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        grace_seconds: float = 30.0,
    ) -> None:
        self.supervisors: list[Supervisor] = []
        self.failure: str | None = None
        self._models = list(models)
        self._device = device
        self._options = options
        self._client = client
        self._num_workers = num_workers
        self._limits = limits
        self._command = command
        self._grace_seconds = grace_seconds
        self._cores = divide_cores(max(num_workers, 1), options.threads)
        self._weights = WeightMemory(models) if num_workers > 1 and models else None
        self._epochs = itertools.count(1)
        self._replacement: Supervisor | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()

    @property
    def num_workers(self) -> int:
        """Number of workers that should be ready. It may be too low until the first worker has counted the devices."""
        return max(self._num_workers, len(self.supervisors), 1)

    @property
    def num_ready(self) -> int:
        """Number of workers that are ready and sent a message recently."""
        return sum(supervisor.fresh for supervisor in self.supervisors)

    @property
    def device_bytes(self) -> int:
        """Bytes that models on demand may take of each CUDA device: the smallest number that any worker reports.

        0 on a CPU.
        """
        return min((supervisor.device_bytes for supervisor in self.supervisors if supervisor.device_bytes), default=0)

    async def start(self) -> None:
        """Start all workers and wait until they are ready.

        Raises CheckpointError if a model cannot be loaded, and StartError if a worker process does not become ready.
        """
        first = self._supervisor(0)
        self.supervisors.append(first)
        await first.start()
        self._observe(first)
        others = [self._supervisor(index) for index in range(1, self._num_workers or first.num_devices)]
        self.supervisors += others
        await asyncio.gather(*(supervisor.start() for supervisor in others))
        for supervisor in others:
            self._observe(supervisor)

    async def stop(self) -> None:
        """Stop all workers, and wait until their processes have ended."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await asyncio.gather(*(supervisor.stop() for supervisor in self._all()))
        if self._weights is not None:
            self._weights.close()

    def kill(self) -> None:
        """Kill all workers without waiting."""
        for supervisor in self._all():
            supervisor.kill()

    async def wait_failed(self) -> str:
        """Wait until the pool has failed: its workers ended and will not be started again. Returns the reason."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    def restart(self) -> None:
        """Replace the workers one by one, in the background. Running requests get a grace time to finish.

        Does nothing if a restart is in progress.
        """
        if self._restarting is not None and not self._restarting.done():
            log.warning("the workers are being restarted already")
            return
        self._restarting = asyncio.create_task(self._restart(), name="restart workers")

    def _supervisor(self, index: int) -> Supervisor:
        cores = self._cores[index] if index < len(self._cores) else CoreShare((), self._options.threads)
        options = msgspec.structs.replace(
            self._options, worker_index=index, threads=cores.threads, num_workers=max(self._num_workers, 1)
        )
        command = [*self._command]
        if cores.processors:
            command += ["--processors", ",".join(map(str, cores.processors))]

        def has_others() -> bool:
            return any(other.fresh for other in self.supervisors if other is not supervisor)

        supervisor = Supervisor(
            self._models,
            self._device,
            options,
            self._client,
            self._limits,
            command,
            self._weights,
            self._epochs,
            has_others,
        )
        return supervisor

    def _all(self) -> list[Supervisor]:
        return [*self.supervisors, *([self._replacement] if self._replacement is not None else [])]

    def _observe(self, supervisor: Supervisor) -> None:
        """Make the whole pool fail as soon as a supervisor fails."""
        assert supervisor.task is not None
        supervisor.task.add_done_callback(lambda task: self._on_end(supervisor, task))

    def _on_end(self, supervisor: Supervisor, task: asyncio.Task[None]) -> None:
        if task.cancelled() or supervisor.state == "stopped" or self._failed.is_set():
            return
        error = task.exception()
        if error is not None:
            log.error("a fault of the supervisor", exc_info=error)
            self._fail(f"the supervisor of the workers ended by a fault of its own ({type(error).__name__})")
        elif supervisor.state == "failed":
            self._fail(supervisor.failure)

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._failed.set()
        self.kill()
        self._client.fail_all("engine_error", "the engine stopped and could not be started again")

    async def _restart(self) -> None:
        """For each old worker, start a new worker; then let the old worker finish its requests, and stop it.

        If a new worker does not become ready, the restart ends, and the remaining old workers continue.
        """
        for place, old in enumerate(list(self.supervisors)):
            log.warning("restarting worker %d (%d of %d)", old.epoch, place + 1, len(self.supervisors))
            new = self._replacement = self._supervisor(place)
            try:
                await new.start()
            except StartError as error:
                await new.stop()
                self._replacement = None
                # Who reads this line may start the next restart, so this one is over by then.
                log.error("the restart ends, and the old workers continue: %s", error)
                return
            self.supervisors[place], self._replacement = new, old
            self._observe(new)
            await self._client.restored(new.epoch)
            await self._finish(old)
            self._replacement = None
        log.warning("all workers are restarted")

    async def _finish(self, old: Supervisor) -> None:
        """Let a worker finish its requests, for at most the grace time, and stop the worker."""
        old.retire()
        self._client.retire(old.epoch)
        end = time.monotonic() + self._grace_seconds
        while self._client.open_on(old.epoch) and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        self._client.on_stopped(old.epoch)
        await old.stop()
