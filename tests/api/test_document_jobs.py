"""Translated documents that the HTTP process keeps in memory: their links and their limit of bytes."""

from __future__ import annotations

import pytest

from server.api.stored.document_jobs import WORKING_BYTES, DocumentJobs
from server.errors import NotFound, Overloaded, RequestTooLarge


@pytest.mark.parametrize("token", ["", "x", "\u00e9", "\udcff"])
def test_a_link_with_any_text_is_not_found(token: str) -> None:
    jobs = DocumentJobs(1000, 60.0)
    job = jobs.add("owner", "letter.txt", "text/plain", 1)
    job.status = "done"
    assert jobs.linked(job.key) is job
    with pytest.raises(NotFound):
        jobs.linked(token)


def test_texts_that_are_larger_than_their_file_are_counted() -> None:
    """A document counts with the size of its texts if they are larger than its file.

    A compressed file of some kilobytes may contain megabytes of text, which stay in memory until the translation ends.
    """
    jobs = DocumentJobs(1000 * WORKING_BYTES, 60.0)
    job = jobs.add("owner", "letter.docx", "text/plain", 10)
    jobs.count_texts(job, 5)
    assert jobs.num_bytes == 10 * WORKING_BYTES
    jobs.count_texts(job, 900)
    assert jobs.num_bytes == 900 * WORKING_BYTES
    other = jobs.add("owner", "other.docx", "text/plain", 10)
    with pytest.raises(Overloaded):
        jobs.count_texts(other, 200)
    with pytest.raises(RequestTooLarge, match=r"the texts of `file` have 1,001 bytes; .* the limit is 1,000"):
        jobs.count_texts(job, 1001)
