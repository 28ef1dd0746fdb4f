"""Events collected for the next `StepOutput`, and the error of a failed step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.ipc.wire.messages import Encoded, Failed, Finished, PromptScored, Tokens

TIMED_OUT = "the deadline passed before the first token"
NOT_FINITE = "the model computed values that are not finite"
STEP_FAILED = "the step that computed this request failed"

REPORT_SECONDS = 10.0
"""Time after which a request in progress is reported again as `StepOutput.computing`."""
EARLY_REPORT_SECONDS = 30.0
"""A start is reported before the step if its `start_deadline` is at most this far away. A worker whose steps take this
long is replaced (`--hang-seconds`)."""


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
        """Report requests that the next step starts, given as (request id, start deadline), if they cannot wait for it.

        The HTTP process ends a request that was not reported to it before its start deadline.
        """
        urgent = [
            sequence_id
            for sequence_id, deadline in requests
            if deadline is not None and deadline < now + EARLY_REPORT_SECONDS
        ]
        if urgent and self.report is not None:
            self.report(urgent)
