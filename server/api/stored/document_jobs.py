"""Translates documents in the background, and keeps them and their results until clients fetch the results.

A document belongs to the API key that has sent it. It is dropped when its result was fetched, when it has expired, or
when the server stops. It is in the memory of the HTTP process only, and never on disk. See
docs/decisions/0140-documents.md.
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
from server.limits.refusals import DOCUMENTS, KEY_DOCUMENTS
from server.log_format import fault_place

log = logging.getLogger("triptych.documents")

WORKING_BYTES = 8
"""Bytes of memory for each byte of a document while it is translated: for its parts, texts and translations."""
MAX_JOBS = 256
"""Maximum number of documents per API key, or of all clients without keys, so that the table of documents stays small.
"""
RETRY_SECONDS = 5
"""Value of `Retry-After` of a refusal. The end of a translation, or of the wait until it is fetched, is not known."""
JobStatus = Literal["queued", "translating", "done", "error"]


@dataclass
class DocumentJob:
    """One document that is translated in the background.

    owner: cache salt of the API key that has sent it.
    filename, media_type: name and content type of the translated file.
    num_bytes: memory that is counted for the document.
    expires: time of `time.monotonic()` at which it is dropped.
    id: public name of the document. key: secret that a client needs, together with the id, to access it.
    characters, done_characters: characters of all its texts, and of the texts that are translated already.
    result: content of the translated file; empty until the translation is done.
    error: reason of a failed translation.
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
        """Estimated seconds until the translation is done, from its speed so far; None if no text is translated yet."""
        if not self.done_characters:
            return None
        elapsed = time.monotonic() - self.started
        return math.ceil(elapsed * (self.characters - self.done_characters) / self.done_characters)

    async def finished(self) -> bytes:
        """Wait for the translation, and return the translated file. Raises the error of a failed translation."""
        if self.task is not None:
            await asyncio.wait([self.task])
        if self.error is not None:
            raise self.error
        return self.result


class DocumentJobs:
    """All documents. max_bytes: maximum of their total memory. ttl_seconds: time after which a document is dropped."""

    def __init__(self, max_bytes: int, ttl_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._jobs: dict[str, DocumentJob] = {}

    @property
    def num_bytes(self) -> int:
        return sum(job.num_bytes for job in self._jobs.values())

    def add(self, owner: str, filename: str, media_type: str, file_bytes: int) -> DocumentJob:
        """Create a document and reserve memory for it.

        Raises RequestTooLarge for a document larger than all the memory, and Overloaded if other documents need the
        memory or the owner has `MAX_JOBS` documents.
        """
        self.tidy()
        needed = file_bytes * WORKING_BYTES
        if needed > self._max_bytes:
            raise RequestTooLarge(
                f"`file` has {file_bytes:,} bytes; with the memory for documents of {self._max_bytes / 2**20:,.0f} MiB "
                f"(--documents-memory) the limit is {self._max_bytes // WORKING_BYTES:,}",
                "file",
            )
        if sum(job.owner == owner for job in self._jobs.values()) >= MAX_JOBS:
            raise Overloaded(
                f"{MAX_JOBS:,} documents are translated or wait to be fetched",
                KEY_DOCUMENTS.refusal(f"{MAX_JOBS:,} for each API key"),
                RETRY_SECONDS,
            )
        if self.num_bytes + needed > self._max_bytes:
            raise self._no_room(self.num_bytes, needed)
        job = DocumentJob(owner, filename, media_type, needed, time.monotonic() + self._ttl_seconds)
        self._jobs[job.id] = job
        return job

    def count_texts(self, job: DocumentJob, text_bytes: int) -> None:
        """Reserve more memory for a document whose texts are larger than its file, which may be compressed.

        text_bytes: size of all its texts. Raises RequestTooLarge and Overloaded, as `add` does.
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
            raise self._no_room(self.num_bytes - job.num_bytes, needed)
        job.num_bytes = max(job.num_bytes, needed)

    def _no_room(self, used: int, needed: int) -> Overloaded:
        """The refusal for a document. used: bytes of the other documents. needed: bytes of this one."""
        state = f"the other documents need {used / 2**20:,.1f} MiB of memory, and this one {needed / 2**20:,.1f} MiB"
        return Overloaded(state, DOCUMENTS.refusal(f"{self._max_bytes / 2**20:,.1f} MiB"), RETRY_SECONDS)

    def start(self, job: DocumentJob, translation: Callable[[], Awaitable[bytes]]) -> None:
        """Start the translation of a document in the background. translation: returns the translated file."""
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
        """The document with an id. Raises NotFound if it does not exist, or if `owner` or `key` is wrong."""
        job = self._jobs.get(job_id)
        known = job is not None and job.owner == owner and job.expires > time.monotonic()
        if job is None or not known or not hmac.compare_digest(job.key.encode(), key.encode("utf-8", "replace")):
            raise NotFound("there is no such document: it was fetched, its time is over, or the id or key is wrong")
        return job

    def linked(self, token: str) -> DocumentJob:
        """The translated document whose secret key is in a link. Raises NotFound for a wrong or expired link."""
        given = token.encode("utf-8", "replace")
        for job in self._jobs.values():
            if hmac.compare_digest(job.key.encode(), given) and job.status == "done" and job.expires > time.monotonic():
                return job
        raise NotFound("there is no such file: it was fetched, or its time is over")

    def drop(self, job: DocumentJob) -> None:
        """Remove a document, and cancel its translation if it is in progress."""
        self._jobs.pop(job.id, None)
        if job.task is not None and not job.task.done():
            job.task.cancel()

    def tidy(self) -> None:
        """Drop all expired documents."""
        now = time.monotonic()
        for job in [known for known in self._jobs.values() if known.expires <= now]:
            self.drop(job)

    async def close(self) -> None:
        """Drop all documents, and wait until their translations have stopped."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for job in list(self._jobs.values()):
            self.drop(job)
        await asyncio.gather(*tasks, return_exceptions=True)
