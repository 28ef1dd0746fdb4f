"""The languages that several checkpoints translate together, under plain codes (`de`, `pt-BR`) for clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from server.text.languages.language_codes import english_name, named_languages, parse_language
from server.text.languages.languages import TranslationLanguages

_SCRIPTS = {"Hans": "simplified", "Hant": "traditional", "Latn": "Latin", "Cyrl": "Cyrillic", "Arab": "Arabic"}
_REGIONS = {"BR": "Brazil", "PT": "Portugal", "GB": "United Kingdom", "US": "United States", "MX": "Mexico"}


@dataclass(frozen=True)
class OfferedLanguage:
    """A language and the languages that it is translated to: none for a language that is a target only.

    Codes are ISO 639-1 where one exists, with a script or region where a checkpoint has several (see `plain_codes`).
    """

    code: str
    name: str
    targets: tuple[str, ...]


def offered_languages(checkpoints: Iterable[TranslationLanguages]) -> list[OfferedLanguage]:
    """All languages with their targets, by code. Checkpoints for any source language have all known ones."""
    found: dict[str, set[str]] = {}
    for languages in checkpoints:
        for source, target in languages.language_pairs(named_languages()):
            found.setdefault(source, set()).add(target)
            found.setdefault(target, set())
    return [OfferedLanguage(code, language_label(code), tuple(sorted(found[code]))) for code in sorted(found)]


def language_label(code: str) -> str:
    """The English name of a language, with its script or region if the code has one; else its code."""
    parsed = parse_language(code)
    name = english_name(parsed) if parsed else None
    if parsed is None or name is None:
        return code
    more = [_SCRIPTS.get(parsed.script or "", parsed.script), _REGIONS.get(parsed.region or "", parsed.region)]
    stated = ", ".join([one for one in more if one])
    return f"{name} ({stated})" if stated else name
