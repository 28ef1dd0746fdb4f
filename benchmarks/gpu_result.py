"""Input and results of the stages of `benchmarks.gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_device import Limits


@dataclass(frozen=True)
class Setup:
    """Sizes of all stages.

    out: directory for results and for the checkpoints that a stage writes.
    seconds: longest duration of the stage. It is then killed; its earlier results are kept.
    tiny: whether to use models with some thousand parameters, and to run each step once.
    rows: numbers of rows in decode steps. context: number of tokens of each row.
    prompts: lengths of prompts in tokens.
    texts: numbers of texts in encoder steps. text_tokens: number of tokens of each text.
    streams: number of concurrent requests. prompt, new: numbers of prompt tokens and new tokens of each request.
    sentences: number of sentences to translate.
    tests: files and directories of tests to run on the device.
    """

    out: Path
    seconds: float = 600.0
    tiny: bool = False
    rows: tuple[int, ...] = (1, 16, 64, 256)
    context: int = 1024
    prompts: tuple[int, ...] = (512, 2048, 8000)
    texts: tuple[int, ...] = (1, 16, 128)
    text_tokens: int = 128
    streams: int = 64
    prompt: int = 128
    new: int = 128
    sentences: int = 64
    tests: tuple[str, ...] = ("tests/cuda", "tests/models/test_attention.py", "tests/parity")

    def tiny_sizes(self) -> Setup:
        """A copy with tiny sizes, to try all stages without a GPU."""
        return replace(
            self,
            tiny=True,
            rows=(1, 3),
            context=40,
            prompts=(16, 40),
            texts=(1, 3),
            text_tokens=16,
            streams=2,
            prompt=8,
            new=4,
            sentences=2,
            tests=("tests/engine/test_fairness.py",),
        )


@dataclass(frozen=True)
class Result:
    """One measured value.

    name: what was measured. value, unit: the value.
    seconds: duration of one step, or None. floor_seconds: shortest possible duration of the step, or None.
    share: `floor_seconds / seconds`, or another ratio that the name describes; None for no ratio.
    goal: share to reach; None for no goal.
    note: further facts in one line.
    """

    name: str
    value: float
    unit: str
    seconds: float | None = None
    floor_seconds: float | None = None
    share: float | None = None
    goal: float | None = None
    note: str = ""

    @classmethod
    def of_time(
        cls,
        name: str,
        seconds: float,
        floor_seconds: float,
        value: float,
        unit: str,
        goal: float | None = None,
        note: str = "",
    ) -> Result:
        """The result of a timed step, whose share is its shortest possible duration divided by the measured one."""
        return cls(name, value, unit, seconds, floor_seconds, floor_seconds / seconds, goal, note)

    def plain(self) -> dict[str, Any]:
        """The result as JSON data, without the fields that are not set."""
        unset = {"note"} if not self.note else set()
        return {name: value for name, value in asdict(self).items() if value is not None and name not in unset}


Stage = Callable[[Setup, Limits], Iterator[Result]]
"""Function that measures with a setup on a device with these limits, and yields each result as soon as it is known."""
