"""What a stage of `benchmarks.gpu` gets and returns."""

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
    seconds: time that the stage may take. A stage that passes it is killed; its earlier results are kept.
    tiny: models with some thousand parameters, and each step once.
    rows: numbers of decode rows. context: tokens of each row.
    prompts: lengths of prompts. texts: numbers of texts of an encoder step, with `text_tokens` tokens each.
    streams: number of requests at once. prompt, new: prompt tokens and new tokens of each request.
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
        """The same with tiny sizes, to try all stages without an accelerator."""
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
    seconds: duration of one step, or None. floor_seconds: its shortest possible duration, or None.
    share: share of the floor that was reached, or the ratio that the name describes; None for neither.
    goal: the share to reach; None for no goal.
    note: further facts, one line.
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
        """The result of a timed step, as a share of its floor."""
        return cls(name, value, unit, seconds, floor_seconds, floor_seconds / seconds, goal, note)

    def plain(self) -> dict[str, Any]:
        """As JSON data, without the fields that are not set."""
        unset = {"note"} if not self.note else set()
        return {name: value for name, value in asdict(self).items() if value is not None and name not in unset}


Stage = Callable[[Setup, Limits], Iterator[Result]]
"""Function that measures, and yields each result as soon as it is known."""
