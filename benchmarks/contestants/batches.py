"""Static batches, for those that have no others: what keeps their waste smallest."""

from __future__ import annotations

from benchmarks.workloads import Job


def static_batches(job: Job) -> list[list[int]]:
    """Indices of the requests of each batch: sorted by the length of the answer, `in_flight` at once."""
    order = sorted(range(len(job.inputs)), key=lambda index: (job.new_tokens[index], len(job.inputs[index])))
    return [order[start : start + job.in_flight] for start in range(0, len(order), job.in_flight)]


def text_batches(job: Job) -> list[list[int]]:
    """Indices of the texts of each call of `embed`, sorted by length, so that little is padded."""
    order = sorted(range(len(job.inputs)), key=lambda index: len(job.inputs[index]))
    return [order[start : start + job.batch] for start in range(0, len(order), job.batch)]
