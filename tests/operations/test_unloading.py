"""Models on demand: the choice of the models that are unloaded, and of the KV caches that are given back."""

from __future__ import annotations

from server.operations.on_demand.unloading import Resident, who_leaves, whose_caches


def _resident(name: str, size: int, idle: float = 1.0, load: float = 1.0, running: bool = False) -> Resident:
    return Resident(name, size, load, idle, running)


def test_who_leaves():
    old, large, slow = _resident("old", 1, idle=100), _resident("large", 50), _resident("slow", 50, load=50)
    running = _resident("running", 100, idle=1000, running=True)
    assert [one.name for one in who_leaves([large, old, slow, running], 1)] == ["old"]
    assert [one.name for one in who_leaves([large, old, slow, running], 50)] == ["large"], "old is not needed then"
    assert [one.name for one in who_leaves([large, slow, running], 60)] == ["large", "slow"]
    assert [one.name for one in who_leaves([large, old, slow, running], 150)][-1] == "running"
    assert who_leaves([large], 51) is None
    assert who_leaves([], 0) == []


def test_whose_caches():
    old, new = Resident("old", 9, 1.0, 10.0, cache_bytes=2), Resident("new", 9, 1.0, 1.0, cache_bytes=2)
    busy = Resident("busy", 9, 1.0, 100.0, is_running=True, cache_bytes=9)
    encoder = Resident("encoder", 9, 1.0, 100.0)
    assert [one.name for one in whose_caches([new, busy, encoder, old], 1)] == ["old"]
    assert [one.name for one in whose_caches([new, busy, encoder, old], 4)] == ["old", "new"]
    assert whose_caches([new, busy, encoder, old], 5) == [], "then models leave"
