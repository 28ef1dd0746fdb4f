"""Byte-pair merges of the symbols of one word (Sennrich et al. 2016, arXiv:1508.07909).

Used by the tokenizers that are written in Python. All occurrences of the pair with the lowest rank are merged, from
left to right, before the next pair is chosen, as in the published code. A word of n symbols takes O(n log n) time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise


class BytePairs:
    """Merges neighbouring symbols of a word, the pair with the lowest rank first.

    pairs: the pairs of symbols in the order of their ranks. A pair that is listed twice has its last rank.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._pairs = {rank: pair for pair, rank in self._ranks.items()}

    def merge(self, symbols: Sequence[str]) -> list[str]:
        """Return the symbols of a word after all merges. symbols: characters of the word, or longer symbols."""
        parts, size = list(symbols), len(symbols)
        following, previous = [*range(1, size), -1], [-1, *range(size - 1)]
        found = [(self._ranks.get(pair, -1), index) for index, pair in enumerate(pairwise(parts))]
        heap = [entry for entry in found if entry[0] >= 0]
        heapify(heap)
        while heap:
            rank, (first, second) = heap[0][0], self._pairs[heap[0][0]]
            changed = list[int]()
            while heap and heap[0][0] == rank:
                index = heappop(heap)[1]
                after = following[index]
                # An entry is out of date if an earlier merge changed one of its symbols.
                if after < 0 or parts[index] != first or parts[after] != second:
                    continue
                parts[index], parts[after] = first + second, ""
                following[index] = following[after]
                if following[index] >= 0:
                    previous[following[index]] = index
                changed.append(index)
            for index in changed:
                if not parts[index]:
                    continue
                for left in (previous[index], index):
                    right = following[left] if left >= 0 else -1
                    new = self._ranks.get((parts[left], parts[right]), -1) if right >= 0 else -1
                    if new >= 0:
                        heappush(heap, (new, left))
        return [part for part in parts if part]
