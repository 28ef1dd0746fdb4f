"""Find translations that are not in the target language, such as a source that the model has copied."""

from __future__ import annotations

from collections.abc import Sequence

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.runtime import Runtime
from server.operations.translating.segments import Segment
from server.text.languages.detect import DetectionError
from server.text.languages.language_codes import parse_language

MIN_LETTERS = 25
"""Letters of a sentence whose language is detected. Shorter ones are names and headings, and often wrong."""
MIN_SHARE = 0.8
"""Probability from which another language counts."""
_CONSIDERED = ("en", "de", "fr", "es", "it", "pt", "ru", "zh")
"""Languages besides the two of the request. Together they are few enough for the precise tables of the detector."""


async def mark_wrong_languages(
    runtime: Runtime, call: Call, segments: Sequence[Segment], source: str | None, target: str | None
) -> None:
    """Set `has_wrong_language` of segments, unless the detector does not know the target language.

    Raises InvalidRequest without the package that detects languages.
    """
    wanted = parse_language(target or "")
    own = [segment for segment in segments if segment.answers and _letters(segment.answer(0)) >= MIN_LETTERS]
    if wanted is None or not own:
        return
    codes = dict.fromkeys(language.language for language in (wanted, parse_language(source or "")) if language)
    considered = frozenset((*codes, *_CONSIDERED))
    detector = runtime.language_detector
    if not detector.knows(wanted.language):
        return
    try:
        found = await runtime.pools.detect.run(
            lambda: detector.detect([segment.answer(0) for segment in own], considered, precise=True), call
        )
    except DetectionError as error:
        raise InvalidRequest(f"`quality`: {error}", "quality") from None
    for segment, ranked in zip(own, found, strict=True):
        best = ranked[0] if ranked else None
        segment.has_wrong_language = best is not None and best.language != wanted.language and best.share >= MIN_SHARE


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))
