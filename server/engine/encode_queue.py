"""Texts waiting for an encoder. Requests take turns text by text, so that a large list never blocks a small one."""

from __future__ import annotations

from collections import deque

from server.ipc.messages import Encode, EncodeItem


class EncodeRequest:
    """One `Encode`: which of its texts wait, and how many answers it still owes. adapter: as in `sequence.Request`."""

    def __init__(self, message: Encode, adapter: str = "") -> None:
        self.request_id = message.request_id
        self.message = message
        self.adapter = adapter
        self.next_item = 0
        self.unanswered = len(message.items)
        self.finished = False

    @property
    def waiting_items(self) -> list[EncodeItem]:
        return self.message.items[self.next_item :]


Text = tuple[EncodeRequest, int]
"""A request and the index of one of its items."""


class EncodeQueue:
    """Requests in the order of their turns."""

    def __init__(self) -> None:
        self._turns: deque[EncodeRequest] = deque()
        self.num_waiting_tokens = 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, request: EncodeRequest) -> None:
        self._turns.append(request)
        self.num_waiting_tokens += sum(item.num_tokens for item in request.waiting_items)

    def remove(self, request: EncodeRequest) -> None:
        """Forget what of a request still waits; nothing happens if nothing does."""
        if request in self._turns:
            self._turns.remove(request)
            self.num_waiting_tokens -= sum(item.num_tokens for item in request.waiting_items)

    def take(self, budget: int) -> list[Text]:
        """The texts of the next step, shortest first: at most `budget` tokens, or one text that is longer."""
        taken: list[Text] = []
        while self._turns:
            request = self._turns[0]
            index = request.next_item
            tokens = request.message.items[index].num_tokens
            if taken and tokens > budget:
                break
            taken.append((request, index))
            budget -= tokens
            self.num_waiting_tokens -= tokens
            request.next_item += 1
            self._turns.popleft()
            if request.next_item < len(request.message.items):
                self._turns.append(request)
        return sorted(taken, key=lambda text: text[0].message.items[text[1]].num_tokens)
