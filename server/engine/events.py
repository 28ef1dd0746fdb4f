"""What steps bring, as it is gathered for a `StepOutput`, and how a step tells that it failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.ipc.messages import Encoded, Failed, Finished, PromptScored, Tokens

TIMED_OUT = "the deadline passed before the first token"
NOT_FINITE = "the model produced numbers that are not finite"
STEP_FAILED = "the step that computed this request failed"


class StepFailed(RuntimeError):
    """A step raised; the requests in it have ended, the others have not noticed."""


@dataclass(slots=True)
class EngineEvents:
    """What happened since the last `StepOutput`, in order within each kind."""

    prompts: list[PromptScored] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.prompts or self.tokens or self.finished or self.encoded or self.failed)
