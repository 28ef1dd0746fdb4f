"""Static batches with little padding, for contestants without continuous batching."""

from __future__ import annotations

from benchmarks.workloads import Job


def static_batches(job: Job) -> list[list[int]]:
    """Request indices of each batch: sorted by the length of the answer, `in_flight` requests per batch."""
    order = sorted(range(len(job.inputs)), key=lambda index: (job.new_tokens[index], len(job.inputs[index])))
    return [order[start : start + job.in_flight] for start in range(0, len(order), job.in_flight)]


def text_batches(job: Job) -> list[list[int]]:
    """Text indices of each call of `embed`: sorted by length, `batch` texts per call."""
    order = sorted(range(len(job.inputs)), key=lambda index: len(job.inputs[index]))
    return [order[start : start + job.batch] for start in range(0, len(order), job.batch)]
