"""Documents in the memory of the HTTP process."""

from __future__ import annotations

import pytest

from server.api.stored.document_jobs import DocumentJobs
from server.errors import NotFound


@pytest.mark.parametrize("token", ["", "x", "\u00e9", "\udcff"])
def test_a_link_with_any_text_is_not_found(token: str) -> None:
    jobs = DocumentJobs(1000, 60.0)
    job = jobs.add("owner", "letter.txt", "text/plain", 1)
    job.status = "done"
    assert jobs.linked(job.key) is job
    with pytest.raises(NotFound):
        jobs.linked(token)
