"""Fixtures: the application in this process, without a worker. A test reads messages to the worker and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from server.api.app import create_api
from server.api.state import State
from server.api.telemetry.telemetry import Telemetry
from server.ipc.client.client import EngineClient
from server.ipc.wire.descriptions import GenerationInfo, ModelInfo, ModelSpec
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.message_base import Message
from server.ipc.wire.step_messages import StepOutput
from server.metrics import Metrics
from server.operations.runtime import Runtime
from server.settings.settings import Settings
from server.text import checkpoint_text
from tests.grammar_compiler import COMPILER
from tests.wire.checkpoints import write_all
from tests.wire.fake_worker import describe


class Bench:
    """An application with fake checkpoints. The test plays the role of its worker.

    sent: messages to the worker.
    alive: whether the supervisor reports a fresh heartbeat.
    """

    def __init__(self, root: Path, settings: Settings) -> None:
        self.sent: list[Message] = []
        self.alive = True
        self.metrics = Metrics()
        self.client = EngineClient(
            Telemetry(self.metrics), settings.max_queue_requests or 256, settings.max_queue_tokens or 524_288
        )
        directories = dict(entry.split("=", 1) for entry in write_all(root))
        texts = {name: checkpoint_text.load(name, Path(directory)) for name, directory in directories.items()}
        self.runtime = Runtime(
            self.client, self.metrics, texts, settings.max_text_characters, grammar_compiler=COMPILER
        )
        self.state = State(
            settings=settings,
            runtime=self.runtime,
            fresh=lambda: self.alive,
            failed=lambda: False,
            keys=settings.keys(),
        )
        self.infos = {name: describe(ModelSpec(name, directory, "auto")) for name, directory in directories.items()}
        self.app = create_api(self.state)

    def become_ready(self, **defaults: object) -> None:
        """Report the worker as ready. defaults: fields of GenerationDefaults for every generating checkpoint."""
        infos = [self._with_defaults(info, defaults) for info in self.infos.values()]
        self.client.on_ready(infos, "cpu", self.sent.append)
        self.state.started = True

    def _with_defaults(self, info: ModelInfo, defaults: dict[str, object]) -> ModelInfo:
        if not defaults:
            return info
        merged: GenerationInfo = msgspec.structs.replace(info.generation, **defaults)
        return msgspec.structs.replace(info, generation=merged)

    async def sent_generate(self) -> Generate:
        """Wait for the next Generate message."""
        while not (sent := [message for message in self.sent if isinstance(message, Generate)]):
            await asyncio.sleep(0)
        self.sent.clear()
        (message,) = sent
        return message

    async def sent_rows(self) -> list[GenerateRow]:
        """Wait for the next Generate message and return its rows."""
        return (await self.sent_generate()).rows

    def output(self, **events: list) -> None:
        self.client.on_output(StepOutput(1, **events))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, Settings())
    yield made
    made.runtime.pools.close()


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as client:
        yield client


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an application that requires the API key `the-key`."""
    bench = Bench(tmp_path, Settings(api_keys="the-key"))
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    bench.runtime.pools.close()
