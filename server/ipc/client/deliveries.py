"""Hands the events of a step to the calls that wait for them, a few calls in each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from server.ipc.client.call import Call

MAX_CALLS = 8
"""Most calls that get their events in one iteration of the event loop. Writing the tokens of four rows takes 0.1 ms."""


class Deliveries:
    """Queue of the calls whose new events were not handed over yet.

    A step may have tokens for hundreds of streams. Answering another request takes several iterations of the event
    loop. Without the limit `MAX_CALLS`, each of these iterations could write to all streams. A call that gets further
    events while it is in the queue receives all its events at once.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Call, None] = OrderedDict()

    def add(self, calls: Iterable[Call], urgent: Iterable[Call]) -> None:
        """Queue calls with new events.

        The first calls get their events at once, the other calls in the next iterations.

        calls: all calls with new events.
        urgent: the calls among them that come before all other calls, even before calls of earlier steps.
        """
        is_first = not self._calls
        for call in calls:
            self._calls[call] = None
        for call in urgent:
            self._calls[call] = None
            self._calls.move_to_end(call, last=False)
        if is_first:
            self._deliver()

    def _deliver(self) -> None:
        for call in list(islice(self._calls, MAX_CALLS)):
            del self._calls[call]
            call.deliver()
        if self._calls:
            asyncio.get_running_loop().call_soon(self._deliver)
