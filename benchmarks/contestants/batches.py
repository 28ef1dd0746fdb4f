"""Static batches with little padding, for contestants without continuous batching."""

from __future__ import annotations

from benchmarks.workloads import Job


def static_batches(job: Job) -> list[list[int]]:
    """Indices of the requests in each batch. They are sorted by answer length; a batch has `job.in_flight` requests."""
    order = sorted(range(len(job.inputs)), key=lambda index: (job.new_tokens[index], len(job.inputs[index])))
    return [order[start : start + job.in_flight] for start in range(0, len(order), job.in_flight)]


def text_batches(job: Job) -> list[list[int]]:
    """Indices of the texts in each batch of an `embed` job. Texts are sorted by length, `job.batch` texts per batch."""
    order = sorted(range(len(job.inputs)), key=lambda index: len(job.inputs[index]))
    return [order[start : start + job.batch] for start in range(0, len(order), job.batch)]
