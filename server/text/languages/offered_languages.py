"""The union of the languages that several checkpoints translate, in the short codes that clients use (`pt-BR`)."""

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
    """A language, and the languages into which it can be translated.

    code: short code, with a script or region where a checkpoint has several (`plain_codes`).
    name: English name, with the script or region.
    targets: codes of all target languages; empty for a language that is a target only.
    direct: the codes in `targets` that need no pivot language.
    """

    code: str
    name: str
    targets: tuple[str, ...]
    direct: tuple[str, ...]


def offered_languages(checkpoints: Sequence[TranslationLanguages], pivot: str = OFF) -> list[OfferedLanguage]:
    """Return the languages of all checkpoints with their targets, sorted by code.

    A checkpoint that takes any source language counts with all languages that have an English name.

    pivot: setting for pivot languages: a language code, `auto` or `off`.
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
    """Return the English name of a language, with the script or region in its code; the code if it has no name."""
    parsed = parse_language(code)
    name = english_name(parsed) if parsed else None
    if parsed is None or name is None:
        return code
    more = [_SCRIPTS.get(parsed.script or "", parsed.script), _REGIONS.get(parsed.region or "", parsed.region)]
    stated = ", ".join([name_part for name_part in more if name_part])
    return f"{name} ({stated})" if stated else name
