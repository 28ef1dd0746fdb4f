"""What every contestant is: a model loaded in a process of its own, that does jobs when told to.

`python -m benchmarks.contestants NAME` runs one and speaks JSON lines: {"load": ...} and {"job": ...} in, a line back
for each. What a library prints goes to the standard error.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from benchmarks.workloads import Job


@dataclass(frozen=True)
class Subject:
    """What a contestant loads.

    shape: name in `checkpoints.SHAPES`. precision: float32, bfloat16 or int8. directory: the checkpoint. made: where a
    contestant may keep its own form of it. threads: how many it may compute with. program: its executable, if it needs
    one that pip does not bring.
    """

    shape: str
    precision: str
    directory: str
    made: str
    threads: int
    program: str | None = None


@dataclass
class Outcome:
    """One run of a job. seconds: from the first request to the last answer. tokens: new tokens that really came.

    first_seconds: until a request's first token, of each request. gaps: seconds between the tokens of a request, all
    requests together; empty where a contestant shows its answers only when all are done. events: token events received.
    latencies: seconds of each request of `embed`, if they were sent one by one. extra: figures of its own.
    """

    seconds: float
    tokens: int = 0
    texts: int = 0
    first_seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As it is kept: percentiles in place of long lists."""
        plain = asdict(self)
        for name in ("first_seconds", "gaps", "latencies"):
            values = sorted(plain.pop(name))
            if values:
                plain |= {f"{name}_p50": percentile(values, 0.5), f"{name}_p99": percentile(values, 0.99)}
        return plain


def percentile(ordered: list[float], share: float) -> float:
    """The value that `share` of the ordered ones do not exceed."""
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


class Refused(Exception):
    """The contestant does not do this: one line, shown in the report."""


class Contestant(Protocol):
    """load raises Refused, or whatever its library raises; run is called after it, as often as wanted."""

    def load(self, subject: Subject) -> dict[str, Any]:
        """Have the model ready. Returns what the report should know: versions, bytes, seconds to get ready."""

    def run(self, job: Job) -> Outcome: ...

    def close(self) -> None:
        """Leave nothing running."""
