"""Glossary routes of the DeepL dialect. A glossary has one dictionary in version 2 of the API, several in version 3.

Both versions access the same stored glossaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.json_answer import MEDIA_TYPE
from server.api.bodies.json_pieces import dump
from server.api.dialects.deepl.common import ERRORS
from server.api.dialects.deepl.glossary_bodies import (
    DeeplDictionary,
    DeeplDictionaryInfo,
    DeeplEntriesAnswer,
    DeeplGlossariesBody,
    DeeplGlossary,
    DeeplGlossaryBody,
    DeeplGlossaryChanges,
    DeeplGlossaryInfo,
    DeeplGlossaryInfoList,
    DeeplGlossaryList,
    DeeplNothing,
    DeeplPairs,
    DeeplTsv,
)
from server.api.routes.state_route import StateRoute, StateText
from server.api.state import State, cache_salt
from server.errors import InvalidRequest, NotFound
from server.operations.glossary_store import Pair, StoredGlossary, language_pair, merge_entries
from server.text.languages.offered_languages import offered_languages

LINES_AT_ONCE = 128
"""Lines of TSV that are rendered together: up to 66 KB."""


def _find(state: State, request: Request) -> StoredGlossary:
    return state.runtime.glossaries.get(cache_salt(request), request.path_params["glossary_id"])


def _first_dictionary(glossary: StoredGlossary) -> tuple[Pair, dict[str, str]]:
    """The first dictionary of a glossary, the one that version 2 of the API shows. Raises NotFound if there is none."""
    if not glossary.dictionaries:
        raise NotFound("the glossary has no dictionary; `/v3/glossaries` can add one")
    return next(iter(glossary.dictionaries.items()))


def _v2(glossary: StoredGlossary) -> dict[str, Any]:
    (source, target), entries = _first_dictionary(glossary)
    return {
        "glossary_id": glossary.id,
        "name": glossary.name,
        "ready": True,
        "source_lang": source,
        "target_lang": target,
        "creation_time": glossary.created,
        "entry_count": len(entries),
    }


def _info(pair: Pair, entries: dict[str, str]) -> dict[str, Any]:
    return {"source_lang": pair[0], "target_lang": pair[1], "entry_count": len(entries)}


def _v3(glossary: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": glossary.id,
        "name": glossary.name,
        "dictionaries": [_info(pair, entries) for pair, entries in glossary.dictionaries.items()],
        "creation_time": glossary.created,
    }


def _parsed(dictionaries: Sequence[DeeplDictionary]) -> dict[Pair, dict[str, str]]:
    found: dict[Pair, dict[str, str]] = {}
    for dictionary in dictionaries:
        pair, entries = dictionary.parsed()
        if pair in found:
            raise InvalidRequest("`dictionaries` has two of one pair of languages", "dictionaries")
        found[pair] = entries
    return found


def _create(state: State, request: Request, body: DeeplGlossaryBody) -> dict[str, Any]:
    return _v2(state.runtime.glossaries.create(cache_salt(request), body.name, _parsed([body])))


def _create_several(state: State, request: Request, body: DeeplGlossariesBody) -> dict[str, Any]:
    return _v3(state.runtime.glossaries.create(cache_salt(request), body.name, _parsed(body.dictionaries)))


def _change(state: State, request: Request, body: DeeplGlossaryChanges) -> dict[str, Any]:
    old = _find(state, request)
    dictionaries = dict(old.dictionaries)
    for pair, entries in _parsed(body.dictionaries or ()).items():
        dictionaries[pair] = merge_entries(dictionaries.get(pair, {}), entries)
    changed = StoredGlossary(old.owner, body.name or old.name, dictionaries, old.id, old.created)
    return _v3(state.runtime.glossaries.save(changed))


def _replace(state: State, request: Request, body: DeeplDictionary) -> dict[str, Any]:
    old = _find(state, request)
    pair, entries = body.parsed()
    changed = StoredGlossary(old.owner, old.name, old.dictionaries | {pair: entries}, old.id, old.created)
    state.runtime.glossaries.save(changed)
    return _info(pair, entries)


def _delete(state: State, request: Request, body: None) -> Response:
    state.runtime.glossaries.delete(cache_salt(request), request.path_params["glossary_id"])
    return Response(status_code=204)


def _pair_of(glossary: StoredGlossary, request: Request) -> Pair:
    """The language pair that the query names with `source_lang` and `target_lang`.

    Raises InvalidRequest for a missing or wrong language, and NotFound if the glossary has no dictionary for the pair.
    """
    codes = [request.query_params.get(name, "") for name in ("source_lang", "target_lang")]
    pair = language_pair(codes[0], codes[1])
    if pair not in glossary.dictionaries:
        raise NotFound("the glossary has no dictionary for this pair of languages")
    return pair


def _delete_dictionary(state: State, request: Request, body: None) -> Response:
    old = _find(state, request)
    pair = _pair_of(old, request)
    kept = {other: entries for other, entries in old.dictionaries.items() if other != pair}
    state.runtime.glossaries.save(StoredGlossary(old.owner, old.name, kept, old.id, old.created))
    return Response(status_code=204)


def _tsv(entries: dict[str, str]) -> Iterator[str]:
    """The entries as TSV, in parts. Together they may have 5 MB."""
    lines = (f"{term}\t{translation}" for term, translation in entries.items())
    end = ""
    while batch := list(islice(lines, LINES_AT_ONCE)):
        yield end + "\n".join(batch)
        end = "\n"


def _entries(state: State, request: Request, body: None) -> StateText:
    _, entries = _first_dictionary(_find(state, request))
    return StateText(map(str.encode, _tsv(entries)), "text/tab-separated-values; charset=utf-8")


def _entries_of_pair(state: State, request: Request, body: None) -> StateText:
    glossary = _find(state, request)
    source, target = pair = _pair_of(glossary, request)
    # The value of `entries` is one JSON string, of which each part is escaped by itself.
    return StateText(
        chain(
            [b'{"dictionaries":[', dump({"source_lang": source, "target_lang": target})[:-1], b',"entries":"'],
            (dump(part)[1:-1] for part in _tsv(glossary.dictionaries[pair])),
            [b'","entries_format":"tsv"}]}'],
        ),
        MEDIA_TYPE,
    )


async def _pairs(state: State, request: Request, body: None) -> dict[str, Any]:
    models = await state.runtime.translations()
    pairs = {
        (language.code.partition("-")[0], target.partition("-")[0])
        for language in offered_languages(models, state.runtime.pivot)
        for target in language.targets
    }
    return {"supported_languages": [{"source_lang": a, "target_lang": b} for a, b in sorted(pairs) if a != b]}


_ID = "def3a26b-3e84-45b3-84ae-0c0aaf3525f7"
_TIME = "2026-11-27T12:00:00.000000+00:00"
_DICTIONARY = {"source_lang": "en", "target_lang": "fr", "entries": "house\tvilla", "entries_format": "tsv"}
_V2 = {"glossary_id": _ID, "name": "mine", "ready": True, "source_lang": "en", "target_lang": "fr"}
_V2 |= {"creation_time": _TIME, "entry_count": 1}
_PAIR = {"source_lang": "en", "target_lang": "fr"}
_V3 = {"glossary_id": _ID, "name": "mine", "dictionaries": [_PAIR | {"entry_count": 1}], "creation_time": _TIME}


def _route(method: Any, path: str, name: str, description: str, answer: Any, example: Any, **more: Any) -> StateRoute:
    return StateRoute(
        method=method,
        path=path,
        name=f"deepl_{name}",
        description=description,
        answer=answer,
        example=example,
        errors=ERRORS,
        **{"works_in_thread": True, **more},
    )


_V2_ONE, _V3_ONE = "/v2/glossaries/{glossary_id}", "/v3/glossaries/{glossary_id}"
STATE_ROUTES: tuple[StateRoute, ...] = (
    _route(
        "POST",
        "/v2/glossaries",
        "create_glossary",
        "Store a glossary.",
        DeeplGlossary,
        _V2,
        render=_create,
        body=DeeplGlossaryBody,
        body_example=_DICTIONARY | {"name": "mine"},
        status=201,
    ),
    _route(
        "GET",
        "/v2/glossaries",
        "list_glossaries",
        "The glossaries of the API key.",
        DeeplGlossaryList,
        {"glossaries": [_V2]},
        render=lambda state, request, body: {
            "glossaries": (
                _v2(glossary) for glossary in state.runtime.glossaries.all(cache_salt(request)) if glossary.dictionaries
            )
        },
    ),
    _route(
        "GET",
        _V2_ONE,
        "get_glossary",
        "One glossary.",
        DeeplGlossary,
        _V2,
        render=lambda state, request, body: _v2(_find(state, request)),
    ),
    _route("GET", f"{_V2_ONE}/entries", "glossary_entries", "Its terms.", DeeplTsv, {}, render=_entries),
    _route("DELETE", _V2_ONE, "delete_glossary", "Delete a glossary.", DeeplNothing, {}, render=_delete, status=204),
    _route(
        "GET",
        "/v2/glossary-language-pairs",
        "glossary_pairs",
        "Pairs of languages for glossaries: all that the models translate.",
        DeeplPairs,
        {"supported_languages": [_PAIR]},
        render=_pairs,
        works_in_thread=False,
    ),
    _route(
        "POST",
        "/v3/glossaries",
        "create_glossary_v3",
        "Store a glossary with dictionaries of several pairs.",
        DeeplGlossaryInfo,
        _V3,
        render=_create_several,
        body=DeeplGlossariesBody,
        body_example={"name": "mine", "dictionaries": [_DICTIONARY]},
        status=201,
    ),
    _route(
        "GET",
        "/v3/glossaries",
        "list_glossaries_v3",
        "The glossaries of the API key.",
        DeeplGlossaryInfoList,
        {"glossaries": [_V3]},
        render=lambda state, request, body: {
            "glossaries": (_v3(glossary) for glossary in state.runtime.glossaries.all(cache_salt(request)))
        },
    ),
    _route(
        "GET",
        _V3_ONE,
        "get_glossary_v3",
        "One glossary.",
        DeeplGlossaryInfo,
        _V3,
        render=lambda state, request, body: _v3(_find(state, request)),
    ),
    _route(
        "GET",
        f"{_V3_ONE}/entries",
        "glossary_entries_v3",
        "The terms of the pair that `source_lang` and `target_lang` in the query name.",
        DeeplEntriesAnswer,
        {"dictionaries": [_DICTIONARY]},
        render=_entries_of_pair,
    ),
    _route(
        "PATCH",
        _V3_ONE,
        "change_glossary",
        "Rename a glossary, or add entries to its dictionaries.",
        DeeplGlossaryInfo,
        _V3,
        render=_change,
        body=DeeplGlossaryChanges,
        body_example={"name": "ours"},
    ),
    _route(
        "PUT",
        f"{_V3_ONE}/dictionaries",
        "replace_dictionary",
        "Replace or add one dictionary.",
        DeeplDictionaryInfo,
        _PAIR | {"entry_count": 1},
        render=_replace,
        body=DeeplDictionary,
        body_example=_DICTIONARY,
    ),
    _route(
        "DELETE",
        f"{_V3_ONE}/dictionaries",
        "delete_dictionary",
        "Delete the dictionary of the pair that `source_lang` and `target_lang` in the query name.",
        DeeplNothing,
        {},
        render=_delete_dictionary,
        status=204,
    ),
    _route("DELETE", _V3_ONE, "delete_glossary_v3", "Delete a glossary.", DeeplNothing, {}, render=_delete, status=204),
)
