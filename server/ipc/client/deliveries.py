"""Hands the events of a step to the calls that wait for them, a few calls in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from server.ipc.client.call import Call

MAX_CALLS = 8
"""Calls that get their events in one turn of the event loop. Writing the tokens of four rows takes about 0.1 ms."""


class Deliveries:
    """Calls whose new events were not handed over yet.

    A step may have tokens for hundreds of streams. Other requests need several turns of the event loop until they are
    answered. Without the limit, each of these turns could write to all of the streams. A call that gets further events
    before its turn receives all of them at once.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Call, None] = OrderedDict()

    def add(self, calls: Iterable[Call], urgent: Iterable[Call]) -> None:
        """Hand over the events of the first calls now, and those of the other calls in the next turns.

        urgent: the calls that come before all others, also before calls of earlier steps.
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
