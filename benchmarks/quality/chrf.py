"""chrF: F-score of character n-grams between a translation and its reference.

Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", with n up to 6, beta 2, and without
white space, over a whole corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

ORDER, BETA = 6, 2.0


def chrf(pairs: Iterable[tuple[str, str]]) -> float:
    """The chrF score of a corpus, from 0 to 100. pairs: translation and reference of each sentence."""
    matched, found, expected = [0] * ORDER, [0] * ORDER, [0] * ORDER
    for translation, reference in pairs:
        for order in range(ORDER):
            ours, theirs = _ngrams(translation, order + 1), _ngrams(reference, order + 1)
            matched[order] += (ours & theirs).total()
            found[order] += ours.total()
            expected[order] += theirs.total()
    orders = [order for order in range(ORDER) if found[order] and expected[order]]
    if not orders:
        return 0.0
    precision = sum(matched[order] / found[order] for order in orders) / len(orders)
    recall = sum(matched[order] / expected[order] for order in orders) / len(orders)
    if not precision + recall:
        return 0.0
    return 100 * (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def _ngrams(text: str, length: int) -> Counter[str]:
    characters = "".join(text.split())
    return Counter(characters[start : start + length] for start in range(len(characters) - length + 1))
