"""Sizes, rows and results of the stages of `benchmarks.gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.device import Limits


class Skipped(Exception):
    """A row cannot be measured on this machine, for example because a package is missing.

    The message is one line with the reason.
    """


@dataclass(frozen=True)
class Result:
    """One measured value.

    value, unit: the value.
    seconds: duration of one step, or None. floor_seconds: shortest possible duration of the step, or None.
    share: `floor_seconds / seconds`, or another ratio that the row describes; None for no ratio.
    note: further facts in one line.
    """

    value: float
    unit: str
    seconds: float | None = None
    floor_seconds: float | None = None
    share: float | None = None
    note: str = ""

    @classmethod
    def of_time(cls, seconds: float, floor_seconds: float, value: float, unit: str, note: str = "") -> Result:
        """Create the result of a timed step. Its share is `floor_seconds / seconds`."""
        return cls(value, unit, seconds, floor_seconds, floor_seconds / seconds, note)

    def against(self, other: Result | None) -> Result:
        """Copy this result with another share: how many times as fast this step is as the step of `other`.

        The old share, relative to the floor, moves to the note. If `other` is None, the share is None.
        """
        assert self.seconds is not None and self.share is not None
        note = "; ".join(part for part in (f"{self.share:.0%} of the floor", self.note) if part)
        if other is None or other.seconds is None:
            return replace(self, share=None, note=f"{note}; the step to compare with was not measured")
        return replace(self, share=other.seconds / self.seconds, note=note)

    def plain(self) -> dict[str, Any]:
        """The result as JSON data, without the fields that are not set."""
        set_fields = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return {"value": self.value, "unit": self.unit} | set_fields


class Row(NamedTuple):
    """A row of the report.

    name: what is measured, unique among the rows of all stages.
    measure: function that returns the result. Raises Skipped if this machine cannot measure the row, or any other
        error if the measurement fails.
    """

    name: str
    measure: Callable[[], Result]


@dataclass(frozen=True)
class Setup:
    """Sizes of all stages, and the results so far.

    out: directory for results. models: directory for the checkpoints that stages write.
    tiny: whether to use models with some thousand parameters, and to run each step once.
    rows: numbers of rows in decode steps. context: number of tokens of each row.
    prompts: lengths of prompts in tokens.
    texts: numbers of texts in encoder steps. text_tokens: number of tokens of each text.
    ranked: number of texts that are embedded or ranked beside running streams.
    recordings: numbers of recordings in encoder steps. frames: log-mel frames of each recording.
    streams: numbers of concurrent requests. busy_streams: the one of these numbers that is used for streams beside
        encoders, and by peers.
    prompt, new: numbers of prompt tokens and new tokens of each request.
    sentences: number of sentences to translate.
    tests: files and directories of tests to run on the device. test_seconds: longest duration of these tests.
    done: results of the rows that were measured before, by name. A stage compares its rows with them.
    """

    out: Path
    models: Path
    tiny: bool = False
    rows: tuple[int, ...] = (1, 16, 64, 256)
    context: int = 1024
    prompts: tuple[int, ...] = (512, 2048, 8000)
    texts: tuple[int, ...] = (1, 16, 128)
    text_tokens: int = 128
    ranked: int = 512
    recordings: tuple[int, ...] = (1, 8)
    frames: int = 3000
    streams: tuple[int, ...] = (1, 64, 256)
    busy_streams: int = 64
    prompt: int = 128
    new: int = 128
    sentences: int = 64
    tests: tuple[str, ...] = ("tests/cuda", "tests/models/test_attention.py", "tests/parity")
    test_seconds: float = 200.0
    done: Mapping[str, Result] = field(default_factory=dict)

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
            ranked=6,
            recordings=(1, 2),
            frames=60,
            streams=(1, 3),
            busy_streams=3,
            prompt=8,
            new=4,
            sentences=2,
            tests=("tests/engine/test_fairness.py",),
        )


Stage = Callable[[Setup, Limits], Iterator[Row]]
"""Function that yields the rows of a stage. It computes nothing until a row is measured: models are built then."""
