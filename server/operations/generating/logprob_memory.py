"""Reserve memory for the log-probabilities of an answer while they arrive.

Few answers reach their maximum length, so memory is not reserved for all tokens that a request allows. Each request
reserves a first block before its work begins, and further blocks while its answer grows. An answer that gets no further
block ends with an error, so the memory of this process stays within the limit of admission.
See docs/decisions/0112-log-probabilities-as-they-come.md.
"""

from __future__ import annotations

from server.ipc.client.call import Call
from server.operations.admission import Admission
from server.operations.cost import LOG_PROBABILITIES, SCORED_TOKEN_BYTES
from server.operations.generating.generation_options import GenerationOptions

BLOCK_VALUES = 256
"""Number of log-probabilities for which memory is reserved at once (64 KiB). Hundreds of short answers still fit."""


class LogprobMemory:
    """The reserved memory for the log-probabilities of one request.

    num_values: number of log-probabilities that have arrived, including those of the likeliest tokens.
    """

    def __init__(self, admission: Admission, call: Call, options: GenerationOptions) -> None:
        """Reserve the first block. Raises the errors of `Admission.extend`.

        call: an admitted request. options: its options, for the name of the field in errors.
        """
        self._admission, self._call = admission, call
        self._param = "top_logprobs" if options.top_logprobs else "logprobs" if options.logprobs else "best_of"
        self._reserved_values = 0
        self.num_values = 0
        self._reserve(BLOCK_VALUES)

    def add(self, count: int) -> None:
        """Count new log-probabilities, and reserve more memory if needed. Raises the errors of `Admission.extend`."""
        self.num_values += count
        lacking = self.num_values - self._reserved_values
        if lacking > 0:
            self._reserve(max(lacking, BLOCK_VALUES))

    def _reserve(self, count: int) -> None:
        self._admission.extend(self._call, count * SCORED_TOKEN_BYTES, LOG_PROBABILITIES, self._param)
        self._reserved_values += count


def logprob_memory(admission: Admission, call: Call, options: GenerationOptions) -> LogprobMemory | None:
    """Reserve memory for the log-probabilities that the engine will report. Returns None if the request asks for none.

    Raises the errors of `Admission.extend`.
    """
    return LogprobMemory(admission, call, options) if options.logprobs or options.is_ranked else None
