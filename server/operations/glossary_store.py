"""Store glossaries, which later requests name by id. A glossary has a dictionary of terms for each pair of languages.

A glossary belongs to the API key that has created it. Glossaries are kept in memory, and also in files if the operator
has set a directory. See docs/decisions/0141-stored-glossaries.md.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from server.errors import InvalidRequest, NotFound, RequestTooLarge, StartError
from server.operations.stored_files import replace_file, storing
from server.text.languages.language_codes import parse_language

log = logging.getLogger("triptych.glossaries")

MAX_TERM_CHARACTERS = 64
"""Maximum length of a term, and of its translation."""
MAX_STORED_TERMS = 10_000
"""Maximum number of terms in one dictionary."""
MAX_GLOSSARIES = 1_000
"""Maximum number of glossaries per API key."""
MAX_BYTES = 128 << 20
"""Maximum memory of all glossaries. Each API key may use an equal part of it."""
MAX_DICTIONARIES = 100
"""Maximum number of dictionaries in one glossary."""
GLOSSARY_BYTES, DICTIONARY_BYTES, TERM_BYTES = 1024, 512, 256
"""Bytes of memory besides their characters for a glossary, for a dictionary without entries, and for an entry: a term,
its translation, and their place in a table."""
_WIDE_TEXT_BYTES = 27
"""Bytes of memory by which a text that is not ASCII is larger than an ASCII text, besides its characters."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FILE_NAME = re.compile(r"[0-9a-f-]{36}\.json")

Pair = tuple[str, str]


def language_pair(source_lang: str, target_lang: str) -> Pair:
    """The pair (source, target) of language codes for a dictionary, without regions.

    Raises InvalidRequest for text that is no language code, and for two equal languages.
    """
    found = []
    for code, name in ((source_lang, "source_lang"), (target_lang, "target_lang")):
        language = parse_language(code)
        if language is None:
            raise InvalidRequest(f"`{name}` is not a language code", name)
        found.append(language.language)
    if found[0] == found[1]:
        raise InvalidRequest("`source_lang` and `target_lang` of a glossary have to differ", "target_lang")
    return found[0], found[1]


def check_entry(term: str, translation: str, number: int, param: str) -> None:
    """Raise InvalidRequest for a term or a translation that is empty or too long.

    number: number of the entry, counted from 1. param: field of the request, for the error.
    """
    for text, side in ((term, "term"), (translation, "translation")):
        if not text.strip():
            raise InvalidRequest(f"`{param}` has an empty {side} in entry {number}", param)
        if len(text) > MAX_TERM_CHARACTERS:
            raise InvalidRequest(
                f"`{param}` has a {side} of {len(text)} characters in entry {number}; the limit is "
                f"{MAX_TERM_CHARACTERS}",
                param,
            )


def check_entries(entries: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Check the entries of a dictionary, and return a mapping of terms to translations.

    Reads no more entries after the first error.

    Raises InvalidRequest, which names the wrong entry, for a term that is empty, too long, repeated, or has a control
    character. Also raises it for no entries, or more than `MAX_STORED_TERMS`.
    """
    found: dict[str, str] = {}
    for number, pair in enumerate(entries, 1):
        _check_count(number, " or more")
        term, translation = (text.strip() for text in pair)
        check_entry(term, translation, number, "entries")
        if _CONTROL.search(term) or _CONTROL.search(translation):
            raise InvalidRequest(f"`entries` has a control character in entry {number}", "entries")
        if term in found:
            raise InvalidRequest(f"`entries` has the term of entry {number} twice", "entries")
        found[term] = translation
    if not found:
        raise InvalidRequest("`entries` has no entry", "entries")
    return found


def merge_entries(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Add entries to those of a dictionary, and replace equal terms. Both were checked by `check_entries`.

    Raises InvalidRequest for more than `MAX_STORED_TERMS` entries.
    """
    found = {**old, **new}
    _check_count(len(found))
    return found


def _check_count(count: int, more: str = "") -> None:
    """Raise InvalidRequest for too many entries. more: ` or more` if there may be entries that were not counted."""
    if count > MAX_STORED_TERMS:
        raise InvalidRequest(f"`entries` has {count:,}{more} entries; the limit is {MAX_STORED_TERMS:,}", "entries")


@dataclass
class StoredGlossary:
    """One glossary.

    owner: name of the API key that has created it, which stays the same after a restart.
    dictionaries: pair of languages to a mapping of terms to translations.
    created: time of creation, in the format of RFC 3339.
    """

    owner: str
    name: str
    dictionaries: dict[Pair, dict[str, str]]
    id: str = field(default_factory=lambda: _new_id())
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the glossary, in bytes."""
        terms = sum(
            TERM_BYTES + _character_bytes(term) + _character_bytes(translation)
            for entries in self.dictionaries.values()
            for term, translation in entries.items()
        )
        return GLOSSARY_BYTES + _character_bytes(self.name) + DICTIONARY_BYTES * len(self.dictionaries) + terms

    def json(self) -> Iterator[bytes]:
        """Yield the content of the glossary's file in parts: one long library call would hold Python's global lock."""
        head = {"owner": self.owner, "name": self.name, "created": self.created}
        yield orjson.dumps(head)[:-1] + b',"dictionaries":['
        for index, ((source, target), entries) in enumerate(self.dictionaries.items()):
            value = {"source_lang": source, "target_lang": target, "entries": entries}
            yield (b",\n" if index else b"\n") + orjson.dumps(value, option=orjson.OPT_INDENT_2)
        yield b"]}\n"


def _character_bytes(text: str) -> int:
    """Memory of a text's characters, in bytes: 1, 2 or 4 for each character, depending on the widest one.

    Python also keeps the UTF-8 bytes of a text that is not ASCII, from the first library call that asks for them.
    """
    if text.isascii():
        return len(text)
    widest = ord(max(text))
    width = 1 if widest < 1 << 8 else 2 if widest < 1 << 16 else 4
    return _WIDE_TEXT_BYTES + width * len(text) + len(text.encode(errors="surrogatepass")) + 1


def _new_id() -> str:
    text = secrets.token_hex(16)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class GlossaryStore:
    """All glossaries. directory: folder for their files; None to keep them in memory only.

    Raises StartError for a directory that cannot be used, or a file in it that is no glossary.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._glossaries: dict[str, StoredGlossary] = {}
        self._sizes: dict[str, int] = {}
        self._owners: Mapping[str, str] = {"": "everybody"}
        if directory is not None:
            self._load(directory)

    def use_owners(self, owners: Mapping[str, str]) -> None:
        """Set the owners of glossaries. owners: cache salt of each API key to a name that outlasts a restart."""
        self._owners = owners

    def all(self, salt: str) -> list[StoredGlossary]:
        """The glossaries of an API key, oldest first. salt: cache salt of the key."""
        owner = self._owners.get(salt)
        return sorted(
            (glossary for glossary in self._glossaries.values() if glossary.owner == owner),
            key=lambda glossary: glossary.created,
        )

    def get(self, salt: str, glossary_id: str) -> StoredGlossary:
        """A glossary of an API key. salt: cache salt of the key. Raises NotFound, also if it belongs to another key."""
        found = self._glossaries.get(glossary_id)
        if found is None or found.owner != self._owners.get(salt):
            raise NotFound("there is no glossary with this id")
        return found

    def create(self, salt: str, name: str, dictionaries: Mapping[Pair, dict[str, str]]) -> StoredGlossary:
        """Store a new glossary, and return it. salt: cache salt of the API key.

        Raises NotFound if the key is no longer valid, RequestTooLarge if the key has too many or too large glossaries,
        and StorageFailed if the file cannot be written.
        """
        if salt not in self._owners:
            raise NotFound("the API key of this request is no longer valid")
        if len(self.all(salt)) >= MAX_GLOSSARIES:
            raise RequestTooLarge(f"the API key has {MAX_GLOSSARIES:,} glossaries, which is the limit; delete some")
        return self.save(StoredGlossary(self._owners[salt], name, dict(dictionaries)))

    def save(self, glossary: StoredGlossary) -> StoredGlossary:
        """Store a glossary, and replace an earlier one with the same id. Returns it.

        Raises RequestTooLarge if the glossary would have too many dictionaries, or the glossaries of its owner would
        need too much memory, and StorageFailed if its file cannot be written.
        """
        old = self._glossaries.get(glossary.id)
        count, old_count = len(glossary.dictionaries), len(old.dictionaries) if old else 0
        if count > max(MAX_DICTIONARIES, old_count):
            raise RequestTooLarge(f"the glossary would have {count:,} dictionaries; the limit is {MAX_DICTIONARIES:,}")
        size, share = glossary.num_bytes, MAX_BYTES // max(len(self._owners), 1)
        old_size = self._sizes[old.id] if old else 0
        held = sum(self._sizes[own.id] for own in self._glossaries.values() if own.owner == glossary.owner)
        needed = held - old_size + size
        if size > old_size and needed > share:
            raise RequestTooLarge(
                f"the glossaries of the API key would need {needed / 2**20:,.1f} MiB of memory; the limit is "
                f"{share / 2**20:,.1f} MiB; delete some"
            )
        if self._directory is not None:
            with storing("glossaries"):
                replace_file(self._directory / f"{glossary.id}.json", glossary.json())
        self._glossaries[glossary.id], self._sizes[glossary.id] = glossary, size
        return glossary

    def delete(self, salt: str, glossary_id: str) -> None:
        """Delete a glossary. Raises NotFound, and StorageFailed if its file cannot be removed."""
        found = self.get(salt, glossary_id)
        if self._directory is not None:
            with storing("glossaries"):
                (self._directory / f"{found.id}.json").unlink(missing_ok=True)
        del self._glossaries[found.id], self._sizes[found.id]

    def terms(self, salt: str, glossary_ids: Sequence[str], source_lang: str, target_lang: str) -> dict[str, str]:
        """Merge the terms of several glossaries for a pair of languages. Earlier glossaries take precedence.

        salt: cache salt of the API key.
        Raises InvalidRequest for an unknown id, and for a glossary without a dictionary for the pair.
        """
        pair = language_pair(source_lang, target_lang)
        found: dict[str, str] = {}
        for glossary_id in glossary_ids:
            try:
                dictionary = self.get(salt, glossary_id).dictionaries.get(pair)
            except NotFound:
                raise InvalidRequest("`glossary_id` names no stored glossary", "glossary_id") from None
            if dictionary is None:
                raise InvalidRequest(f"the glossary has no dictionary for {pair[0]}-{pair[1]}", "glossary_id")
            found = dictionary | found
        return found

    def _load(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            files = sorted(path for path in directory.iterdir() if _FILE_NAME.fullmatch(path.name))
            if not os.access(directory, os.W_OK):
                raise PermissionError(13, "no permission to write")
        except OSError as error:
            raise StartError(f"glossaries: cannot use {directory}: {error.strerror}") from None
        for path in files:
            try:
                if not path.is_file():  # reading a pipe would never end
                    raise ValueError
                glossary = _from_file(path.stem, orjson.loads(path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
                raise StartError(f"glossaries: {path} is no glossary of this server") from None
            self._glossaries[glossary.id], self._sizes[glossary.id] = glossary, glossary.num_bytes
        if files:
            log.info("%s glossaries in %s", f"{len(files):,}", directory)


def _from_file(glossary_id: str, value: Any) -> StoredGlossary:
    dictionaries = {
        language_pair(dictionary["source_lang"], dictionary["target_lang"]): check_entries(
            dictionary["entries"].items()
        )
        for dictionary in value["dictionaries"]
    }
    return StoredGlossary(str(value["owner"]), str(value["name"]), dictionaries, glossary_id, str(value["created"]))
