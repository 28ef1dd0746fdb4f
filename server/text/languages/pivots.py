"""Language pairs without a direct translation: two translations in a row, through a pivot language such as English."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from server.text.languages.language_codes import named_languages, parse_language
from server.text.languages.languages import TranslationLanguages, TranslationPrompt, UnknownPair

AUTOMATIC, OFF = "auto", "off"
"""Settings that may stand in place of the pivot language's code."""
_PREFERRED = "en"


def chosen_pivot(connecting: Collection[str], setting: str) -> str | None:
    """Choose the pivot language for a pair. None if no language qualifies, or if several do and none is preferred.

    connecting: codes of the languages with a translation from the source, and a translation to the target.
    setting: a language code, `AUTOMATIC` or `OFF`. `AUTOMATIC` chooses English if that connects, else the only
        connecting language.
    """
    if setting != AUTOMATIC:
        return setting if setting in connecting else None
    if _PREFERRED in connecting:
        return _PREFERRED
    return next(iter(connecting)) if len(connecting) == 1 else None


def connecting_languages(checkpoints: Sequence[TranslationLanguages], source: str, target: str) -> list[str]:
    """Return the codes of the languages into which `source` can be translated, and which can be translated to `target`.

    source, target: language codes in any notation. Empty if one of them is not a code.
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
    """Yield (index, prompt) for each checkpoint that offers the translation, except those that would copy the text."""
    for place, languages in enumerate(checkpoints):
        try:
            prompt = languages.match(source, target)
        except UnknownPair:
            continue
        if not prompt.copies:
            yield place, prompt


def pivoted_pairs(checkpoints: Iterable[TranslationLanguages], setting: str) -> Mapping[tuple[str, str], str]:
    """Return the pivot language's code, by (source, target), for each pair that needs one and has one.

    setting: a language code, `AUTOMATIC` or `OFF`.
    """
    return _pivoted(tuple(checkpoints), setting)


@lru_cache(8)
def _pairs(checkpoints: tuple[TranslationLanguages, ...]) -> frozenset[tuple[str, str]]:
    """(source, target) of all direct translations of the checkpoints, in short codes."""
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
