"""Documents that are translated in the background, and their results, in the memory of the HTTP process.

A document belongs to the API key that has sent it. It is dropped when its result was fetched, when its time is over, or
when the server stops. Nothing is written to disk. See docs/decisions/0140-documents.md.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from server.errors import EngineFailure, NotFound, Overloaded, RequestError, RequestTooLarge
from server.limits.refusals import DOCUMENTS
from server.log_format import fault_place

log = logging.getLogger("triptych.documents")

WORKING_BYTES = 8
"""Memory that a document needs for each of its bytes while it is translated: its parts, texts and translations."""
MAX_JOBS = 256
"""Documents of one API key, so that small ones do not fill the list."""
JobStatus = Literal["queued", "translating", "done", "error"]


@dataclass
class DocumentJob:
    """One document.

    id: names it. key: secret that its owner needs besides. owner: the API key, as a cache salt.
    filename: name of the translated file. media_type: of its content.
    characters, done_characters: of its texts, and of those that are translated.
    num_bytes: memory that is counted for it. expires: time of `time.monotonic()`.
    result: the translated file. error: why there is none.
    """

    owner: str
    filename: str
    media_type: str
    num_bytes: int
    expires: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    status: JobStatus = "queued"
    characters: int = 0
    done_characters: int = 0
    started: float = field(default_factory=time.monotonic)
    result: bytes = b""
    error: RequestError | None = None
    task: asyncio.Task[None] | None = None

    @property
    def seconds_remaining(self) -> int | None:
        """Estimate from what is done; None before anything is."""
        if not self.done_characters:
            return None
        elapsed = time.monotonic() - self.started
        return math.ceil(elapsed * (self.characters - self.done_characters) / self.done_characters)

    async def finished(self) -> bytes:
        """The translated file, when it is there. Raises the error of a translation that has failed."""
        if self.task is not None:
            await asyncio.wait([self.task])
        if self.error is not None:
            raise self.error
        return self.result


class DocumentJobs:
    """All documents. max_bytes: memory of them together. ttl_seconds: time until one is dropped."""

    def __init__(self, max_bytes: int, ttl_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._jobs: dict[str, DocumentJob] = {}

    @property
    def num_bytes(self) -> int:
        return sum(job.num_bytes for job in self._jobs.values())

    def add(self, owner: str, filename: str, media_type: str, file_bytes: int) -> DocumentJob:
        """A new document, for which memory is reserved. Raises RequestTooLarge, and Overloaded for want of memory."""
        self.tidy()
        needed = file_bytes * WORKING_BYTES
        if needed > self._max_bytes:
            raise RequestTooLarge(
                f"`file` has {file_bytes:,} bytes; with the memory for documents of {self._max_bytes / 2**20:,.0f} MiB "
                f"(--documents-memory) the limit is {self._max_bytes // WORKING_BYTES:,}",
                "file",
            )
        if sum(job.owner == owner for job in self._jobs.values()) >= MAX_JOBS:
            raise self._no_room(f"{MAX_JOBS} documents of one key")
        if self.num_bytes + needed > self._max_bytes:
            raise self._no_room(f"{self._max_bytes / 2**20:,.0f} MiB")
        job = DocumentJob(owner, filename, media_type, needed, time.monotonic() + self._ttl_seconds)
        self._jobs[job.id] = job
        return job

    def count_texts(self, job: DocumentJob, text_bytes: int) -> None:
        """Reserve more memory for a document whose texts are larger than its file, which is compressed.

        Raises the errors of `add`.
        """
        needed = text_bytes * WORKING_BYTES
        if needed > self._max_bytes:
            raise RequestTooLarge(
                f"the texts of `file` have {text_bytes:,} bytes; with the memory for documents of "
                f"{self._max_bytes / 2**20:,.0f} MiB (--documents-memory) the limit is "
                f"{self._max_bytes // WORKING_BYTES:,}",
                "file",
            )
        if self.num_bytes - job.num_bytes + needed > self._max_bytes:
            raise self._no_room(f"{self._max_bytes / 2**20:,.0f} MiB")
        job.num_bytes = max(job.num_bytes, needed)

    def _no_room(self, limit: str) -> Overloaded:
        return Overloaded("other documents need all memory for documents", DOCUMENTS.refusal(limit), 5)

    def start(self, job: DocumentJob, translation: Callable[[], Awaitable[bytes]]) -> None:
        """Translate a document in the background."""
        job.started = time.monotonic()
        job.task = asyncio.create_task(self._run(job, translation), name="document")

    async def _run(self, job: DocumentJob, translation: Callable[[], Awaitable[bytes]]) -> None:
        job.status = "translating"
        try:
            job.result = await translation()
            job.status = "done"
        except RequestError as error:
            job.status, job.error = "error", error
        except Exception as error:
            log.error("fault in the translation of a document:\n%s", fault_place(error))
            job.status, job.error = "error", EngineFailure("a fault in the server")
        job.num_bytes = len(job.result)

    def find(self, owner: str, job_id: str, key: str) -> DocumentJob:
        """The document of an owner. Raises NotFound."""
        job = self._jobs.get(job_id)
        known = job is not None and job.owner == owner and job.expires > time.monotonic()
        if job is None or not known or not hmac.compare_digest(job.key.encode(), key.encode("utf-8", "replace")):
            raise NotFound("there is no such document: it was fetched, its time is over, or the id or key is wrong")
        return job

    def linked(self, token: str) -> DocumentJob:
        """The translated document whose secret is in a link. Raises NotFound."""
        given = token.encode("utf-8", "replace")
        for job in self._jobs.values():
            if hmac.compare_digest(job.key.encode(), given) and job.status == "done" and job.expires > time.monotonic():
                return job
        raise NotFound("there is no such file: it was fetched, or its time is over")

    def drop(self, job: DocumentJob) -> None:
        """Forget a document, and end its translation."""
        self._jobs.pop(job.id, None)
        if job.task is not None and not job.task.done():
            job.task.cancel()

    def tidy(self) -> None:
        """Drop the documents whose time is over."""
        now = time.monotonic()
        for job in [known for known in self._jobs.values() if known.expires <= now]:
            self.drop(job)

    async def close(self) -> None:
        """Drop all documents."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for job in list(self._jobs.values()):
            self.drop(job)
        await asyncio.gather(*tasks, return_exceptions=True)
