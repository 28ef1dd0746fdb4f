"""Queues in which calls take turns, so that a call with many items does not hold up a call with one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from server.engine.sequences.sequence import SequenceGroup

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Items by call. The calls take turns in the order of their arrival; the items of a call keep their order."""

    def __init__(self) -> None:
        self._calls: OrderedDict[int, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        for items in self._calls.values():
            yield from items

    def add(self, call_id: int, item: Item) -> None:
        self._calls.setdefault(call_id, deque()).append(item)
        self._length += 1

    def next(self) -> Item:
        """The first item of the call whose turn it is."""
        return next(iter(self._calls.values()))[0]

    def end_turn(self, keep: bool = False) -> None:
        """End the turn of the current call. keep: its first item stays in the queue, for the next turn of the call."""
        call_id, items = self._calls.popitem(last=False)
        if not keep:
            items.popleft()
            self._length -= 1
        if items:
            self._calls[call_id] = items

    def remove(self, call_id: int, item: Item) -> None:
        """Remove an item. Raises ValueError or KeyError for one that is not in the queue."""
        items = self._calls[call_id]
        items.remove(item)
        self._length -= 1
        if not items:
            del self._calls[call_id]


class WaitingGroups:
    """Sequence groups that wait: first those that ran before, then new ones, whose calls take turns."""

    def __init__(self) -> None:
        self._resumed: deque[SequenceGroup] = deque()
        self._new: Turns[SequenceGroup] = Turns()

    def __len__(self) -> int:
        return len(self._resumed) + len(self._new)

    def __iter__(self) -> Iterator[SequenceGroup]:
        yield from self._resumed
        yield from self._new

    def add(self, group: SequenceGroup) -> None:
        self._new.add(group.call_id, group)

    def resume_first(self, group: SequenceGroup) -> None:
        """Queue a group that was preempted before all others."""
        self._resumed.appendleft(group)

    def next(self) -> SequenceGroup:
        return self._resumed[0] if self._resumed else self._new.next()

    def pop(self) -> None:
        """Remove the group that `next` returns."""
        if self._resumed:
            self._resumed.popleft()
        else:
            self._new.end_turn()

    def remove(self, group: SequenceGroup) -> None:
        if group in self._resumed:
            self._resumed.remove(group)
        else:
            self._new.remove(group.call_id, group)
