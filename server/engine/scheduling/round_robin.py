"""Queues in which API keys, and then calls, take turns. A call with many items does not delay a call with few items."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from server.engine.sequences.sequence import SequenceGroup

Name = TypeVar("Name", str, int)
Item = TypeVar("Item")


class RoundRobinQueue(Generic[Item]):
    """Queue of items in which API keys take turns, and within a key its calls.

    The key with the fewest running rows comes first, and of its calls the one with the fewest running rows. Keys with
    equally many rows take turns, and so do calls of a key. A key is an opaque text that stands for the API key of a
    call (`Generate.key`).

    rows_by_key, rows_by_call: number of running rows; a key or call that is missing has none. Without these arguments,
        all keys and calls are equal.
    """

    def __init__(
        self, rows_by_key: Mapping[str, int] | None = None, rows_by_call: Mapping[int, int] | None = None
    ) -> None:
        self._keys: OrderedDict[str, OrderedDict[int, deque[Item]]] = OrderedDict()
        self._rows_by_key = {} if rows_by_key is None else rows_by_key
        self._rows_by_call = {} if rows_by_call is None else rows_by_call
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        for calls in self._keys.values():
            for items in calls.values():
                yield from items

    def add(self, key: str, call_id: int, item: Item) -> None:
        self._keys.setdefault(key, OrderedDict()).setdefault(call_id, deque()).append(item)
        self._length += 1

    def add_first(self, key: str, call_id: int, item: Item) -> None:
        """Queue an item before all others of its call.

        The call then comes before all other calls of its key that have as many rows, and the key before all other keys
        that have as many rows.
        """
        calls = self._keys.setdefault(key, OrderedDict())
        calls.setdefault(call_id, deque()).appendleft(item)
        calls.move_to_end(call_id, last=False)
        self._keys.move_to_end(key, last=False)
        self._length += 1

    def next(self) -> Item:
        """The first item of the call whose turn it is. The item stays in the queue, which must not be empty."""
        key, call_id = self._turn()
        return self._keys[key][call_id][0]

    def heads(self) -> list[Item]:
        """The first item of every call, sorted by running rows: keys with few rows first, then calls with few rows."""
        keys = sorted(self._keys, key=lambda key: self._rows_by_key.get(key, 0))
        return [
            self._keys[key][call_id][0]
            for key in keys
            for call_id in sorted(self._keys[key], key=lambda call_id: self._rows_by_call.get(call_id, 0))
        ]

    def end_turn(self, keep: bool = False) -> None:
        """End the turn of the current call, and remove its first item.

        The call then comes after all calls of its key with equally many running rows, and the key after all keys with
        equally many.

        keep: True to leave the first item in the queue, for the next turn of the call.
        """
        key, call_id = self._turn()
        if not keep:
            self.remove(key, call_id, self._keys[key][call_id][0])
        self._come_last(key, call_id)

    def take(self, key: str, call_id: int, item: Item) -> None:
        """Remove an item.

        Its call then comes after all calls of its key with equally many running rows, and the key after all keys with
        equally many.
        """
        self.remove(key, call_id, item)
        self._come_last(key, call_id)

    def _come_last(self, key: str, call_id: int) -> None:
        if call_id in self._keys.get(key, {}):
            self._keys[key].move_to_end(call_id)
        if key in self._keys:
            self._keys.move_to_end(key)

    def _turn(self) -> tuple[str, int]:
        key = _fewest(self._keys, self._rows_by_key)
        return key, _fewest(self._keys[key], self._rows_by_call)

    def remove(self, key: str, call_id: int, item: Item) -> None:
        """Remove an item. Raises ValueError or KeyError if the item is not in the queue."""
        calls = self._keys[key]
        calls[call_id].remove(item)
        self._length -= 1
        if not calls[call_id]:
            del calls[call_id]
        if not calls:
            del self._keys[key]


def _fewest(names: Iterable[Name], rows: Mapping[Name, int]) -> Name:
    """The name with the fewest rows; the first one if several have equally few. There must be at least one name."""
    best, least = None, 0
    for name in names:
        count = rows.get(name, 0)
        if not count:
            return name
        if best is None or count < least:
            best, least = name, count
    assert best is not None, "the queue is empty"
    return best


class RunningRows:
    """Counts the rows of running groups: by key, by call, and in total. num_short: number of short running groups."""

    def __init__(self) -> None:
        self.by_key: Counter[str] = Counter()
        self.by_call: Counter[int] = Counter()
        self.total = 0
        self.num_short = 0

    def add(self, group: SequenceGroup) -> None:
        self._count(group, group.max_rows)
        self.num_short += group.is_short

    def remove(self, group: SequenceGroup) -> None:
        self._count(group, -group.max_rows)
        self.num_short -= group.is_short

    def _count(self, group: SequenceGroup, rows: int) -> None:
        self.total += rows
        self.by_key[group.key] += rows
        self.by_call[group.call_id] += rows
        if not self.by_key[group.key]:
            del self.by_key[group.key]
        if not self.by_call[group.call_id]:
            del self.by_call[group.call_id]


class WaitingGroups:
    """Sequence groups that wait. Preempted groups come before the other groups of their call.

    Short groups come before all other groups while fewer than `max_short` short groups run. Otherwise they come last.

    rows: numbers of rows of the running groups.
    """

    def __init__(self, rows: RunningRows, max_short: int = 1) -> None:
        self._rows = rows
        self._max_short = max_short
        self._short: RoundRobinQueue[SequenceGroup] = RoundRobinQueue(rows.by_key, rows.by_call)
        self._others: RoundRobinQueue[SequenceGroup] = RoundRobinQueue(rows.by_key, rows.by_call)

    def __len__(self) -> int:
        return len(self._short) + len(self._others)

    def __iter__(self) -> Iterator[SequenceGroup]:
        yield from self._short
        yield from self._others

    def add(self, group: SequenceGroup) -> None:
        self._round_robin(group).add(group.key, group.call_id, group)

    def resume_first(self, group: SequenceGroup) -> None:
        """Queue a preempted group before all other groups of its call.

        The call then comes before all other calls of its key that have as many rows, and the key before all other keys
        that have as many rows.
        """
        self._round_robin(group).add_first(group.key, group.call_id, group)

    def next(self) -> SequenceGroup:
        prefers_short = self._short and self._rows.num_short < self._max_short
        return (self._short if prefers_short or not self._others else self._others).next()

    def heads(self) -> list[SequenceGroup]:
        """The next group of every call, in the order in which `next` would choose them."""
        short, left = self._short.heads(), self._short_left
        return [*short[:left], *self._others.heads(), *short[left:]]

    def short_heads(self) -> list[SequenceGroup]:
        """The next short group of each call: at most as many groups as may start before all other groups."""
        return self._short.heads()[: self._short_left] if self._short else []

    @property
    def only_short(self) -> bool:
        """Whether all waiting and running groups are short."""
        return not len(self._others) and self._rows.num_short >= self._rows.total

    @property
    def _short_left(self) -> int:
        """Number of short groups that may start before all other groups."""
        return max(self._max_short - self._rows.num_short, 0)

    def take(self, group: SequenceGroup) -> None:
        """Remove a group that starts.

        Its call then comes after all calls of its key with equally many running rows, and the key after all keys with
        equally many.
        """
        self._round_robin(group).take(group.key, group.call_id, group)

    def remove(self, group: SequenceGroup) -> None:
        self._round_robin(group).remove(group.key, group.call_id, group)

    def _round_robin(self, group: SequenceGroup) -> RoundRobinQueue[SequenceGroup]:
        return self._short if group.is_short else self._others
