"""Detect the language of a text, among the languages that the loaded models read.

The library lingua runs in a separate process (`detect_process`), which starts with the first text. Its precise tables
take about 22 MB per language, so callers use them for up to `PRECISE_LANGUAGES` languages. For more languages, tables
of trigrams are used, about 60 MB for all languages together. If the likeliest language is then a common one, the
precise tables decide between the common languages.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from server.errors import NotReady
from server.system.line_process import LineProcess
from server.text.languages.frequent_words import word_weights
from server.text.languages.language_codes import parse_language

PRECISE_LANGUAGES = 10
COMMON_LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "tr")
"""Common languages in Latin script. Precise tables decide between them, because trigrams do not suffice for that.

By trigrams alone, "The garden is small." is German.
"""
_FREQUENT = frozenset((*COMMON_LANGUAGES, "ru"))
_PRIOR = 6.0
"""Factor by which the probability of a frequent language is multiplied.

It decides short texts, whose trigrams fit rare languages as well: by trigrams alone, "Le chien court." is Basque.
"""
MAX_CHARACTERS = 2000
"""Number of characters at the beginning of a text by which its language is detected."""
_SECONDS = 60.0
_PROCESS_FILE = Path(__file__).with_name("detect_process.py")
_LINGUA_TEXT = """
af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gu he hi hr hu hy id is it ja ka kk ko la lg lt lv
mi mk mn mr ms nb nl nn pa pl pt ro ru sk sl sn so sq sr st sv sw ta te th tl tn tr ts uk ur vi xh yo zh zu
"""
_LINGUA = _LINGUA_TEXT.split()
_BY_LANGUAGE: dict[str, list[str]] = {}
for _code in _LINGUA:
    _parsed = parse_language(_code)
    _BY_LANGUAGE.setdefault(_parsed.language if _parsed else _code, []).append(_code)


class DetectionError(ValueError):
    """Languages cannot be detected. The message says why, and what to install if something is missing."""


@dataclass(frozen=True)
class DetectedLanguage:
    """A language that a text may be in.

    language: ISO 639-1 code. share: probability from 0 to 1, among the languages that were considered.
    """

    language: str
    share: float


class LanguageDetector:
    """Detects languages. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = LineProcess(_PROCESS_FILE)

    def detect(
        self, texts: Sequence[str], languages: Iterable[str] | None, precise: bool
    ) -> list[list[DetectedLanguage]]:
        """Return the languages that each text may be in, most likely first; empty for a text without letters.

        languages: ISO 639-1 codes to choose from; None for all languages that can be detected. A single code is the
            answer for every text with letters.
        precise: use the large tables for all languages.
        Raises DetectionError if fewer than two of `languages` can be detected, if lingua is not installed, or if
        detection takes too long, and NotReady if the process does not reply.
        """
        chosen = sorted(set(languages)) if languages is not None else sorted(_BY_LANGUAGE)
        known = [code for code in chosen if code in _BY_LANGUAGE]
        if len(chosen) == 1:
            return [[DetectedLanguage(chosen[0], 1.0)] if _has_letters(text) else [] for text in texts]
        if not known:
            raise DetectionError("no language that the loaded models translate from can be detected")
        if len(known) == 1:
            raise DetectionError(f"{known[0]} is the only language of the loaded models that can be detected")
        if find_spec("lingua") is None:
            raise DetectionError(
                "detection needs the package lingua-language-detector (pip install 'triptych[detect]')"
            )
        found = self._ask(texts, known, precise)
        if precise:
            return found
        found = [_with_prior(ranked) for ranked in found]
        common = [code for code in known if code in COMMON_LANGUAGES]
        places = [place for place, ranked in enumerate(found) if ranked and ranked[0].language in common]
        if len(common) > 1 and places:
            told = self._ask([texts[place] for place in places], common, precise=True)
            for place, precisely in zip(places, told, strict=True):
                found[place] = _combined(found[place], precisely)
        return found

    def _ask(self, texts: Sequence[str], languages: Sequence[str], precise: bool) -> list[list[DetectedLanguage]]:
        codes = [code for language in languages for code in _BY_LANGUAGE[language]]
        request = {"languages": codes, "precise": precise, "texts": [text[:MAX_CHARACTERS] for text in texts]}
        with self._lock:
            try:
                line = self._process.exchange(json.dumps(request).encode() + b"\n", _SECONDS)
            except TimeoutError as error:
                raise NotReady(f"the process that detects languages {error}; try again", retry_after=1) from None
        if not line:
            raise DetectionError(f"the process that detects languages was stopped: it took more than {_SECONDS:g} s")
        return [_ranked(word_weights(text, shares)) for text, shares in zip(texts, json.loads(line), strict=True)]

    def knows(self, language: str) -> bool:
        """Whether a language can be detected. language: ISO 639-1 code."""
        return language in _BY_LANGUAGE

    def close(self) -> None:
        """Stop the process if it is running."""
        with self._lock:
            self._process.stop()


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in text[:MAX_CHARACTERS])


def _with_prior(ranked: Sequence[DetectedLanguage]) -> list[DetectedLanguage]:
    weights = {own.language: own.share * (_PRIOR if own.language in _FREQUENT else 1.0) for own in ranked}
    total = sum(weights.values())
    weighted = [DetectedLanguage(language, weight / total) for language, weight in weights.items()]
    return sorted(weighted, key=lambda own: -own.share)


def _combined(ranked: Sequence[DetectedLanguage], precisely: Sequence[DetectedLanguage]) -> list[DetectedLanguage]:
    """Return the shares of all languages. The precise tables decide how the common languages divide their total share.

    ranked: shares of all languages, by trigrams. precisely: shares of the common languages, by the precise tables.
    """
    known = {detected.language: detected.share for detected in precisely}
    total = sum(detected.share for detected in ranked if detected.language in COMMON_LANGUAGES)
    others = [detected for detected in ranked if detected.language not in COMMON_LANGUAGES]
    divided = [DetectedLanguage(language, share * total) for language, share in known.items()]
    return sorted([*divided, *others], key=lambda detected: -detected.share)


def _ranked(shares: dict[str, float]) -> list[DetectedLanguage]:
    """Return languages by falling share. shares: by the codes of lingua.

    The shares of codes that `parse_language` takes for one language are added: Bokmål (`nb`) counts as `no`.
    """
    found: dict[str, float] = {}
    for code, share in shares.items():
        parsed = parse_language(code)
        language = parsed.language if parsed else code
        found[language] = found.get(language, 0.0) + share
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return [DetectedLanguage(language, share) for language, share in ranked if share > 0]
