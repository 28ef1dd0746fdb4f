"""Find translations that are not in the target language, for example because the model has copied the source."""

from __future__ import annotations

from collections.abc import Sequence

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.runtime import Runtime
from server.operations.translating.segments import Segment
from server.text.languages.detect import DetectionError
from server.text.languages.language_codes import parse_language

MIN_LETTERS = 25
"""Minimum number of letters of a translation that is checked. In shorter ones, such as names, detection often fails."""
MIN_SHARE = 0.8
"""Minimum probability with which another language must be detected for a translation to be marked."""
_CONSIDERED = ("en", "de", "fr", "es", "it", "pt", "ru", "zh")
"""Languages that the detector chooses from, besides the two languages of the request. Together they are few enough for
the detector's precise tables."""


async def mark_wrong_languages(
    runtime: Runtime, call: Call, segments: Sequence[Segment], source: str | None, target: str | None
) -> None:
    """Detect the languages of long enough translations, and set `has_wrong_language` of their segments.

    source, target: codes of the languages; None if unknown. Without a target language that the detector knows, no
    segment is changed.
    Raises InvalidRequest if languages cannot be detected, for example because the package for it is missing.
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
