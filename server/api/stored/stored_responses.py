"""A store of answers and their conversations in the memory of the HTTP process, bounded by bytes, time and API key.

A record contains the items that one answer adds to a conversation, and the id of the record before it. Equal values in
the records of an API key, such as tools or a repeated message, are stored once. Each key may use an equal part of the
memory. A record that does not fit replaces records of the same key, beginning with the least recently used one.
The store handles JSON texts and ids without interpreting them. See docs/decisions/0119-stored-responses.md.
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
"""Bytes of memory for one `SharedPart` besides its JSON text: digest, reference count, and entries in tables."""
RECORD_BYTES = 800
"""Bytes of memory for one record besides its packed form: ids, time of last use, and entries in tables."""
MAX_CHAIN = 2048
"""Maximum number of records in one conversation. Reading 2,048 records takes less than 50 ms."""
BATCH = 256
"""Maximum number of records that one call of `Shelf.tidy` drops, in about a millisecond, so that no request waits long.
"""


@dataclass(frozen=True, slots=True)
class SharedPart:
    """A JSON value that is stored once for all records of an API key that contain it.

    data: JSON text. digest: 32-byte BLAKE2b hash of the text.
    """

    data: bytes
    digest: bytes


def shared_part(value: Any) -> SharedPart:
    """Create the `SharedPart` of a JSON value. Equal values have equal texts and digests."""
    data = json_text(value)
    return SharedPart(data, hashlib.blake2b(data, digest_size=32).digest())


def json_text(value: Any) -> bytes:
    """The JSON text of a value, with sorted keys. It is copied, because the library's buffer may be twice as large."""
    return bytes(memoryview(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)))


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item of a conversation. id: its id. part: its JSON object without the id."""

    id: str
    part: SharedPart

    def json(self) -> bytes:
        """The JSON text of the item: the id, followed by the members of `part`."""
        return b'{"id":' + orjson.dumps(self.id) + (b"," if self.part.data != b"{}" else b"") + self.part.data[1:]


def joined(items: Sequence[StoredItem]) -> bytes:
    """The JSON text of a list of items."""
    return b"[" + b",".join(item.json() for item in items) + b"]"


@dataclass(frozen=True)
class StoredResponse:
    """A stored answer, which is one record of a conversation.

    parent_id: id of the record that it continues; None for the first record of a conversation.
    inputs, outputs: the items that it adds to the conversation.
    head: JSON text of an object with the other fields of the answer.
    shared: field name to value, for fields that often have the same value in several records.
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
    """The records of all owners (API keys). Safe for use by several threads.

    max_bytes: maximum memory of all records together; 0 stores none.
    ttl_seconds: a record is dropped if it was not used for this time.
    clock: monotonic clock, in seconds.
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
        """Counted memory of all records, in bytes."""
        with self._lock:
            return sum(shelf.num_bytes for shelf in (*self._shelves.values(), *self._leaving))

    def use_owners(self, owners: Collection[str]) -> None:
        """Set the owners of records, one for each API key. Records of other owners become inaccessible, and are dropped
        later by `tidy`."""
        with self._lock:
            share = self._max_bytes // max(len(owners), 1)
            self._leaving += [shelf for owner, shelf in self._shelves.items() if owner not in owners]
            self._shelves = {owner: self.shelf(owner) for owner in owners}
            for shelf in self._shelves.values():
                shelf.max_bytes = share
            for shelf in self._leaving:
                shelf.max_bytes = 0

    def shelf(self, owner: str) -> Shelf:
        """The records of one owner. For an unknown owner, returns an empty shelf that cannot store records."""
        with self._lock:
            return self._shelves.get(owner) or Shelf(self._lock, self._clock, self.ttl_seconds)

    def tidy(self) -> bool:
        """Drop some of the records that are expired, have no owner any more, or exceed their owner's reduced memory.

        Returns whether more such records may exist. It must be called regularly, each time until it returns False.
        """
        with self._lock:
            more = [shelf.tidy() for shelf in (*self._shelves.values(), *self._leaving)]
            self._leaving = [shelf for shelf in self._leaving if shelf.num_bytes]
        return any(more)


_Packed = tuple[list[tuple[str, bytes]], list[tuple[str, bytes]], bytes, dict[str, bytes]]
"""A packed record: id and digest of each input, of each output, the head, and the digests of shared fields by name."""
_DECODER = msgspec.msgpack.Decoder(_Packed)


class Shelf:
    """The records of one owner, ordered by their last use. Created by `StoredResponses`.

    Its tables contain only strings, bytes and numbers, which the garbage collector does not visit. With a full store of
    other objects, a collection would stop the process for a second.

    max_bytes: maximum memory of the records; 0 if none can be added. num_bytes: counted memory of the records.
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
        """The record with this id; None if it is not stored or has expired.

        Counts as a use of the record, and of the records that it continues.
        """
        with self._lock:
            found = self._lineage(record_id)
            self._use(found)
            return self._unpack(record_id) if found else None

    def find(self, record_ids: Iterable[str]) -> list[StoredResponse]:
        """The records with these ids, without missing and expired ones. Counts as a use of these records."""
        with self._lock:
            found = [record_id for record_id in record_ids if self._is_current(record_id)]
            self._use(found)
            return [self._unpack(found_id) for found_id in found]

    def chain(self, record_id: str) -> list[StoredResponse] | None:
        """A record and all records that it continues, the oldest first. None if one of them is not stored.

        Counts as a use of these records.
        """
        with self._lock:
            found = self._lineage(record_id)
            if not found or self._parents[found[0]] is not None:
                return None
            self._use(found)
            return [self._unpack(found_id) for found_id in found]

    def add(self, record: StoredResponse) -> bool:
        """Store a record. If the records then take more than `max_bytes`, the least recently used ones are dropped.

        Returns False, and stores nothing, if the record and those that it continues exceed `max_bytes`, or if the
        conversation would have more than `MAX_CHAIN` records.
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
        """Drop a record. Returns whether it was stored."""
        with self._lock:
            return self._is_current(record_id) and self._remove(record_id)

    def tidy(self) -> bool:
        """Drop up to `BATCH` records: expired ones, and others while `max_bytes` is exceeded.

        Returns whether more such records may be left.
        """
        with self._lock:
            for _ in range(BATCH):
                oldest = self._oldest(())
                if oldest is None or (self._is_current(oldest) and self.num_bytes <= self.max_bytes):
                    return False
                self._remove(oldest)
            return True

    def _is_current(self, record_id: str) -> bool:
        """Whether a record is stored and not expired."""
        return self._used_at.get(record_id, -math.inf) > self._now() - self._ttl_seconds

    def _oldest(self, kept: Collection[str]) -> str | None:
        """Id of the least recently used record that is not in `kept`."""
        return next((record_id for record_id in self._packed if record_id not in kept), None)

    def _lineage(self, record_id: str | None) -> list[str]:
        """Ids of the records that a record continues, the oldest first, then its own id.

        If a record of this chain is not stored or expired, the list begins after it. The list is empty if the record
        itself is not stored.
        """
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
        """Add a record to the tables. A part that is stored already only gets a higher reference count."""
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
        """Drop a record, and its parts that no other record contains. Returns whether the record was stored."""
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
