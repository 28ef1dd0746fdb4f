"""Events collected for the next `StepOutput`, and the error of a failed step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished, PromptScored, Tokens
from server.ipc.wire.step_messages import Failed

TIMED_OUT = "the deadline passed before the first token"
NOT_FINITE = "the model computed values that are not finite"
STEP_FAILED = "the step that computed this request failed"

REPORT_SECONDS = 10.0
"""Seconds after which a request in progress is reported again in `StepOutput.computing`."""
EARLY_REPORT_SECONDS = 30.0
"""The start of a request is reported before its first step, not after it, if its `start_deadline` is less than this
many seconds away. A worker whose steps take this long is replaced (`--hang-seconds`)."""


class StepFailed(RuntimeError):
    """A step raised an exception. Its requests have failed; other requests are not affected."""


@dataclass(slots=True)
class EngineEvents:
    """Events since the last `StepOutput`, in order within each list.

    report: sends ids of requests as `StepOutput.computing` at once; None leaves all of them to the next `StepOutput`.
    """

    report: Callable[[list[int]], None] | None = None
    prompts: list[PromptScored] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    computing: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.prompts or self.tokens or self.finished or self.encoded or self.failed or self.computing)

    def starts(self, requests: Sequence[tuple[int, float | None]], now: float) -> None:
        """Report requests that the next step starts before the step runs, if their start deadline is near.

        The HTTP process ends a request that was not reported before its start deadline.
        requests: pairs of request id and start deadline, in seconds of `time.monotonic()`; None in place of a missing
            deadline.
        now: seconds of `time.monotonic()`.
        """
        urgent = [
            sequence_id
            for sequence_id, deadline in requests
            if deadline is not None and deadline < now + EARLY_REPORT_SECONDS
        ]
        if urgent and self.report is not None:
            self.report(urgent)

    def computes(self, groups: Sequence[SequenceGroup], now: float) -> None:
        """Report the groups that start in a step, and the groups that were not reported for `REPORT_SECONDS`.

        groups: the groups of the next step. now: seconds of `time.monotonic()`.
        """
        due = [group for group in groups if group.report_due <= now]
        if not due:
            return
        starting = [group for group in due if group.first_scheduled is None]
        self.starts([(group.sequence_id, group.start_deadline) for group in starting], now)
        self.computing += [group.sequence_id for group in due]
        for group in starting:
            group.first_scheduled = now
        for group in due:
            group.report_due = now + REPORT_SECONDS
