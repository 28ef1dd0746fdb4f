"""The supervisor with real worker processes that run a fake engine."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from server.errors import CheckpointError, NotReady, StartError
from server.ipc.client.client import EngineClient
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.generate_messages import Generate, GenerateRow, Tokens
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Failed, StepOutput
from server.ipc.workers.supervisor import Supervisor, SupervisorLimits
from tests.ipc.observing import Recorder, submit
from tests.wire.checkpoints import write_checkpoint
from tests.wire.fake_serve import WORKER
from tests.wire.fake_worker import FIRST_BYTE

LIMITS = SupervisorLimits(stale_seconds=60.0, hang_seconds=120.0, first_pause_seconds=0.02, max_failures=3)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. The time limit only ends a test that would hang."""
    end = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def supervised(
    directory: Path, command: tuple[str, ...] = WORKER, start: bool = True, limits: SupervisorLimits = LIMITS
) -> AsyncIterator[tuple[Supervisor, EngineClient, Recorder]]:
    recorder = Recorder()
    client = EngineClient(recorder, 100, 100_000)
    models = [ModelSpec("decoder", str(directory), "auto")]
    supervisor = Supervisor(models, "cpu", EngineOptions(), client, limits, command)
    try:
        if start:
            await supervisor.start()
        yield supervisor, client, recorder
    finally:
        await supervisor.stop()


def endless(client: EngineClient, text: str = "a&") -> Generate:
    """A request that never ends, because the fake engine hangs at the `&` in its text."""
    return endless_all(client, [text])


def endless_all(client: EngineClient, texts: list[str]) -> Generate:
    """A request with one row for each text. It never ends if the texts contain `&`, where the fake engine hangs."""
    prompts = [[FIRST_BYTE + ord(letter) for letter in text] for text in texts]
    rows = [GenerateRow(client.next_id(), 400, index) for index in range(len(texts))]
    return Generate("decoder", GenerationParams(), prompts, rows)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "decoder")


async def test_a_worker_starts_answers_requests_and_stops(directory: Path) -> None:
    async with supervised(directory) as (supervisor, client, recorder):
        assert supervisor.fresh and client.connected and supervisor.epoch == 1
        assert [info.name for info in client.models.values()] == ["decoder"]
        assert [progress.done_bytes for progress in recorder.progress] == [0, 4000]
        with submit(client, endless(client)) as call:
            assert isinstance((await call.events())[0][1], Tokens)
        await eventually(lambda: bool(recorder.stats) and recorder.stats[-1].running == 0)
        pid = supervisor.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_a_checkpoint_that_does_not_load_is_not_retried(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with supervised(tmp_path / "empty", start=False) as (supervisor, client, _):
        with pytest.raises(CheckpointError, match=r"decoder: config\.json is missing"):
            await supervisor.start()
        assert supervisor.state == "failed" and supervisor.epoch == 1 and not client.connected


async def test_a_worker_that_always_exits_is_a_start_error(directory: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit(3)")
    async with supervised(directory, command, start=False) as (supervisor, _, _):
        with pytest.raises(StartError):
            await supervisor.start()
        assert supervisor.epoch == LIMITS.max_failures and supervisor.state == "failed"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_worker_that_dies_while_loading_is_started_twice(directory: Path, number: int) -> None:
    """A worker that is killed while loading is started only twice, because the cause is probably too little memory."""
    command = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    async with supervised(directory, command, start=False) as (supervisor, _, _):
        with pytest.raises(StartError, match=f"died 2 times while loading, .* {signal.Signals(number).name}"):
            await supervisor.start()
        assert supervisor.epoch == 2 and supervisor.state == "failed"


async def test_a_missing_command_is_a_start_error(directory: Path) -> None:
    async with supervised(directory, ("/no/such/program",), start=False) as (supervisor, _, _):
        with pytest.raises(StartError):
            await supervisor.start()


async def test_a_dead_worker_fails_its_requests_at_once_and_is_replaced(directory: Path) -> None:
    async with supervised(directory) as (supervisor, client, recorder):
        first = supervisor.pid
        assert first is not None
        with submit(client, endless_all(client, ["a&", "a&"])) as call:
            await call.events()
            psutil.Process(first).kill()
            failed: dict[int, Failed] = {}
            while events := await call.events():
                failed |= {index: event for index, event in events if isinstance(event, Failed)}
        assert {index: event.code for index, event in failed.items()} == {0: "engine_error", 1: "engine_error"}
        assert not supervisor.fresh and not client.connected and client.num_open_sequences == 0
        with pytest.raises(NotReady):
            submit(client, endless(client))
        await eventually(lambda: supervisor.fresh)
        assert supervisor.epoch == 2 and supervisor.pid != first and recorder.lost == 1
        assert not psutil.pid_exists(first)
        with submit(client, endless(client)) as call:
            assert isinstance((await call.events())[0][1], Tokens)


async def test_the_log_says_how_a_worker_ended_and_when_the_next_is_ready(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(directory) as (supervisor, _, _):
        first = supervisor.pid
        assert first is not None and not caplog.messages
        psutil.Process(first).kill()
        await eventually(lambda: supervisor.epoch == 2 and supervisor.fresh)
        ended, ready = caplog.messages
        assert ended.startswith(f"worker 1 (process {first}) was killed by SIGKILL, perhaps") and "next" in ended
        assert ready.startswith("worker 2 is ready after ")
        caplog.clear()
        supervisor.kill()
        await eventually(lambda: supervisor.epoch == 3 and supervisor.fresh)
        assert "was killed by SIGKILL;" in caplog.messages[0], "the supervisor knows that it killed this one"


async def test_a_load_failure_is_logged_only_where_nobody_else_reports_it(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(directory) as (supervisor, _, _):
        (directory / "config.json").unlink()
        assert supervisor.pid is not None
        psutil.Process(supervisor.pid).kill()
        await eventually(lambda: supervisor.state == "failed")
        assert "decoder: config.json is missing" in caplog.messages
    caplog.clear()
    async with supervised(directory, start=False) as (supervisor, _, _):
        with pytest.raises(CheckpointError, match=r"config\.json is missing"):
            await supervisor.start()
        assert not caplog.messages


async def test_a_hung_worker_is_not_fresh_and_then_killed(directory: Path) -> None:
    limits = replace(LIMITS, stale_seconds=0.5, hang_seconds=2.0)
    async with supervised(directory, limits=limits) as (supervisor, _, recorder):
        first = supervisor.pid
        assert first is not None
        psutil.Process(first).send_signal(signal.SIGSTOP)
        await eventually(lambda: not supervisor.fresh)
        assert supervisor.state == "ready" and supervisor.pid == first
        await eventually(lambda: supervisor.epoch > 1 and supervisor.fresh)
        assert recorder.lost == supervisor.epoch - 1 and not psutil.pid_exists(first)


async def test_the_supervisor_gives_up_after_consecutive_failures(directory: Path) -> None:
    async with supervised(directory) as (supervisor, _, _):
        (directory / "die").touch()
        assert supervisor.pid is not None
        psutil.Process(supervisor.pid).kill()
        await eventually(lambda: supervisor.state == "failed")
        assert supervisor.epoch == LIMITS.max_failures
        assert supervisor.pid is None


async def test_a_worker_that_sends_invalid_messages_is_replaced(directory: Path, tmp_path: Path) -> None:
    marker = tmp_path / "spoken"
    script = tmp_path / "nonsense.py"
    script.write_text(
        f"import os, runpy, socket, sys, pathlib\n"
        f"marker = pathlib.Path({str(marker)!r})\n"
        f"if not marker.exists():\n"
        f"    marker.touch()\n"
        f"    socket.socket(fileno=int(sys.argv[2])).sendall(b'\\x05\\x00\\x00\\x00hello')\n"
        f"    import time; time.sleep(60)\n"
        f"runpy.run_path({WORKER[1]!r}, run_name='__main__')\n"
    )
    async with supervised(directory, (sys.executable, str(script))) as (supervisor, _, _):
        assert supervisor.fresh and supervisor.epoch == 2 and marker.exists()


async def test_messages_of_an_earlier_epoch_are_dropped(directory: Path) -> None:
    async with supervised(directory) as (supervisor, client, _):
        with submit(client, endless(client, "&")) as call:
            supervisor._on_message(StepOutput(supervisor.epoch - 1, tokens=[Tokens(1, [5])]))
            supervisor._on_message(StepOutput(supervisor.epoch, tokens=[Tokens(1, [6])]))
            ((_, event),) = await call.events()
        assert isinstance(event, Tokens) and event.token_ids == [6]


async def test_stop_kills_a_suspended_worker(directory: Path) -> None:
    async with supervised(directory) as (supervisor, _, _):
        pid = supervisor.pid
        assert pid is not None
        psutil.Process(pid).send_signal(signal.SIGSTOP)
    assert not psutil.pid_exists(pid)


async def test_stop_does_not_wait_for_a_worker_that_loads(directory: Path) -> None:
    (directory / "hang").touch()
    async with supervised(directory, start=False, limits=replace(LIMITS, stop_seconds=3600.0)) as (supervisor, _, _):
        starting = asyncio.create_task(supervisor.start())
        await eventually(lambda: supervisor.pid is not None)
        pid = supervisor.pid
        assert pid is not None
        await supervisor.stop()
        assert not psutil.pid_exists(pid)
        with pytest.raises(StartError, match="stopped while loading"):
            await starting


async def test_a_worker_that_hangs_while_loading_is_replaced(directory: Path) -> None:
    limits = replace(LIMITS, loading_hang_seconds=2.0)
    (directory / "hang").touch()
    async with supervised(directory, start=False, limits=limits) as (supervisor, _, _):
        starting = asyncio.create_task(supervisor.start())
        await eventually(lambda: supervisor.pid is not None)
        first = supervisor.pid
        assert first is not None
        (directory / "hang").unlink()
        psutil.Process(first).send_signal(signal.SIGSTOP)
        await starting
        assert supervisor.epoch > 1 and supervisor.fresh and not psutil.pid_exists(first)
