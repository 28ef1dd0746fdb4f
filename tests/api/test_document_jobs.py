"""Translated documents that the HTTP process keeps in memory: their links, their limit of bytes, and their number."""

from __future__ import annotations

import pytest

from server.api.stored.document_jobs import MAX_JOBS, WORKING_BYTES, DocumentJobs
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


def test_the_number_of_documents_of_a_key_is_a_limit_of_its_own() -> None:
    """More memory would not help, so the refusal does not name the setting for memory."""
    jobs = DocumentJobs(1 << 40, 60.0)
    first = jobs.add("owner", "letter.txt", "text/plain", 1)
    for _ in range(MAX_JOBS - 1):
        jobs.add("owner", "letter.txt", "text/plain", 1)
    jobs.add("other", "letter.txt", "text/plain", 1)
    with pytest.raises(Overloaded) as refused:
        jobs.add("owner", "letter.txt", "text/plain", 1)
    assert refused.value.reason == "key_documents"
    assert refused.value.message == (
        "256 documents are translated or wait to be fetched (limit 256 for each API key, not a setting); "
        "try again in 5 s"
    )
    jobs.drop(first)
    jobs.add("owner", "letter.txt", "text/plain", 1)


def test_the_memory_for_documents_is_named_if_others_need_it() -> None:
    jobs = DocumentJobs(1 << 20, 60.0)
    jobs.add("other", "letter.txt", "text/plain", 100_000)
    with pytest.raises(Overloaded) as refused:
        jobs.add("owner", "letter.txt", "text/plain", 100_000)
    assert refused.value.reason == "documents"
    assert refused.value.message == (
        "the other documents need 0.8 MiB of memory, and this one 0.8 MiB (limit 1.0 MiB, --documents-memory); "
        "try again in 5 s"
    )
