"""The languages that several checkpoints translate together, under plain codes (`de`, `pt-BR`) for clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.text.languages.language_codes import english_name, named_languages, parse_language
from server.text.languages.languages import TranslationLanguages
from server.text.languages.pivots import OFF, pivoted_pairs

_SCRIPTS = {"Hans": "simplified", "Hant": "traditional", "Latn": "Latin", "Cyrl": "Cyrillic", "Arab": "Arabic"}
_REGIONS = {"BR": "Brazil", "PT": "Portugal", "GB": "United Kingdom", "US": "United States", "MX": "Mexico"}


@dataclass(frozen=True)
class OfferedLanguage:
    """A language and the languages that it is translated to: none for a language that is a target only.

    Codes are ISO 639-1 where one exists, with a script or region where a checkpoint has several (see `plain_codes`).
    direct: those of `targets` that need no pivot language.
    """

    code: str
    name: str
    targets: tuple[str, ...]
    direct: tuple[str, ...]


def offered_languages(checkpoints: Sequence[TranslationLanguages], pivot: str = OFF) -> list[OfferedLanguage]:
    """All languages with their targets, by code. Checkpoints for any source language have all known ones.

    pivot: the setting of the pivot language, as for `pivoted_pairs`.
    """
    direct: dict[str, set[str]] = {}
    for languages in checkpoints:
        for source, target in languages.language_pairs(named_languages()):
            direct.setdefault(source, set()).add(target)
            direct.setdefault(target, set())
    every = {code: set(targets) for code, targets in direct.items()}
    for source, target in pivoted_pairs(checkpoints, pivot):
        every[source].add(target)
    return [
        OfferedLanguage(code, language_label(code), tuple(sorted(every[code])), tuple(sorted(direct[code])))
        for code in sorted(every)
    ]


def language_label(code: str) -> str:
    """The English name of a language, with its script or region if the code has one; else its code."""
    parsed = parse_language(code)
    name = english_name(parsed) if parsed else None
    if parsed is None or name is None:
        return code
    more = [_SCRIPTS.get(parsed.script or "", parsed.script), _REGIONS.get(parsed.region or "", parsed.region)]
    stated = ", ".join([name_part for name_part in more if name_part])
    return f"{name} ({stated})" if stated else name
