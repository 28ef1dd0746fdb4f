"""Routes that take a document in a form and translate it in the background."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.form import read_form
from server.api.bodies.json_answer import json_response
from server.api.entry.head import IS_HEAD
from server.api.entry.scope import KEY_LIMITS
from server.api.fields.ignored_parameters import ignored_parameters
from server.api.fields.keys import authorize, read_unverified
from server.api.routes.route import Route, call_headers, leaving_on_disconnect
from server.api.state import State, cache_salt, of
from server.api.stored.document_jobs import DocumentJob
from server.errors import ClientGone, DeadlineExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.operations.translating.instructed import Formality
from server.operations.translating.translate_document import (
    DocumentSpec,
    source_language,
    translate_document,
)
from server.text.documents.formats import format_of
from server.text.documents.reader import DocumentTexts
from server.text.documents.units import DocumentError

MAX_NAME_CHARACTERS = 255
_UNSAFE = re.compile(r"[^\w.+() -]")

BodyT = TypeVar("BodyT", bound=BaseModel)


@dataclass(frozen=True)
class DocumentOptions:
    """Options for the translation of a document.

    source_lang: source language; None to detect it.
    glossary_ids: ids of stored glossaries.
    name: file name that replaces the name in the form.
    output_format: file extension for the translated file. It must be the extension of the document itself.
    formality: formality that a language model is asked for; None for the model's default.
    """

    source_lang: str | None
    target_lang: str
    glossary_ids: Sequence[str] = ()
    model: str | None = None
    name: str | None = None
    output_format: str | None = None
    formality: Formality | None = None


@dataclass(frozen=True, kw_only=True)
class DocumentRoute(Route[BodyT, DocumentSpec, str]):
    """A route whose body is a form with a document, which is translated in the background.

    run: finds the language of the document before the translation begins.
    options: converts the body to `DocumentOptions`. Raises InvalidRequest.
    render: creates the JSON value of the answer from the request and the document.
    waits: the answer is sent only when the document is translated; the translation ends if the client disconnects.
    """

    media_type: ClassVar[str] = "multipart/form-data"
    run: Callable[[Any, Call, DocumentSpec], Awaitable[str]] = source_language
    options: Callable[[BodyT], DocumentOptions]
    render: Callable[[Request, DocumentJob], Any]
    waits: bool = False

    async def respond(self, request: Request) -> Response:
        state = of(request)
        settings = state.settings
        reading = read_form(
            request, self.body, frozenset(), settings.max_document_bytes, settings.document_timeout_seconds
        )
        body, data, filename = await read_unverified(request, reading)
        state.door.drop_body(request.scope)  # from here on, the memory for documents counts it
        authorize(request, state, self.key_field, getattr(body, self.key_field, None) if self.key_field else None)
        call = self.call(request, state, body)
        with call, self.errors.renaming():
            with leaving_on_disconnect(request, call):
                call.ignore(ignored_parameters(body))
                job = await self._start(request, state, call, body, data, filename)
                if self.waits:
                    await _wait(state, call, job)
            response = json_response(self.render(request, job))
            response.headers.update(call_headers(call))
            return response

    async def _start(
        self, request: Request, state: State, call: Call, body: BodyT, data: bytes, filename: str
    ) -> DocumentJob:
        """Read a document, and start its translation in the background.

        data: content of the file. filename: name of the file in the form.
        Raises RequestError for a document that cannot be translated, or does not fit into the memory for documents.
        """
        owner = cache_salt(request)
        options = self.options(body)
        name = (options.name or filename)[-MAX_NAME_CHARACTERS:]
        try:
            kind = format_of(name)
        except DocumentError as error:
            raise InvalidRequest(f"`file`: {error}", "file") from None
        if options.output_format and not name.lower().endswith(f".{options.output_format.lower()}"):
            raise InvalidRequest("`output_format` has to be the format of the document", "output_format")
        job = state.documents.add(owner, _translated_name(name, options.target_lang), kind.media_type, len(data))
        try:
            suffix = name.rpartition(".")[2].lower()
            texts = await state.runtime.pools.document.run(lambda: _read(state, suffix, data), call)
            state.documents.count_texts(job, texts.num_bytes)
            spec = DocumentSpec(
                texts.units,
                options.source_lang,
                options.target_lang,
                options.glossary_ids,
                options.model,
                options.formality,
            )
            spec = self.with_default_model(state, spec)
            job.characters = texts.characters
            await state.runtime.prepare(call, "translate", spec)
            source = await self.run(state.runtime, call, spec)
        except BaseException:
            state.documents.drop(job)
            raise
        state.documents.start(job, lambda: _translation(request, state, job, suffix, data, spec, source))
        return job


def _read(state: State, suffix: str, data: bytes) -> DocumentTexts:
    try:
        texts = state.runtime.document_reader.read(suffix, data)
    except DocumentError as error:
        raise InvalidRequest(f"`file`: {error}", "file") from None
    if not texts.has_text:
        # In this thread and in pieces: freeing 200,000 texts at once would stop the event loop.
        units = list(texts.units)
        del texts
        while units:
            del units[-1000:]
        raise InvalidRequest("`file` has no text to translate", "file")
    return texts


async def _translation(
    request: Request, state: State, job: DocumentJob, suffix: str, data: bytes, spec: DocumentSpec, source: str
) -> bytes:
    """Translate all texts of a document, and return the content of the translated file.

    suffix: file extension of the document. data: its content. source: its language.
    """
    salt, key = cache_salt(request), request.scope.get(KEY_LIMITS)

    def new_call() -> Call:
        seconds = state.settings.queue_timeout_seconds
        return Call(state.runtime.client, None, time.monotonic(), salt, key, seconds)

    def advance(characters: int) -> None:
        job.done_characters += characters

    translations = await translate_document(state.runtime, new_call, spec, source, advance)

    def write() -> bytes:
        try:
            return state.runtime.document_reader.write(suffix, data, translations, spec.target_lang)
        except DocumentError as error:
            raise InvalidRequest(f"`file`: {error}", "file") from None

    return await state.runtime.pools.document.run(write)


async def _wait(state: State, call: Call, job: DocumentJob) -> None:
    """Wait until a document is translated.

    If the client leaves, the request's time limit passes or the translation fails, the document is dropped. Raises
    ClientGone, DeadlineExceeded, or the error of the translation.
    """
    deadline = call.limits.deadline
    waiting = asyncio.ensure_future(job.finished())

    def end() -> None:
        waiting.cancel()

    call.on_close(end)
    try:
        async with asyncio.timeout(None if deadline is None else max(deadline - time.monotonic(), 0)):
            await waiting
    except TimeoutError:
        state.documents.drop(job)
        raise DeadlineExceeded("the deadline passed before the document was translated") from None
    except asyncio.CancelledError:
        state.documents.drop(job)
        if call.gone:
            raise ClientGone("the client closed the connection") from None
        raise
    except BaseException:
        state.documents.drop(job)
        raise
    finally:
        call.off_close(end)


def _translated_name(name: str, target_lang: str) -> str:
    """Name of the translated file, such as `letter_fr.docx` for `letter.docx`. Unsafe characters become `_`."""
    stem, _, suffix = name.rpartition(".")
    return _UNSAFE.sub("_", f"{stem}_{target_lang.lower()}.{suffix.lower()}")


def file_response(state: State, request: Request, job: DocumentJob) -> Response:
    """Response with the translated file. After it was sent, the document is dropped, except for a `HEAD` request."""

    async def drop() -> None:  # a plain function would run in a thread, later
        state.documents.drop(job)

    name = quote(job.filename)
    return Response(
        job.result,
        media_type=job.media_type,
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        },
        background=None if IS_HEAD in request.scope else BackgroundTask(drop),
    )
