"""The parts of a request's time, in the response header `Server-Timing`, for requests that ask for them.

`triptych bench --breakdown` reads them. Source: W3C Server Timing, section 2 (durations in milliseconds).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.requests import Request

from server.api.state import arrival
from server.ipc.client.call import Call
from server.operations.stages import STAGES

ASKS = "x-breakdown"
"""Request header that asks for the parts; its value does not matter."""
HEADER = "Server-Timing"


def record_stages(request: Request) -> None:
    """Begin to record the stages of a request that asks for its parts, unless they are recorded already."""
    if ASKS in request.headers and STAGES.get() is None:
        STAGES.set([])


def breakdown_headers(request: Request, call: Call) -> dict[str, str]:
    """The response header with the parts of a request's time; empty if the request does not ask for them.

    Call it when the answer is about to be sent. The parts, in order:
    arrival: receiving, checking and admitting the request.
    tokenize, and other stages of this process: the work of the stage, with the wait for a thread.
    hand_over: until the worker begins the first step with the request.
    step: until the worker has sent the last result. All steps are included.
    hand_back: until this process has read the last result.
    render: until now.
    """
    if ASKS not in request.headers:
        return {}
    parts = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in _parts(arrival(request), call))
    return {HEADER: parts}


def _parts(arrived: float, call: Call) -> Iterator[tuple[str, float]]:
    """Yield the name and the seconds of each part, in order.

    arrived: time of `time.monotonic()` at the request's arrival.
    """
    stages: dict[str, float] = {}
    for name, start, end in STAGES.get() or ():
        stages[name.replace(" ", "_")] = stages.get(name.replace(" ", "_"), 0.0) + end - start
    now = time.monotonic()
    submitted, ended = call.submitted or now, call.ended_at or now
    yield "arrival", submitted - arrived - sum(stages.values())
    yield from stages.items()
    if call.first_step:
        yield "hand_over", call.first_step - submitted
        yield "step", call.last_sent - call.first_step
        yield "hand_back", ended - call.last_sent
        yield "render", now - ended
