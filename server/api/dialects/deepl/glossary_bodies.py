"""Bodies and answers of the routes of DeepL's glossaries, and the two formats of their entries: TSV and CSV."""

from __future__ import annotations

import csv
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from server.api.fields.fields import Body, Language
from server.api.routes.error_shape import AnswerBody
from server.errors import InvalidRequest
from server.operations.glossary_store import Pair, check_entries, language_pair

_Name = Annotated[str, Field(min_length=1, max_length=1024, description="name of the glossary")]
_Format = Annotated[Literal["tsv", "csv"], Field(description="tsv or csv")]
_Entries = Annotated[str, Field(description="lines of a term and its translation")]
MAX_DICTIONARIES = 100


class DeeplDictionary(BaseModel):
    """Terms of one pair of languages. `entries`: lines in `entries_format`, each with a term and its translation."""

    model_config = Body.model_config

    source_lang: Annotated[Language, Field(description="language of the terms")]
    target_lang: Annotated[Language, Field(description="language of their translations")]
    entries: _Entries
    entries_format: _Format

    def parsed(self) -> tuple[Pair, dict[str, str]]:
        """The language pair, and the translations by term. Raises InvalidRequest for a bad language or bad entries."""
        separator = "\t" if self.entries_format == "tsv" else ","
        rows = (
            csv.reader(self.entries.splitlines(), strict=True)
            if self.entries_format == "csv"
            else (line.split("\t") for line in self.entries.splitlines())
        )
        try:
            found = [row for row in rows if any(map(str.strip, row))]
        except csv.Error:
            raise InvalidRequest("`entries` is not CSV", "entries") from None
        widths = (2,) if separator == "\t" else (2, 4)  # DeepL's CSV may repeat the languages in each line
        wrong = next((number for number, row in enumerate(found, 1) if len(row) not in widths), None)
        if wrong is not None:
            raise InvalidRequest(f"`entries` has no term and translation in entry {wrong}", "entries")
        pair = language_pair(self.source_lang, self.target_lang)
        entries = [(row[0], row[1]) for row in found if len(row) == 2 or _is_pair(row[2], row[3], pair)]
        return pair, check_entries(entries)


def _is_pair(source_lang: str, target_lang: str, pair: Pair) -> bool:
    """Whether the two language codes in a line of CSV name the languages of `pair`. DeepL ignores other lines."""
    try:
        return language_pair(source_lang.strip(), target_lang.strip()) == pair
    except InvalidRequest:
        return False


class DeeplGlossaryBody(DeeplDictionary):
    """Body of `POST /v2/glossaries`: a glossary with one dictionary."""

    name: _Name


_Dictionaries = Annotated[
    list[DeeplDictionary], Field(max_length=MAX_DICTIONARIES, description="one for each pair of languages")
]


class DeeplGlossariesBody(BaseModel):
    """Body of `POST /v3/glossaries`: a glossary with one dictionary for each of several language pairs."""

    model_config = Body.model_config

    name: _Name
    dictionaries: Annotated[_Dictionaries, Field(min_length=1)]


class DeeplGlossaryChanges(BaseModel):
    """Body of `PATCH /v3/glossaries/{id}`. `dictionaries`: entries to add. They replace old entries of equal terms."""

    model_config = Body.model_config

    name: _Name | None = None
    dictionaries: _Dictionaries | None = None


class DeeplGlossary(AnswerBody):
    glossary_id: str
    name: str
    ready: bool
    source_lang: str
    target_lang: str
    creation_time: str
    entry_count: int


class DeeplGlossaryList(AnswerBody):
    glossaries: list[DeeplGlossary]


class DeeplDictionaryInfo(AnswerBody):
    source_lang: str
    target_lang: str
    entry_count: int


class DeeplGlossaryInfo(AnswerBody):
    glossary_id: str
    name: str
    dictionaries: list[DeeplDictionaryInfo]
    creation_time: str


class DeeplGlossaryInfoList(AnswerBody):
    glossaries: list[DeeplGlossaryInfo]


class DeeplEntries(AnswerBody):
    source_lang: str
    target_lang: str
    entries: str
    entries_format: str


class DeeplEntriesAnswer(AnswerBody):
    dictionaries: list[DeeplEntries]


class DeeplTsv(AnswerBody):
    """Answer with lines of text: a term, a tab and its translation."""


class DeeplNothing(AnswerBody):
    """Empty answer, with status 204."""


class DeeplPair(AnswerBody):
    source_lang: str
    target_lang: str


class DeeplPairs(AnswerBody):
    supported_languages: list[DeeplPair]
