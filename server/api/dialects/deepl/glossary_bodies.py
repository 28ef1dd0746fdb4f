"""Bodies and answers of the routes of DeepL's glossaries, and the two formats of their entries: TSV and CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from server.api.fields.fields import Body, Language
from server.api.routes.error_shape import AnswerBody
from server.errors import InvalidRequest
from server.operations.glossary_store import MAX_DICTIONARIES, Pair, check_entries, language_pair
from server.text.windowed_search import search

_Name = Annotated[str, Field(min_length=1, max_length=1024, description="name of the glossary")]
_Format = Annotated[Literal["tsv", "csv"], Field(description="tsv or csv")]
_Entries = Annotated[str, Field(description="lines of a term and its translation")]
MAX_LINE_CHARACTERS = 1024
"""Maximum length of a line: a term and its translation with quotes, two language codes, and white space."""
_KNOWN_PAIRS = 1024
"""Number of language pairs in lines of CSV that are kept, because reading a code takes longer than the other work."""
_LINE = re.compile(rf"[^\r\n]{{1,{MAX_LINE_CHARACTERS + 1}}}")
"""A line, or the beginning of one that is too long. A search for longer ones would hold Python's lock for long."""


class DeeplDictionary(BaseModel):
    """Terms of one pair of languages. `entries`: lines in `entries_format`, each with a term and its translation."""

    model_config = Body.model_config

    source_lang: Annotated[Language, Field(description="language of the terms")]
    target_lang: Annotated[Language, Field(description="language of their translations")]
    entries: _Entries
    entries_format: _Format

    def parsed(self) -> tuple[Pair, dict[str, str]]:
        """The language pair, and the translations by term. Raises InvalidRequest for a bad language or bad entries."""
        pair = language_pair(self.source_lang, self.target_lang)
        return pair, check_entries(self._entries_of(pair))

    def _entries_of(self, pair: Pair) -> Iterator[tuple[str, str]]:
        """Yield (term, translation) of each line that does not name another pair of languages, as DeepL does.

        Lines are read one by one, because entries may have a million lines, and a list of them would take 170 MB.
        Raises InvalidRequest for a line that has no term and translation, or is too long.
        """
        is_tsv = self.entries_format == "tsv"
        widths = (2,) if is_tsv else (2, 4)  # DeepL's CSV may repeat the languages in each line
        known: dict[tuple[str, str], bool] = {}
        number, end = 0, 0
        while (match := search(_LINE, self.entries, end, longest=MAX_LINE_CHARACTERS + 1)) is not None:
            line, end = match[0], match.end()
            if line.isspace():
                continue
            if len(line) > MAX_LINE_CHARACTERS:
                ends = (self.entries.find(mark, end) for mark in "\r\n")
                length = min((place for place in ends if place >= 0), default=len(self.entries)) - match.start()
                raise InvalidRequest(
                    f"`entries` has {length:,} characters in entry {number + 1}; the limit is {MAX_LINE_CHARACTERS:,}",
                    "entries",
                )
            row = line.split("\t") if is_tsv else _csv_row(line, number + 1)
            if not any(map(str.strip, row)):
                continue
            number += 1
            if len(row) not in widths:
                raise InvalidRequest(f"`entries` has no term and translation in entry {number}", "entries")
            if len(row) == 4:
                codes = (row[2], row[3])
                if len(known) >= _KNOWN_PAIRS:
                    known.clear()
                if codes not in known:
                    known[codes] = _is_pair(*codes, pair)
                if not known[codes]:
                    continue
            yield row[0], row[1]


def _csv_row(line: str, number: int) -> list[str]:
    """Split a line of CSV into its fields. Raises InvalidRequest for a line that is not CSV.

    number: number of the entry, counted from 1, for the error.
    """
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        raise InvalidRequest(f"`entries` is not CSV in entry {number}", "entries") from None


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
