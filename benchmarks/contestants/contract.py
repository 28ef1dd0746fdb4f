"""Protocol of a contestant: a process that loads one model and runs jobs with it.

`python -m benchmarks.contestants NAME` runs a contestant. It reads JSON lines, {"load": ...} and {"job": ...}, and
answers each with one line. Output of its libraries goes to the standard error.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from benchmarks.workloads import Job


@dataclass(frozen=True)
class Subject:
    """The model that a contestant loads.

    shape: name in `checkpoints.SHAPES`.
    precision: float32, bfloat16, int8 or int4.
    directory: directory of the checkpoint.
    made: directory for models that contestants convert from the checkpoint.
    threads: number of threads for computations.
    program: path of the contestant's executable or library; None if it needs none.
    isa: name of the instruction set of Triptych's kernels, as in `kernels/exports.cpp`; None for the best one. Other
        contestants ignore it.
    """

    shape: str
    precision: str
    directory: str
    made: str
    threads: int
    program: str | None = None
    isa: str | None = None


@dataclass
class Outcome:
    """The result of one run of a job.

    seconds: time from the first request to the last answer.
    tokens: number of new tokens received.
    texts: number of text vectors received.
    first_seconds: time to first token of each request, in seconds.
    gaps: times between successive tokens of a request in seconds, for all requests; empty for a contestant that does
        not stream.
    latencies: duration of each request in seconds; only for `embed`, and for `generate` with one request in flight.
    extra: further values that the contestant reports.
    """

    seconds: float
    tokens: int = 0
    texts: int = 0
    first_seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The outcome as JSON data. Each list is replaced by its 50th and 99th percentile (`..._p50`, `..._p99`)."""
        plain = asdict(self)
        for name in ("first_seconds", "gaps", "latencies"):
            values = sorted(plain.pop(name))
            if values:
                plain |= {f"{name}_p50": percentile(values, 0.5), f"{name}_p99": percentile(values, 0.99)}
        return plain


def percentile(ordered: list[float], share: float) -> float:
    """A percentile of values that are sorted in ascending order. share: for example 0.99 for the 99th percentile."""
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


class Refused(Exception):
    """The contestant does not support this model or precision. The message is one line, for the result page."""


class Contestant(Protocol):
    """A contestant. `load` is called first, then `run` any number of times, then `close`."""

    def load(self, subject: Subject) -> dict[str, Any]:
        """Load a model. Returns values for the results, such as versions, sizes and load times.

        Raises Refused, or an exception of its library.
        """

    def run(self, job: Job) -> Outcome:
        """Run a job with the loaded model, and return its measurements."""

    def close(self) -> None:
        """Stop all processes that this contestant has started."""
