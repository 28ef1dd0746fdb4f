"""The store of sets of allowed sequences: each API key has an equal share of memory, and sets in use are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.errors import InvalidRequest, NotFound, RequestTooLarge
from server.operations.sequence_sets import MAX_SETS, SequenceSets, StoredSet


class FakeCall:
    """A request in progress."""

    def __init__(self, salt: str = "a") -> None:
        self.cache_salt = salt
        self._callbacks: list[Callable[[], None]] = []

    def check_open(self) -> None:
        pass

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        for callback in self._callbacks:
            callback()


class Bench:
    """A store for two API keys, each with room for 100 nodes."""

    def __init__(self) -> None:
        self.forgotten: list[int] = []
        self.sets = SequenceSets(2 * 9 * 100, self.forgotten.append)
        self.sets.use_owners({"a", "b"})
        self._id = 0

    def put(self, salt: str = "a", name: str = "one", num_nodes: int = 10) -> int:
        self.sets.check_room(salt, name, num_nodes)
        self._id += 1
        self.sets.put(StoredSet(salt, name, "llm", self._id, 2, 4, num_nodes))
        return self._id


def test_a_key_cannot_take_the_room_of_another() -> None:
    bench = Bench()
    bench.put(num_nodes=60)
    bench.put(name="two", num_nodes=40)
    with pytest.raises(RequestTooLarge, match="--allowed-sequences-memory"):
        bench.put(name="three", num_nodes=1)
    bench.put("b", num_nodes=100)
    bench.put(name="two", num_nodes=30)  # the set that it replaces does not count
    bench.put(name="three", num_nodes=10)
    assert [found.name for found in bench.sets.all("a")] == ["one", "three", "two"]
    with pytest.raises(NotFound):
        bench.sets.get("b", "two")
    with pytest.raises(NotFound):
        bench.put("c")


def test_the_number_of_sets_is_limited() -> None:
    bench = Bench()
    for number in range(MAX_SETS):
        bench.sets.put(StoredSet("a", str(number), "llm", number, 1, 1, 0))
    with pytest.raises(RequestTooLarge, match="1,000"):
        bench.put(name="another")
    bench.put(name="7", num_nodes=1)


def test_workers_keep_a_set_until_the_last_request_with_it_ends() -> None:
    bench = Bench()
    first = bench.put()
    calls = [FakeCall(), FakeCall()]
    assert [bench.sets.hold(call, "one", "llm") for call in calls] == [first, first]  # type: ignore[arg-type]
    second = bench.put()
    assert bench.forgotten == [] and bench.sets.hold(calls[0], "one", "llm") == second  # type: ignore[arg-type]
    calls[1].close()
    assert bench.forgotten == []
    calls[0].close()
    assert bench.forgotten == [first]
    bench.sets.delete("a", "one")
    assert bench.forgotten == [first, second]
    with pytest.raises(NotFound):
        bench.sets.delete("a", "one")


def test_a_request_cannot_name_a_set_of_another_key_or_model() -> None:
    bench = Bench()
    bench.put()
    for salt, name, model in (("b", "one", "llm"), ("a", "two", "llm"), ("a", "one", "other")):
        with pytest.raises(InvalidRequest) as error:
            bench.sets.hold(FakeCall(salt), name, model)  # type: ignore[arg-type]
        assert error.value.param == "allowed_sequences"


def test_the_sets_of_a_key_that_is_no_longer_valid_are_dropped() -> None:
    bench = Bench()
    dropped, kept = bench.put(), bench.put("b")
    bench.sets.use_owners({"b"})
    assert bench.forgotten == [dropped] and bench.sets.get("b", "one").set_id == kept
