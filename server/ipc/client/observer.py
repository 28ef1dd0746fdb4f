"""Interface through which the engine client reports its events, for metrics."""

from __future__ import annotations

from typing import Literal, Protocol

from server.ipc.wire.descriptions import Device, ModelInfo
from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished
from server.ipc.wire.step_messages import Failed, Stats
from server.ipc.wire.worker_messages import PreparingKernels, Progress

Stage = Literal["waiting", "running"]


class Observer(Protocol):
    """Receives the events of the engine client, for metrics.

    on_tokens: each of `sequences` sequences got `count` new tokens, `seconds` after its previous tokens. `seconds` is
        None for the first tokens of a sequence.
    on_finished: a sequence has ended. `event` is None if a stop string ended the sequence in this process.
    on_cancelled: a client disconnected, which cancelled `sequences` sequences in this stage; the number may be 0.
    """

    def on_progress(self, progress: Progress | PreparingKernels) -> None: ...

    def on_ready(self, models: list[ModelInfo], device: Device) -> None: ...

    def on_lost(self) -> None: ...

    def on_stats(self, stats: Stats) -> None: ...

    def on_admitted(self, model: str, tokens: int) -> None: ...

    def on_first_output(self, model: str, seconds: float) -> None: ...

    def on_tokens(self, model: str, count: int, seconds: float | None, sequences: int) -> None: ...

    def on_finished(self, model: str, event: Finished | Encoded | Failed | None) -> None: ...

    def on_cancelled(self, stage: Stage, sequences: int) -> None: ...
