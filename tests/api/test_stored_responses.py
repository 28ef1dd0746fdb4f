"""The store of responses: limits of bytes, age and API keys; equal texts are stored once; chains stay complete."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.state import State
from server.api.stored import stored_responses
from server.api.stored.stored_responses import (
    BATCH,
    PART_BYTES,
    RECORD_BYTES,
    Shelf,
    StoredItem,
    StoredResponse,
    StoredResponses,
    shared_part,
)
from server.settings.settings import Settings
from tests.api.conftest import Bench


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def record(name: str, parent: str | None = None, size: int = 10, text: str = "") -> StoredResponse:
    """A record with one input and one output.

    size: additional characters of the input. text: text of the input; by default it differs between records.
    """
    given = StoredItem(f"in_{name}", shared_part({"text": text or name * 3, "more": "x" * size}))
    answer = StoredItem(f"out_{name}", shared_part({"text": f"answer to {name}"}))
    return StoredResponse(
        name, parent, (given,), (answer,), orjson.dumps({"id": name}), {"tools": shared_part(["tool"] * 50)}
    )


def store(max_bytes: int = 1 << 20, ttl_seconds: float = 100, owners: tuple[str, ...] = ("a",)) -> StoredResponses:
    made = StoredResponses(max_bytes, ttl_seconds, Clock())
    made.use_owners(owners)
    return made


def ids(shelf: Shelf, names: str) -> str:
    """The names in `names` whose records are in the shelf. Does not count as a use of the records."""
    return "".join(name for name in names if name in shelf._packed)


def test_a_record_is_found_by_its_owner_only() -> None:
    made = store(owners=("a", "b"))
    assert made.shelf("a").add(record("r"))
    assert made.shelf("a").get("r") == record("r")
    for owner in ("b", "", "nobody"):
        shelf = made.shelf(owner)
        assert shelf.get("r") is None and shelf.chain("r") is None and shelf.find(["r"]) == []
        assert not shelf.delete("r") and not made.shelf("nobody").add(record("x"))
    assert made.shelf("a").delete("r") and made.num_bytes == 0 and not made.shelf("a").delete("r")


def test_a_chain_is_complete_or_not_there() -> None:
    shelf = store().shelf("a")
    for name, parent in (("r", None), ("s", "r"), ("t", "s"), ("u", "s")):
        assert shelf.add(record(name, parent))
    assert [link.id for link in shelf.chain("t")] == ["r", "s", "t"]
    assert shelf.delete("s")
    assert shelf.chain("t") is None and shelf.chain("s") is None and [link.id for link in shelf.chain("r")] == ["r"]
    assert shelf.get("t") is not None, "it can still be read"


def test_equal_parts_of_a_key_are_held_once() -> None:
    """If one API key stores the same text twice, it takes memory once.

    Therefore clients that send the whole conversation with each request need no more memory than clients with chains.
    """
    shelf = store().shelf("a")
    text = "the same text " * 500
    assert shelf.add(record("r", text=text))
    before = shelf.num_bytes
    assert shelf.add(record("s", text=text))
    assert shelf.num_bytes - before < 3000 < len(text)
    assert shelf.get("r").inputs[0].part.data is shelf.get("s").inputs[0].part.data
    shelf.delete("r")
    assert shelf.get("s").inputs[0].part.data == shared_part({"text": text, "more": "x" * 10}).data
    shelf.delete("s")
    assert shelf.num_bytes == 0 and not shelf._texts and not shelf._num_holders


def test_equal_parts_of_two_keys_are_held_twice() -> None:
    """Two API keys do not share stored texts. Otherwise a key could see from its size what another key has stored."""
    made = store(owners=("a", "b"))
    made.shelf("a").add(record("r"))
    alone = made.num_bytes
    made.shelf("b").add(record("r"))
    assert made.num_bytes == 2 * alone


def test_a_full_share_drops_what_was_used_longest_ago() -> None:
    made = store(40_000)
    shelf = made.shelf("a")
    for name in "rst":
        assert shelf.add(record(name, size=10_000))
    assert shelf.get("r") is not None
    assert shelf.add(record("u", size=10_000)) and ids(shelf, "rstu") == "rtu"
    assert made.num_bytes <= 40_000


def test_a_key_never_drops_records_of_another_key() -> None:
    made = store(80_000, owners=("a", "b"))
    assert made.shelf("b").add(record("r", size=10_000))
    for number in range(20):
        assert made.shelf("a").add(record(f"x{number}", size=10_000))
    assert made.shelf("b").get("r") is not None and made.shelf("a").num_bytes <= 40_000


def test_a_record_never_takes_the_place_of_those_that_it_continues() -> None:
    shelf = store(40_000).shelf("a")
    assert shelf.add(record("o", size=5_000)) and shelf.add(record("r", size=10_000))
    assert shelf.add(record("s", "r", size=10_000))
    assert shelf.add(record("t", "s", size=10_000)) and ids(shelf, "orst") == "rst"
    assert not shelf.add(record("u", "t", size=10_000)), "it does not fit beside its own conversation"
    assert [link.id for link in shelf.chain("t")] == ["r", "s", "t"] and shelf.num_bytes <= 40_000
    assert not shelf.add(record("v", size=50_000))


def test_continuing_keeps_the_whole_conversation() -> None:
    shelf = store(45_000).shelf("a")
    for name, parent in (("r", None), ("s", "r"), ("o", None)):
        assert shelf.add(record(name, parent, size=10_000))
    assert shelf.chain("s") is not None
    assert shelf.add(record("p", size=10_000)) and ids(shelf, "rsop") == "rsp"


def test_records_are_dropped_when_their_time_is_over() -> None:
    made = store(ttl_seconds=100)
    shelf, clock = made.shelf("a"), made._clock
    shelf.add(record("r"))
    shelf.add(record("o"))
    clock.seconds = 60
    shelf.add(record("s", "r"))
    clock.seconds = 110
    assert shelf.get("o") is None and [link.id for link in shelf.chain("s")] == ["r", "s"]
    clock.seconds = 209
    assert shelf.find("rs") and not made.tidy() and ids(shelf, "ors") == "rs", "a tidy store has no old ones"
    clock.seconds = 309
    assert shelf.get("s") is None and shelf.chain("s") is None and shelf.find("rs") == [] and not shelf.delete("r")
    assert not made.tidy() and made.num_bytes == 0 and not shelf._packed


def test_tidying_takes_small_steps() -> None:
    made = store(1 << 30, ttl_seconds=100)
    for number in range(BATCH + 1):
        assert made.shelf("a").add(record(str(number)))
    made._clock.seconds = 100
    assert made.tidy() and len(made.shelf("a")._packed) == 1
    assert not made.tidy() and made.num_bytes == 0


def test_a_conversation_has_a_longest_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "MAX_CHAIN", 3)
    shelf = store().shelf("a")
    for name, parent in (("r", None), ("s", "r"), ("t", "s")):
        assert shelf.add(record(name, parent))
    assert not shelf.add(record("u", "t")) and len(shelf.chain("t")) == 3


def test_without_memory_nothing_is_stored() -> None:
    shelf = store(0).shelf("a")
    assert shelf.max_bytes == 0 and not shelf.add(record("r")) and shelf.get("r") is None


def test_owners_that_leave_lose_their_records_and_the_others_their_share() -> None:
    made = store(60_000)
    for name in "rst":
        made.shelf("a").add(record(name, size=10_000))
    made.use_owners(("a", "b"))
    assert not made.tidy() and ids(made.shelf("a"), "rst") == "st" and made.num_bytes <= 30_000
    made.use_owners(("b",))
    assert made.shelf("a").get("t") is None
    assert not made.tidy() and made.num_bytes == 0


@pytest.fixture
def states(tmp_path: Path) -> Callable[..., State]:
    def make(**settings: object) -> State:
        bench = Bench(tmp_path, Settings(**settings))
        bench.runtime.pools.close()
        return bench.state

    return make


def test_each_api_key_is_an_owner(states: Callable[..., State]) -> None:
    state = states(api_keys=["first-key", "second-key"])
    first, second = (state.responses.shelf(state.cache_salt(key)) for key in (b"first-key", b"second-key"))
    assert first.add(record("r")) and second.get("r") is None and state.responses.shelf("").max_bytes == 0
    state.use_keys(Settings(api_keys=["first-key"]).keys())
    assert state.responses.shelf(state.cache_salt(b"first-key")).get("r") is not None
    state.use_keys(Settings(api_keys=["second-key"]).keys())
    assert not state.responses.tidy() and state.responses.num_bytes == 0


def test_without_api_keys_there_is_one_owner(states: Callable[..., State]) -> None:
    state = states(responses_memory="1M")
    assert state.responses.shelf("").add(record("r", size=900_000))
    assert states(responses_memory=0).responses.shelf("").max_bytes == 0


def test_the_counted_memory_is_not_less_than_what_is_used() -> None:
    tracemalloc.start()
    shelf = store(1 << 30).shelf("a")
    before = tracemalloc.get_traced_memory()[0]
    for number in range(500):
        many = tuple(
            StoredItem(f"msg_{number:032x}i{index}", shared_part({"n": number, "i": index})) for index in range(8)
        )
        shelf.add(StoredResponse(f"resp_{number:032x}", None, many, (), json.dumps({"id": number}).encode()))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.5 * shelf.num_bytes < used <= shelf.num_bytes


def test_a_full_store_is_no_work_for_the_garbage_collector() -> None:
    shelf = store(1 << 30).shelf("a")
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        shelf.add(record(str(number)))
    gc.collect()
    assert len(gc.get_objects()) - before < 100


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "chain", "get", "delete", "wait", "resize"]),
        st.integers(0, 12),
        st.integers(0, 12),
        st.integers(0, 4000),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_any_sequence_of_actions_stays_within_the_bounds(actions: list[tuple[str, int, int, int]]) -> None:
    made = store(20_000)
    shelf, clock, limit = made.shelf("a"), made._clock, 20_000
    for step, (action, record_id, other, size) in enumerate(actions):
        if action == "add":
            parent = f"r{other}" if other < record_id else None
            before = shelf.chain(parent) if parent is not None else []
            added = shelf.add(record(f"r{record_id}", parent, size, text=str(size % 3)))
            assert added == (f"r{record_id}" in shelf._packed)
            if before is not None and f"r{record_id}" not in {each.id for each in before}:
                assert parent is None or shelf.chain(parent) == before
        elif action == "chain":
            found = shelf.chain(f"r{record_id}")
            assert found is None or [each.parent_id for each in found] == [None, *(each.id for each in found[:-1])]
        elif action == "get":
            shelf.get(f"r{record_id}")
        elif action == "delete":
            shelf.delete(f"r{record_id}")
        elif action == "resize":
            limit = 5_000 + size * 5
            shelf.max_bytes = limit
            assert not made.tidy()
        else:
            clock.seconds += step * 3
            assert not made.tidy()
        held = Counter(part.digest for name in shelf._packed for part in shelf._unpack(name).parts)
        assert shelf._num_holders == held and shelf._texts.keys() == held.keys()
        assert shelf.num_bytes == sum(RECORD_BYTES + len(packed) for packed in shelf._packed.values()) + sum(
            PART_BYTES + len(text) for text in shelf._texts.values()
        )
        assert shelf.num_bytes <= limit
        assert shelf._used_at.keys() == shelf._parents.keys() == shelf._packed.keys()
        assert [shelf._used_at[each] for each in shelf._packed] == sorted(shelf._used_at.values())
