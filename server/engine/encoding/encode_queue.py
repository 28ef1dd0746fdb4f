"""Queue of the texts to encode. API keys, and the calls of one key, take turns after each text.

A request with many texts therefore does not block a small request.
"""

from __future__ import annotations

from server.engine.scheduling.round_robin import RoundRobinQueue
from server.ipc.wire.encode_messages import Encode, EncodeItem


class EncodeRequest:
    """One `Encode` message in the engine, and its progress.

    key, call_id: API key and call of the request. Keys, and the calls of one key, take turns in the queue.
    adapter: name of the adapter; empty for a request without adapter.
    next_item: index of the first item that still waits in the queue.
    unanswered: number of items that have no result yet.
    """

    def __init__(self, message: Encode, adapter: str = "") -> None:
        self.sequence_id = message.sequence_id
        self.key = message.key
        self.call_id = message.call_id or message.sequence_id
        self.message = message
        self.adapter = adapter
        self.next_item = 0
        self.unanswered = len(message.items)
        self.finished = False

    @property
    def waiting_items(self) -> list[EncodeItem]:
        return self.message.items[self.next_item :]


QueuedItem = tuple[EncodeRequest, int]
"""A request and the index of one of its items."""


class EncodeQueue:
    """Queue of requests with waiting items. num_waiting_tokens: tokens of all waiting items."""

    def __init__(self) -> None:
        self._requests: RoundRobinQueue[EncodeRequest] = RoundRobinQueue()
        self.num_waiting_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: EncodeRequest) -> None:
        self._requests.add(request.key, request.call_id, request)
        self.num_waiting_tokens += sum(item.num_tokens for item in request.waiting_items)

    def remove(self, request: EncodeRequest) -> None:
        """Remove the waiting items of a request, if it has any."""
        if request in self._requests:
            self._requests.remove(request.key, request.call_id, request)
            self.num_waiting_tokens -= sum(item.num_tokens for item in request.waiting_items)

    def take(self, budget: int) -> list[QueuedItem]:
        """Take the items of the next step: at most `budget` tokens, or a single longer item.

        Keys and calls take turns after each item. Returns the items sorted by length, shortest first.
        """
        taken: list[QueuedItem] = []
        while self._requests:
            request = self._requests.next()
            index = request.next_item
            tokens = request.message.items[index].num_tokens
            if taken and tokens > budget:
                break
            taken.append((request, index))
            budget -= tokens
            self.num_waiting_tokens -= tokens
            request.next_item += 1
            self._requests.end_turn(keep=request.next_item < len(request.message.items))
        return sorted(taken, key=lambda item: item[0].message.items[item[1]].num_tokens)
