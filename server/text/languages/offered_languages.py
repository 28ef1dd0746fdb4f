"""The languages that several checkpoints translate together, under plain codes (`de`, `pt-BR`) for clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from server.text.languages.language_codes import english_name, named_languages, parse_language
from server.text.languages.languages import TranslationLanguages


@dataclass(frozen=True)
class OfferedLanguage:
    """A source language and the languages that it is translated to. Codes are ISO 639-1 where one exists."""

    code: str
    name: str
    targets: tuple[str, ...]


def offered_languages(checkpoints: Iterable[TranslationLanguages]) -> list[OfferedLanguage]:
    """All source languages with their targets, by code. Checkpoints for any source language have all known ones."""
    found: dict[str, set[str]] = {}
    for languages in checkpoints:
        for source, target in languages.language_pairs(named_languages()):
            found.setdefault(source, set()).add(target)
    return [OfferedLanguage(code, language_label(code), tuple(sorted(found[code]))) for code in sorted(found)]


def language_label(code: str) -> str:
    """The English name of a language, else its code."""
    parsed = parse_language(code)
    return (english_name(parsed) if parsed else None) or code
