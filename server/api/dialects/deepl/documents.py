"""Translation of documents in the DeepL dialect: `/v2/document`, and the routes for a document's status and result."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.dialects.deepl.common import (
    ERRORS,
    Formality,
    GlossaryId,
    GlossaryIds,
    named_glossaries,
    stated_formality,
)
from server.api.fields.field_kinds import Unsupported
from server.api.fields.fields import Body, Language
from server.api.routes.error_shape import AnswerBody
from server.api.routes.state_route import StateRoute
from server.api.state import State, cache_salt
from server.api.stored.document_jobs import DocumentJob
from server.api.stored.document_upload import DocumentOptions, DocumentRoute, file_response
from server.errors import InvalidRequest, NotReady

_Secret = Annotated[str, Field(min_length=1, max_length=256, description="secret from the answer to the upload")]


class DeeplDocumentBody(Body):
    """Body of `POST /v2/document`. `filename`: replaces the uploaded file's name, whose extension says the format.

    `output_format`: may only be the format of the document itself.
    """

    target_lang: Annotated[Language, Field(description="language of the translated document")]
    source_lang: Annotated[Language | None, Field(description="language of the document; default: detected")] = None
    filename: Annotated[
        str | None, Field(max_length=1024, description="name of the document, in place of that of the file")
    ] = None
    output_format: Annotated[
        str | None, Field(max_length=16, description="end of the name of the translated file: that of the document")
    ] = None
    formality: Formality = None
    glossary_id: GlossaryId = None
    glossary_ids: GlossaryIds = None
    style_id: Unsupported = None
    translation_memory_id: Unsupported = None
    translation_memory_threshold: Unsupported = None

    def options(self) -> DocumentOptions:
        """Convert the body to `DocumentOptions`.

        Raises InvalidRequest for glossaries without a source language, and for both glossary fields at once.
        """
        ids = named_glossaries(self.glossary_id, self.glossary_ids, self.source_lang)
        formality = stated_formality(self.formality)
        return DocumentOptions(
            self.source_lang, self.target_lang, ids, self.model, self.filename, self.output_format, formality
        )


class DeeplDocumentKey(BaseModel):
    """Body of `POST /v2/document/{id}` and `POST /v2/document/{id}/result`.

    `document_key`: the secret from the answer to the upload.
    """

    model_config = Body.model_config

    document_key: _Secret


class DeeplDocumentHandle(AnswerBody):
    document_id: str
    document_key: str


class DeeplDocumentStatus(AnswerBody):
    """State of a document. `status`: queued, translating, done or error. `seconds_remaining`: an estimate.

    `billed_characters`: the characters of the translated document, although the server bills nothing.
    """

    document_id: str
    status: str
    seconds_remaining: int | None = None
    billed_characters: int | None = None
    error_message: str | None = None


class DeeplDocumentResult(AnswerBody):
    """The bytes of the translated file."""


def _handle(request: Request, job: DocumentJob) -> dict[str, str]:
    return {"document_id": job.id, "document_key": job.key}


def _find(state: State, request: Request, body: DeeplDocumentKey) -> DocumentJob:
    return state.documents.find(cache_salt(request), request.path_params["document_id"], body.document_key)


def _status(state: State, request: Request, body: DeeplDocumentKey) -> dict[str, Any]:
    job = _find(state, request, body)
    found: dict[str, Any] = {"document_id": job.id, "status": job.status}
    if job.status == "translating" and job.seconds_remaining is not None:
        found["seconds_remaining"] = job.seconds_remaining
    if job.status == "done":
        found["billed_characters"] = job.characters
    if job.error is not None:
        found["error_message"] = job.error.message
    return found


def _result(state: State, request: Request, body: DeeplDocumentKey) -> Response:
    job = _find(state, request, body)
    if job.error is not None:
        raise InvalidRequest("the document could not be translated; its status has the reason")
    if job.status != "done":
        raise NotReady(f"the document is not translated yet: its status is {job.status}", retry_after=1)
    return file_response(state, request, job)


_KEY = {"document_key": "2a52..."}
_HANDLE = {"document_id": "04DE...", "document_key": "2a52..."}
ROUTES: tuple[DocumentRoute[Any], ...] = (
    DocumentRoute(
        path="/v2/document",
        operation="translate",
        name="deepl_document",
        description="Take a document, which is translated in the background.",
        body=DeeplDocumentBody,
        answer=DeeplDocumentHandle,
        example=({"file": "(the bytes of a document)", "target_lang": "FR"}, _HANDLE),
        options=DeeplDocumentBody.options,
        render=_handle,
        errors=ERRORS,
    ),
)
STATE_ROUTES: tuple[StateRoute, ...] = (
    StateRoute(
        path="/v2/document/{document_id}",
        method="POST",
        name="deepl_document_status",
        description="Whether a document is translated.",
        body=DeeplDocumentKey,
        body_example=_KEY,
        answer=DeeplDocumentStatus,
        example={"document_id": "04DE...", "status": "translating", "seconds_remaining": 20},
        render=_status,
        errors=ERRORS,
    ),
    StateRoute(
        path="/v2/document/{document_id}/result",
        method="POST",
        name="deepl_document_result",
        description="The translated document, once.",
        body=DeeplDocumentKey,
        body_example=_KEY,
        answer=DeeplDocumentResult,
        example={},
        render=_result,
        errors=ERRORS,
    ),
)
