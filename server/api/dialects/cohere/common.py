"""Code that the routes of the Cohere dialect share: the format of errors, and the field `meta` of answers."""

from __future__ import annotations

from typing import Any

from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape


class CohereErrorAnswer(ErrorMembers):
    """Body of an error response. `id`: id of the request."""

    id: str
    message: str


class CohereApiVersion(AnswerBody):
    version: str


class CohereUnits(AnswerBody):
    """The units that Cohere bills. This server reports the counts and bills nothing."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    search_units: int | None = None


class CohereMeta(AnswerBody):
    api_version: CohereApiVersion
    billed_units: CohereUnits


ERRORS = ErrorShape(
    statuses={422: 400},
    body=lambda error, request_id: {"id": request_id, "message": error.message},
    answer=CohereErrorAnswer,
)


def meta(version: str, **units: int) -> dict[str, Any]:
    """The field `meta` of an answer. version: version of Cohere's API. units: fields of `CohereUnits`."""
    return {"api_version": {"version": version}, "billed_units": units}
