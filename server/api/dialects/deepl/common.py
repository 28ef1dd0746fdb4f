"""Code that the routes of the DeepL dialect share: the format of errors, and fields for glossaries and formality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from server.api.routes.error_shape import ErrorMembers, ErrorShape
from server.errors import InvalidRequest, RequestError, Unauthorized
from server.operations.translating.instructed import Formality as FormalityWish


class DeeplError(ErrorMembers):
    message: str


def _error(error: RequestError, request_id: str) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return {"message": "send a valid API key as `Authorization: DeepL-Auth-Key KEY`"}
    return {"message": error.message}


ERRORS = ErrorShape(
    statuses={401: 403, 422: 400},
    fields={"inputs": "text"},
    body=_error,
    answer=DeeplError,
)


def _ids(value: object) -> object:
    """Split text with commas into a list of ids. Any other value, such as a list, is returned unchanged."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


_Id = Annotated[str, Field(min_length=1, max_length=64)]
GlossaryId = Annotated[_Id | None, Field(description="a stored glossary; needs `source_lang`")]
GlossaryIds = Annotated[
    Annotated[list[_Id], Field(max_length=5)] | None,
    BeforeValidator(_ids),
    Field(description="stored glossaries, of which the first with a term counts; need `source_lang`"),
]


Formality = Annotated[
    Literal["default", "more", "less", "prefer_more", "prefer_less"] | None,
    Field(
        description="more and less need a language model whose prompt has it; others ignore prefer_more and prefer_less"
    ),
]
Context = Annotated[
    str | None,
    Field(description="text around the texts, which is not translated; needs a language model whose prompt has it"),
]


def stated_formality(value: str | None) -> FormalityWish | None:
    """The formality that a request asks for, or None for `default` and for no value."""
    return next((wish for wish in get_args(FormalityWish) if wish == value), None)


def named_glossaries(one: str | None, several: Sequence[str] | None, source_lang: str | None) -> tuple[str, ...]:
    """The ids of the glossaries that a request names, as a tuple.

    one, several: the fields `glossary_id` and `glossary_ids`.
    Raises InvalidRequest if both fields are set, or if a glossary is named without a source language.
    """
    if one and several:
        raise InvalidRequest("`glossary_id` cannot be combined with `glossary_ids`", "glossary_ids")
    found = (one,) if one else tuple(several or ())
    if found and source_lang is None:
        name = "glossary_id" if one else "glossary_ids"
        raise InvalidRequest(f"`{name}` needs `source_lang`", name)
    return found
