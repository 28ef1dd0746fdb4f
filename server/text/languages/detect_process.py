"""The process that detects languages with lingua, separate because lingua would block the server while it loads.

Each line of stdin is a JSON request, each line of stdout its reply: the probability of each language, for each text.
lingua reads the tables of a language when a request first names it, and keeps them for later requests.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import Any

from lingua import Language, LanguageDetector, LanguageDetectorBuilder


@lru_cache(maxsize=64)
def _detector(languages: tuple[str, ...], precise: bool) -> LanguageDetector:
    known = {language.iso_code_639_1.name.lower(): language for language in Language.all()}
    builder = LanguageDetectorBuilder.from_languages(*(known[code] for code in languages))
    return (builder if precise else builder.with_low_accuracy_mode()).build()


def detect(request: dict[str, Any]) -> list[dict[str, float]]:
    """Return the probability of each language, by its code, for each text.

    request: `languages` (at least two ISO 639-1 codes that lingua supports), `precise` (use the large tables) and
        `texts`.
    """
    detector = _detector(tuple(request["languages"]), request["precise"])
    return [
        {
            found.language.iso_code_639_1.name.lower(): found.value
            for found in detector.compute_language_confidence_values(text)
        }
        for text in request["texts"]
    ]


def main() -> None:
    """Print an empty line when ready, then reply to requests until stdin closes."""
    output = sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        output.write(json.dumps(detect(json.loads(line))).encode() + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
