"""Log-probabilities that are packed, sent in messages and cut into slices are unpacked to the same values."""

from __future__ import annotations

import msgspec
import pytest

from server.ipc.wire.logprobs import Logprobs, PackedLogprobs, TokenLogprob, pack

ENTRIES = [TokenLogprob(index, -0.5 * index, [(index + 1, -0.25), (index + 2, -1.0)]) for index in range(5)]


def test_entries_survive_a_message() -> None:
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(ENTRIES)), type=PackedLogprobs)
    assert (packed.width, len(packed), len(packed.token_ids), len(packed.values)) == (3, 5, 60, 60)
    assert list(packed) == list(Logprobs(packed)) == ENTRIES


def test_a_growing_list_reads_like_a_list() -> None:
    logprobs = Logprobs(ENTRIES[:2])
    logprobs.extend(pack(ENTRIES[2:4]))
    logprobs.extend(Logprobs(ENTRIES[4:]))
    assert (len(logprobs), logprobs.num_values) == (5, 15)
    assert logprobs[1] == ENTRIES[1] and logprobs[-1] == ENTRIES[-1]
    assert list(logprobs[1:3]) == ENTRIES[1:3] and list(logprobs[3:1]) == []
    assert list(logprobs.own()) == [entry.logprob for entry in ENTRIES]
    assert logprobs == Logprobs(ENTRIES) != Logprobs(ENTRIES[1:])
    with pytest.raises(IndexError):
        logprobs[5]


def test_nothing_packs_to_nothing() -> None:
    assert not Logprobs() and not pack([]) and list(Logprobs(pack([]))) == []


def test_entries_of_another_width_are_our_bug() -> None:
    with pytest.raises(AssertionError):
        Logprobs(ENTRIES).extend([TokenLogprob(1, 0.0)])
