"""A store of answers and their conversations in the memory of the HTTP process, bounded by bytes, time and API key.

A record holds what one answer adds to a conversation, and the id of the record before it. Equal parts of the records of
a key, such as its tools or a message that a client sends again, are held once. Each key has an equal share of the
memory. A record that does not fit takes the place of the records of the same key that were used longest ago.
The store knows JSON texts and ids, not what they mean. See docs/decisions/0119-stored-responses.md.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

PART_BYTES = 360
"""Memory of one part besides its JSON text: digest, number of holders, and its places in tables."""
RECORD_BYTES = 800
"""Memory of one record besides its packed form: ids, time of its last use, and its places in tables."""
MAX_CHAIN = 2048
"""Records in one conversation. Reading 2,048 of them takes less than 50 ms."""
BATCH = 256
"""Records that `tidy` drops at once, in about a millisecond, so that it never delays requests."""


@dataclass(frozen=True, slots=True)
class SharedPart:
    """A JSON value, held once for all records of an API key that contain it."""

    data: bytes
    digest: bytes


def shared_part(value: Any) -> SharedPart:
    """The part with a JSON value. Equal values give equal texts."""
    data = json_text(value)
    return SharedPart(data, hashlib.blake2b(data, digest_size=32).digest())


def json_text(value: Any) -> bytes:
    """The JSON text of a value, in a copy: the library returns texts in buffers of up to twice their size."""
    return bytes(memoryview(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)))


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item of a conversation: its id, and the object without the id."""

    id: str
    part: SharedPart

    def json(self) -> bytes:
        """The whole object."""
        return b'{"id":' + orjson.dumps(self.id) + (b"," if self.part.data != b"{}" else b"") + self.part.data[1:]


def joined(items: Sequence[StoredItem]) -> bytes:
    """Several items as one JSON list."""
    return b"[" + b",".join(item.json() for item in items) + b"]"


@dataclass(frozen=True)
class StoredResponse:
    """One stored answer.

    parent_id: the record that it continues, or None.
    inputs, outputs: the items that it adds to the conversation.
    head: the other fields of the answer, as a JSON object. shared: fields that records often have in common.
    """

    id: str
    parent_id: str | None
    inputs: tuple[StoredItem, ...]
    outputs: tuple[StoredItem, ...]
    head: bytes
    shared: Mapping[str, SharedPart] = field(default_factory=dict)

    @property
    def items(self) -> tuple[StoredItem, ...]:
        return self.inputs + self.outputs

    @property
    def parts(self) -> list[SharedPart]:
        return [*(item.part for item in self.items), *self.shared.values()]


class StoredResponses:
    """All records. Safe for use by several threads.

    max_bytes: memory of all records together; 0 stores none.
    ttl_seconds: a record is dropped when it was not used for this time.
    clock: seconds that never go back.
    """

    def __init__(self, max_bytes: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.ttl_seconds = ttl_seconds
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._shelves: dict[str, Shelf] = {}
        self._leaving: list[Shelf] = []

    @property
    def num_bytes(self) -> int:
        """Memory of all records, as it is counted."""
        with self._lock:
            return sum(shelf.num_bytes for shelf in (*self._shelves.values(), *self._leaving))

    def use_owners(self, owners: Collection[str]) -> None:
        """Set the owners of records, one for each API key. Nobody finds the records of other owners any more."""
        with self._lock:
            share = self._max_bytes // max(len(owners), 1)
            self._leaving += [shelf for owner, shelf in self._shelves.items() if owner not in owners]
            self._shelves = {owner: self.shelf(owner) for owner in owners}
            for shelf in self._shelves.values():
                shelf.max_bytes = share
            for shelf in self._leaving:
                shelf.max_bytes = 0

    def shelf(self, owner: str) -> Shelf:
        """The records of one owner. An owner that is unknown has none and can add none."""
        with self._lock:
            return self._shelves.get(owner) or Shelf(self._lock, self._clock, self.ttl_seconds)

    def tidy(self) -> bool:
        """Drop some of the records whose time is over, whose owner has left, or that exceed a share that was reduced.

        Returns whether there may be more of them. Must be called now and then, until it returns False.
        """
        with self._lock:
            more = [shelf.tidy() for shelf in (*self._shelves.values(), *self._leaving)]
            self._leaving = [shelf for shelf in self._leaving if shelf.num_bytes]
        return any(more)


_Packed = tuple[list[tuple[str, bytes]], list[tuple[str, bytes]], bytes, dict[str, bytes]]
"""A record without its ids: id and digest of each input and output, the head, and the digests of shared fields."""
_DECODER = msgspec.msgpack.Decoder(_Packed)


class Shelf:
    """The records of one owner, ordered by their last use. Created by `StoredResponses`.

    Its tables contain texts, bytes and numbers only. The garbage collector visits every Python object, and would stop
    the process for a second if a full store consisted of objects.

    max_bytes: memory that the records may take; 0 if none can be added. num_bytes: memory that they take.
    """

    def __init__(self, lock: threading.RLock, now: Callable[[], float], ttl_seconds: float) -> None:
        self.max_bytes = 0
        self.num_bytes = 0
        self._lock = lock
        self._now = now
        self._ttl_seconds = ttl_seconds
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._parents: dict[str, str | None] = {}
        self._used_at: dict[str, float] = {}
        self._texts: dict[bytes, bytes] = {}
        self._num_holders: dict[bytes, int] = {}

    def get(self, record_id: str) -> StoredResponse | None:
        """The record with this id; None if it is not stored. Counts as a use of it and of the records it continues."""
        with self._lock:
            found = self._lineage(record_id)
            self._use(found)
            return self._unpack(record_id) if found else None

    def find(self, record_ids: Iterable[str]) -> list[StoredResponse]:
        """The records with these ids that are still stored. Counts as a use of them."""
        with self._lock:
            found = [record_id for record_id in record_ids if self._is_current(record_id)]
            self._use(found)
            return [self._unpack(found_id) for found_id in found]

    def chain(self, record_id: str) -> list[StoredResponse] | None:
        """All records that a record continues, the oldest first, then the record itself; None if one is not stored."""
        with self._lock:
            found = self._lineage(record_id)
            if not found or self._parents[found[0]] is not None:
                return None
            self._use(found)
            return [self._unpack(found_id) for found_id in found]

    def add(self, record: StoredResponse) -> bool:
        """Store a record. If the records then take more than `max_bytes`, those used longest ago are dropped.

        Returns False for a record that does not fit beside the records that it continues, or that makes a conversation
        longer than `MAX_CHAIN`. It is not stored then.
        """
        with self._lock:
            self._insert(record)
            lineage = self._lineage(record.id)
            self._use(lineage)
            kept = set(lineage)
            while self.num_bytes > self.max_bytes and (oldest := self._oldest(kept)) is not None:
                self._remove(oldest)
            if self.num_bytes > self.max_bytes or len(lineage) > MAX_CHAIN:
                self._remove(record.id)
                return False
            return True

    def delete(self, record_id: str) -> bool:
        """Drop a record. Returns whether it was there."""
        with self._lock:
            return self._is_current(record_id) and self._remove(record_id)

    def tidy(self) -> bool:
        """Drop a batch of records: expired ones, and those beyond `max_bytes`. Returns whether more may be left."""
        with self._lock:
            for _ in range(BATCH):
                oldest = self._oldest(())
                if oldest is None or (self._is_current(oldest) and self.num_bytes <= self.max_bytes):
                    return False
                self._remove(oldest)
            return True

    def _is_current(self, record_id: str) -> bool:
        """Whether a record is there and its time is not over."""
        return self._used_at.get(record_id, -math.inf) > self._now() - self._ttl_seconds

    def _oldest(self, kept: Collection[str]) -> str | None:
        """The record that was used longest ago, apart from those in `kept`."""
        return next((record_id for record_id in self._packed if record_id not in kept), None)

    def _lineage(self, record_id: str | None) -> list[str]:
        """The records that a record continues, then the record itself. Begins after the last one that is not stored."""
        found: list[str] = []
        while record_id is not None and self._is_current(record_id):
            found.append(record_id)
            record_id = self._parents[record_id]
        return found[::-1]

    def _use(self, record_ids: Iterable[str]) -> None:
        now = self._now()
        for record_id in record_ids:
            self._packed.move_to_end(record_id)
            self._used_at[record_id] = now

    def _insert(self, record: StoredResponse) -> None:
        """Add a record. A part that is equal to a stored part is stored once for both."""
        self._remove(record.id)
        for part in record.parts:
            if part.digest not in self._texts:
                self._texts[part.digest] = part.data
                self._num_holders[part.digest] = 0
                self.num_bytes += PART_BYTES + len(part.data)
            self._num_holders[part.digest] += 1
        packed: _Packed = (
            [(item.id, item.part.digest) for item in record.inputs],
            [(item.id, item.part.digest) for item in record.outputs],
            record.head,
            {name: part.digest for name, part in record.shared.items()},
        )
        self._packed[record.id] = msgspec.msgpack.encode(packed)
        self._parents[record.id] = record.parent_id
        self._used_at[record.id] = self._now()
        self.num_bytes += RECORD_BYTES + len(self._packed[record.id])

    def _unpack(self, record_id: str) -> StoredResponse:
        inputs, outputs, head, shared = _DECODER.decode(self._packed[record_id])

        def held(digest: bytes) -> SharedPart:
            return SharedPart(self._texts[digest], digest)

        return StoredResponse(
            record_id,
            self._parents[record_id],
            tuple(StoredItem(item_id, held(digest)) for item_id, digest in inputs),
            tuple(StoredItem(item_id, held(digest)) for item_id, digest in outputs),
            head,
            {name: held(digest) for name, digest in shared.items()},
        )

    def _remove(self, record_id: str) -> bool:
        """Drop a record, and the parts that no other record has. Returns whether the record was stored."""
        packed = self._packed.pop(record_id, None)
        if packed is None:
            return False
        del self._used_at[record_id], self._parents[record_id]
        self.num_bytes -= RECORD_BYTES + len(packed)
        inputs, outputs, _, shared = _DECODER.decode(packed)
        for digest in (*(digest for _, digest in (*inputs, *outputs)), *shared.values()):
            self._num_holders[digest] -= 1
            if not self._num_holders[digest]:
                del self._num_holders[digest]
                self.num_bytes -= PART_BYTES + len(self._texts.pop(digest))
        return True
