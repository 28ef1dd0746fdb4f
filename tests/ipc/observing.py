"""An observer of the engine client that records its calls."""

from __future__ import annotations

from server.ipc.client.call import Call
from server.ipc.client.client import EngineClient
from server.ipc.client.observer import Stage
from server.ipc.wire.descriptions import Device, ModelInfo
from server.ipc.wire.encode_messages import Encode, Encoded
from server.ipc.wire.generate_messages import Finished, Generate
from server.ipc.wire.step_messages import Failed, Stats
from server.ipc.wire.worker_messages import PreparingKernels, Progress


class Recorder:
    def __init__(self) -> None:
        self.progress: list[Progress | PreparingKernels] = []
        self.stats: list[Stats] = []
        self.lost = 0
        self.admitted: list[tuple[str, int]] = []
        self.first: list[float] = []
        self.tokens: list[tuple[int, bool]] = []
        self.finished: list[Finished | Encoded | Failed | None] = []
        self.cancelled: list[Stage] = []

    def on_progress(self, progress: Progress | PreparingKernels) -> None:
        self.progress.append(progress)

    def on_ready(self, models: list[ModelInfo], device: Device) -> None:
        pass

    def on_lost(self) -> None:
        self.lost += 1

    def on_stats(self, stats: Stats) -> None:
        self.stats.append(stats)

    def on_admitted(self, model: str, tokens: int) -> None:
        self.admitted.append((model, tokens))

    def on_first_output(self, model: str, seconds: float) -> None:
        self.first.append(seconds)

    def on_tokens(self, model: str, count: int, seconds: float | None, sequences: int) -> None:
        self.tokens += [(count, seconds is None)] * sequences

    def on_finished(self, model: str, event: Finished | Encoded | Failed | None) -> None:
        self.finished.append(event)

    def on_cancelled(self, stage: Stage, sequences: int) -> None:
        self.cancelled += [stage] * sequences


def submit(client: EngineClient, message: Generate | Encode, deadline: float | None = None) -> Call:
    """Create a call and submit its message. deadline: monotonic time in seconds, or None."""
    call = Call(client, deadline)
    call.submit(message)
    return call
