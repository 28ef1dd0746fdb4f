"""The worker pool with real worker processes, which run a fake engine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from server.errors import CheckpointError, StartError
from server.ipc.client.client import EngineClient
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.generate_messages import Finished, Tokens
from server.ipc.wire.step_messages import Failed
from server.ipc.workers.supervisor import Supervisor, SupervisorLimits
from server.ipc.workers.worker_pool import WorkerPool
from tests.ipc.observing import Recorder, submit
from tests.ipc.test_supervisor import LIMITS, endless, eventually
from tests.wire.checkpoints import write_checkpoint
from tests.wire.fake_serve import WORKER


@asynccontextmanager
async def pooled(
    directory: Path, workers: int = 2, start: bool = True, limits: SupervisorLimits = LIMITS, grace: float = 60.0
) -> AsyncIterator[tuple[WorkerPool, EngineClient, Recorder]]:
    recorder = Recorder()
    client = EngineClient(recorder, 100, 100_000, stale_seconds=limits.stale_seconds)
    models = [ModelSpec("decoder", str(directory), "auto")]
    pool = WorkerPool(models, "cpu", EngineOptions(), client, workers, limits, WORKER, grace)
    try:
        if start:
            await pool.start()
        yield pool, client, recorder
    finally:
        await pool.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "decoder")


def pids(pool: WorkerPool) -> list[int]:
    found = [supervisor.pid for supervisor in pool.supervisors]
    return [pid for pid in found if pid is not None]


async def test_the_smallest_device_decides_the_memory_for_models(directory: Path) -> None:
    async with pooled(directory, 2) as (pool, _, _):
        assert pool.device_bytes == 0, "a CPU"
        for supervisor, size in zip(pool.supervisors, (5, 3), strict=True):
            supervisor.device_bytes = size
        assert pool.device_bytes == 3
        pool.supervisors[1].device_bytes = 0
        assert pool.device_bytes == 5, "the second worker is not ready yet"


async def test_all_workers_start_answer_and_stop(directory: Path) -> None:
    async with pooled(directory, 3) as (pool, client, recorder):
        assert (pool.num_ready, pool.num_workers) == (3, 3) and len(set(pids(pool))) == 3
        assert [supervisor.options.worker_index for supervisor in pool.supervisors] == [0, 1, 2]
        assert [supervisor.epoch for supervisor in pool.supervisors] == [1, 2, 3]
        assert len(recorder.progress) == 2, "the first worker reports for all"
        calls = [submit(client, endless(client)) for _ in range(6)]
        for call in calls:
            assert isinstance((await call.events())[0][1], Tokens)
        assert [client.open_on(epoch) for epoch in (1, 2, 3)] == [2, 2, 2]
        await eventually(lambda: recorder.stats[-1].running == 6)
        started = pids(pool)
        for call in calls:
            call.close()
    assert not any(map(psutil.pid_exists, started))


async def test_requests_move_to_the_other_worker_and_it_stays_ready(directory: Path) -> None:
    async with pooled(directory) as (pool, client, recorder):
        first = pool.supervisors[0]
        assert first.pid is not None
        psutil.Process(first.pid).send_signal(signal.SIGSTOP)
        waiting, elsewhere = submit(client, endless(client, "ab")), submit(client, endless(client))
        assert client.open_on(1) == client.open_on(2) == 1
        assert isinstance((await elsewhere.events())[0][1], Tokens)
        first.kill()
        kinds = []
        while events := await waiting.events():
            kinds += [type(event) for _, event in events]
        assert kinds[-1] is Finished and Failed not in kinds
        assert client.open_on(2) == 1 and pool.num_ready >= 1 and recorder.lost == 1
        await eventually(lambda: pool.num_ready == 2)
        assert [supervisor.epoch for supervisor in pool.supervisors] == [3, 2]
        elsewhere.close()


async def test_a_worker_that_keeps_failing_does_not_end_a_pool_with_another(directory: Path) -> None:
    limits = replace(LIMITS, max_failures=2, longest_pause_seconds=0.02)
    async with pooled(directory, limits=limits) as (pool, client, _):
        for _ in range(4):
            pool.supervisors[0].kill()
            await eventually(lambda: pool.num_ready == 1)
            await eventually(lambda: pool.num_ready == 2)
        assert pool.failure is None and client.connected


async def test_the_pool_fails_when_its_last_worker_cannot_be_started(directory: Path) -> None:
    async with pooled(directory) as (pool, client, _):
        (directory / "die").touch()
        waiting = submit(client, endless(client))
        pool.kill()
        reason = await pool.wait_failed()
        assert reason.startswith("a worker failed 3 times within 60 s; the last one (process ")
        assert pool.num_ready == 0 and not client.connected
        failures = [event for _, event in await waiting.events() if isinstance(event, Failed)]
        assert [failure.code for failure in failures] == ["engine_error"]


async def test_a_fault_of_the_supervisor_fails_the_pool(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pooled(directory) as (pool, client, _):

        def fault(epoch: int) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(client, "on_lost", fault)
        started = pids(pool)
        pool.supervisors[1].kill()
        assert "ended by a fault of its own (ZeroDivisionError)" in await pool.wait_failed()
        await eventually(lambda: not any(map(psutil.pid_exists, started)))


async def test_a_checkpoint_that_does_not_load_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with pooled(tmp_path / "empty", start=False) as (pool, _, _):
        with pytest.raises(CheckpointError, match=r"config\.json is missing"):
            await pool.start()
        assert len(pool.supervisors) == 1, "the others were not started"


@pytest.mark.parametrize("workers", [1, 2])
async def test_restart_replaces_each_worker_after_its_requests_have_ended(directory: Path, workers: int) -> None:
    async with pooled(directory, workers) as (pool, client, recorder):
        old = pids(pool)
        calls = [submit(client, endless(client, "a&b")) for _ in range(workers)]
        for call in calls:
            assert isinstance((await call.events())[0][1], Tokens)
        pool.restart()
        for place, pid in enumerate(old):
            await eventually(lambda place=place, pid=pid: pool.supervisors[place].pid not in (pid, None))
            assert psutil.pid_exists(pid), "the worker still has a request"
            new = submit(client, endless(client, "c"))
            assert isinstance((await new.events())[0][1], Tokens)
            assert client.open_on(place + 1) == 1, "it gets no other requests"
            psutil.Process(pid).send_signal(signal.SIGUSR1)
            await eventually(lambda pid=pid: not psutil.pid_exists(pid))
            new.close()
        for call in calls:
            kinds = []
            while events := await call.events():
                kinds += [type(event) for _, event in events]
            assert kinds[-1] is Finished
        await eventually(lambda: pool.num_ready == workers)
        assert recorder.lost == 0 and pool.failure is None


async def test_requests_that_outlast_the_grace_time_of_a_restart_fail(directory: Path) -> None:
    async with pooled(directory, 1, grace=0.1) as (pool, client, _):
        call = submit(client, endless(client))
        await call.events()
        pool.restart()
        ((_, event),) = await call.events()
        assert isinstance(event, Failed) and "restarted" in event.message
        await eventually(lambda: pool.num_ready == 1)


async def test_a_restart_that_fails_leaves_the_old_workers(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If new workers cannot start, the old ones stay. Another restart may follow at once.

    It may follow even while the failed worker is still stopping.
    """
    stop = Supervisor.stop

    async def slow_stop(supervisor: Supervisor) -> None:
        await asyncio.sleep(0.3)
        await stop(supervisor)

    monkeypatch.setattr(Supervisor, "stop", slow_stop)
    async with pooled(directory) as (pool, _, _):
        old = pids(pool)
        (directory / "config.json").unlink()
        pool.restart()
        await eventually(lambda: any("the restart ends" in message for message in caplog.messages))
        assert pids(pool) == old and pool.num_ready == 2 and pool.failure is None
        (directory / "config.json").write_text("{}")
        pool.restart()
        await eventually(lambda: not set(pids(pool)) & set(old) and pool.num_ready == 2)


async def test_stop_during_a_restart_leaves_no_process(directory: Path) -> None:
    async with pooled(directory, 1) as (pool, client, _):
        call = submit(client, endless(client))
        await call.events()
        old = pids(pool)
        pool.restart()
        await eventually(lambda: bool(pids(pool)) and pids(pool) != old)
        every = old + pids(pool)
        assert all(map(psutil.pid_exists, every))
    assert not any(map(psutil.pid_exists, every))


async def test_the_number_of_devices_decides_how_many_workers_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER_DEVICES", "2")
    async with pooled(directory, 0) as (pool, _, _):
        assert pool.num_ready == 2 and [supervisor.options.worker_index for supervisor in pool.supervisors] == [0, 1]


async def test_a_start_that_fails_later_stops_all_workers(directory: Path) -> None:
    async with pooled(directory, start=False) as (pool, _, _):
        starting = asyncio.create_task(pool.start())
        await eventually(lambda: len(pool.supervisors) == 2)
        (directory / "die").touch()
        pool.supervisors[1].kill()
        with pytest.raises(StartError):
            await starting
        every = pids(pool)
    assert not any(map(psutil.pid_exists, every))
