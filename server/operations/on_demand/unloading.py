"""Choose models whose memory is freed for another model: only their KV caches, or the whole models.

Works on sizes and seconds only: no requests, no clock. See docs/decisions/0151-models-on-demand.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIN_LOAD_SECONDS = 0.1
"""Minimum load time in the score of a model, so that the score of very small models is limited."""
MIN_IDLE_SECONDS = 0.001


@dataclass(frozen=True)
class Resident:
    """A model in memory.

    size_bytes: all of its memory. cache_bytes: the part of its KV caches.
    load_seconds: duration of its load. idle_seconds: time since its last request ended.
    is_running: whether a request uses it or waits for it.
    """

    name: str
    size_bytes: int
    load_seconds: float
    idle_seconds: float
    is_running: bool = False
    cache_bytes: int = 0

    @property
    def score(self) -> float:
        """Preference for unloading the model: higher if it was idle for long, is large, or loads quickly."""
        idle = max(self.idle_seconds, MIN_IDLE_SECONDS)
        return idle * self.size_bytes / max(self.load_seconds, MIN_LOAD_SECONDS)


def whose_caches(residents: Iterable[Resident], lacking_bytes: int) -> list[Resident]:
    """Choose idle models whose KV caches free at least `lacking_bytes`. Models that were idle for longest come first.

    Returns an empty list if the caches of all idle models free too little.
    """
    idle = [resident for resident in residents if resident.cache_bytes and not resident.is_running]
    chosen: list[Resident] = []
    freed = 0
    for resident in sorted(idle, key=lambda model: -model.idle_seconds):
        if freed >= lacking_bytes:
            break
        chosen.append(resident)
        freed += resident.cache_bytes
    return chosen if freed >= lacking_bytes else []


def who_leaves(residents: Iterable[Resident], lacking_bytes: int) -> list[Resident] | None:
    """Choose models to unload that free at least `lacking_bytes`: models without requests first, then by score.

    A chosen model is kept after all if the other chosen models free enough. Returns None if all models together free
    too little.
    """
    leaving: list[Resident] = []
    freed = 0
    for resident in sorted(residents, key=lambda model: (model.is_running, -model.score)):
        if freed >= lacking_bytes:
            break
        leaving.append(resident)
        freed += resident.size_bytes
    if freed < lacking_bytes:
        return None
    for resident in list(leaving):
        if freed - resident.size_bytes >= lacking_bytes:
            leaving.remove(resident)
            freed -= resident.size_bytes
    return leaving
