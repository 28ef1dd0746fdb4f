"""The engines of one loaded model: one that generates, and one that encodes."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.stepping.generation_engine import GenerationEngine


@dataclass(frozen=True, slots=True)
class ModelEngine:
    """The engines that compute the requests of one loaded model.

    generation: engine for `Generate` requests; None if the model does not generate.
    encoding: engine for `Encode` requests; None if the model has no such task.
    adapters: names of the model's adapters.
    """

    name: str
    generation: GenerationEngine | None = None
    encoding: EncoderEngine | None = None
    adapters: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        return any(part is not None and part.has_work for part in (self.generation, self.encoding))

    @property
    def num_running(self) -> int:
        """Number of rows that are being generated."""
        return 0 if self.generation is None else len(self.generation.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Number of rows that wait in the queues of the engines. A request to an encoder counts as one row."""
        generating = 0 if self.generation is None else len(self.generation.scheduler.waiting)
        return generating + (0 if self.encoding is None else len(self.encoding.queue))
