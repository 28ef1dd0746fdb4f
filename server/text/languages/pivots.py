"""Pairs of languages that two checkpoints translate together, through a pivot language that both know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from server.text.languages.language_codes import named_languages, parse_language
from server.text.languages.languages import TranslationLanguages, TranslationPrompt, UnknownPair

AUTOMATIC, OFF = "auto", "off"
"""Settings in place of the code of a pivot language."""
_PREFERRED = "en"


def chosen_pivot(connecting: Collection[str], setting: str) -> str | None:
    """The pivot language of a pair; None if there is none, or if the setting has to decide between several.

    connecting: plain codes of the languages with a translation from the source and one to the target.
    setting: a plain code, `AUTOMATIC` or `OFF`. Automatic is the only one of them, or English.
    """
    if setting != AUTOMATIC:
        return setting if setting in connecting else None
    if _PREFERRED in connecting:
        return _PREFERRED
    return next(iter(connecting)) if len(connecting) == 1 else None


def connecting_languages(checkpoints: Sequence[TranslationLanguages], source: str, target: str) -> list[str]:
    """Languages into which `source` can be translated, and from which `target` can be reached, as plain codes.

    source, target: language codes in any notation.
    """
    read, written = parse_language(source), parse_language(target)
    if read is None or written is None:
        return []
    found = []
    for code in sorted({to for _, to in _pairs(tuple(checkpoints))}):
        language = parse_language(code)
        if language is not None and language.language not in (read.language, written.language):
            first, second = (translations(checkpoints, *pair) for pair in ((source, code), (code, target)))
            if any(True for _ in first) and any(True for _ in second):
                found.append(code)
    return found


def translations(
    checkpoints: Sequence[TranslationLanguages], source: str, target: str
) -> Iterable[tuple[int, TranslationPrompt]]:
    """(index, prompt) of each checkpoint that translates between two different languages."""
    for place, languages in enumerate(checkpoints):
        try:
            prompt = languages.match(source, target)
        except UnknownPair:
            continue
        if not prompt.copies:
            yield place, prompt


def pivoted_pairs(checkpoints: Iterable[TranslationLanguages], setting: str) -> Mapping[tuple[str, str], str]:
    """The pivot language of each (source, target) without a direct translation, all as plain codes."""
    return _pivoted(tuple(checkpoints), setting)


@lru_cache(8)
def _pairs(checkpoints: tuple[TranslationLanguages, ...]) -> frozenset[tuple[str, str]]:
    """All direct translations of the checkpoints, as plain codes."""
    return frozenset(pair for languages in checkpoints for pair in languages.language_pairs(named_languages()))


@lru_cache(8)
def _pivoted(checkpoints: tuple[TranslationLanguages, ...], setting: str) -> Mapping[tuple[str, str], str]:
    targets: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    for source, target in _pairs(checkpoints) if setting != OFF else ():
        targets.setdefault(source, set()).add(target)
        sources.setdefault(target, set()).add(source)
    found = {}
    for source in sorted(targets):
        reached = {far for near in targets[source] for far in targets.get(near, ())}
        for target in sorted(reached - targets[source]):
            if source.partition("-")[0] == target.partition("-")[0]:
                continue
            pivot = chosen_pivot(targets[source] & sources[target], setting)
            if pivot is not None:
                found[source, target] = pivot
    return found
