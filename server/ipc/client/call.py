"""The engine work of one HTTP request: submission, events, and every way to end the work early.

A `Call` is created when the request arrives, before its text is tokenized. Sequences are submitted through the call,
and it receives their events. All cancellation passes through this class: the client disconnected (`leave`), a stop
string was found (`stop`), a time limit passed (timer), or the request handler ended (`close`). Imports no HTTP and no
text code.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Protocol

from server.errors import (
    ClientGone,
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    NotReady,
    RequestError,
    RequestTooLarge,
)
from server.ipc.wire.encode_messages import Encode, Encoded
from server.ipc.wire.generate_messages import Finished, Generate, PromptScored, Tokens
from server.ipc.wire.step_messages import Failed, FailureCode
from server.ipc.wire.time_limits import LimitTimer, TimeLimit, TimeLimits
from server.limits.key_limits import KeyLimits
from server.system.loop_iterations import next_iteration

log = logging.getLogger("triptych.client")

DEADLINE_SLACK_SECONDS = 1.0
"""Seconds after a deadline at which the call ends its sequences with a failure, if the worker has not ended them."""

MAX_ENDED_AT_ONCE = 128
"""Sequences that a time limit ends immediately. Calls with more take turns, because their limits may pass together."""

SequenceEvent = PromptScored | Tokens | Finished | Encoded | Failed
EventSink = Callable[[list[tuple[int, SequenceEvent]]], bool]
"""Function that receives new events of a call: a list of (sequence index, event).

Returns whether it can take more now.
"""


class SequenceClient(Protocol):
    """The methods of `EngineClient` that a call uses.

    sequence_id: in all methods, the id of a sequence in the messages to the worker.
    """

    def submit(self, call: Call, message: Generate | Encode) -> list[int]: ...

    def next_id(self) -> int: ...

    def is_sent(self, sequence_id: int) -> bool: ...

    def last_computed(self, sequence_ids: Iterable[int]) -> float: ...

    def withdraw(self, call: Call) -> None: ...

    def abort(self, sequence_id: int) -> None: ...

    def abort_all(self, sequence_ids: Sequence[int]) -> None: ...

    def cancelled(self, sequence_ids: Collection[int]) -> None: ...

    def completed(self, sequence_id: int) -> None: ...


class Call:
    """The sequences of one HTTP request. Leaving the `with` block aborts all unfinished sequences.

    Events are read with `events`, or passed on by `forward`, which needs no iteration of the event loop per step.

    client: sends sequences to the worker.
    deadline: time of `time.monotonic()` at which sequences finish with reason `timeout`; None for no time limit.
    arrival: time of `time.monotonic()` at which the request arrived.
    cache_salt: separates the prefix cache entries of different API keys.
    key: name and limits of the request's API key; None if the server requires no key.
    queue_seconds: longest wait, from now on, until the engine computes the first row; None for no limit.
    limits: the time limits, from `deadline` and `queue_seconds`.
    awaits_models: whether sequences wait if no worker has their model now, because it is loaded on demand. The registry
        of models sets it.
    truncated_inputs: indices, in the request, of the inputs that lost tokens. The operation sets them.
    ignored: names of the parameters that the client sent and the server ignored.
    submitted: time of `time.monotonic()` of the last `submit`.
    model, prompt_tokens, completion_tokens: model and token counts of all messages so far, for the log.
    ended_at: time of `time.monotonic()` at which the last sequence ended; 0 before any has ended.
    first_step, last_sent: times of `time.monotonic()` at which the worker began the first step with a sequence, and
        sent the result of the last one; 0 before that.
    stage_seconds: seconds that the last ended sequence spent in the queue, in prefill and in decoding; None unless it
        ended with `Finished`.
    encoded: whether the last ended sequence ended with `Encoded`.
    finish_reasons: one for each hypothesis of a `Finished`, and one for each sequence that ended at a stop string.
    failure: code of the last failure; empty if there was none.
    """

    def __init__(
        self,
        client: SequenceClient,
        deadline: float | None = None,
        arrival: float = 0.0,
        cache_salt: str = "",
        key: KeyLimits | None = None,
        queue_seconds: float | None = None,
    ) -> None:
        self.limits = TimeLimits(deadline, queue_seconds, others_progressed=self._others_progressed)
        self.arrival = arrival
        self.cache_salt = cache_salt
        self.key = key
        self.submitted = 0.0
        self.model = ""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.awaits_models = False
        self.truncated_inputs: Sequence[int] = ()
        self.ignored: list[str] = []
        self.ended_at = 0.0
        self.first_step = self.last_sent = 0.0
        self.stage_seconds: tuple[float, float, float] | None = None
        self.encoded = False
        self.finish_reasons: list[str] = []
        self.failure = ""
        self._client = client
        self._ids: list[int] = []
        self._open: set[int] = set()
        self._computing: set[int] = set()
        self._events: list[tuple[int, SequenceEvent]] = []
        self._sink: EventSink | None = None
        self._wake: asyncio.Future[bool] | None = None
        self._gone = False
        self._expiring: asyncio.Task[None] | None = None
        self._timer = LimitTimer(self.limits, self._expire, DEADLINE_SLACK_SECONDS)
        self._close_callbacks: dict[Callable[[], None], None] = {}

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def gone(self) -> bool:
        """Whether the client has disconnected."""
        return self._gone

    def check_open(self) -> None:
        """Raise ClientGone if the client has disconnected."""
        if self._gone:
            raise ClientGone("the client closed the connection")

    def check_time(self) -> None:
        """Raise the error of the first time limit that has passed (DeadlineExceeded or EngineFailure), if any."""
        limit = self.limits.passed()
        if limit is not None:
            raise error_of(limit.code, limit.message)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Run a callback once, when the call closes. Adding the same callback again has no effect."""
        self._close_callbacks[callback] = None

    def off_close(self, callback: Callable[[], None]) -> None:
        """Forget a callback of `on_close`."""
        self._close_callbacks.pop(callback, None)

    def ignore(self, names: Iterable[str]) -> None:
        """Record parameters that the client sent and the server ignores, for the headers of the answer.

        names: built from field names of this server and indices, never from keys that the client chose.
        """
        self.ignored += names

    def next_id(self) -> int:
        """A new id for a sequence."""
        return self._client.next_id()

    def submit(self, message: Generate | Encode) -> None:
        """Admit a message and send it. A large message is sent in parts.

        The events of a row have the index of the row; the events of an `Encode` have index 0.

        Earlier sequences of this call must have ended.
        Raises ClientGone if the client has disconnected, NotReady if no worker has the model and the call does not wait
        for one, RequestTooLarge if a sequence can never fit, and Overloaded if the queue is full.
        """
        assert not self._open, "a call runs one message at a time"
        self.check_open()
        self.submitted = time.monotonic()
        self._ids = self._client.submit(self, message)
        self.model = message.model
        self.prompt_tokens += message.num_tokens
        self._open = set(self._ids)
        self.limits.is_idle = not self._open
        if self.limits.progressed is not None:
            self.limits.progressed = self.submitted
        self._timer.start()

    async def events(self) -> list[tuple[int, SequenceEvent]]:
        """All events since the last call, as (sequence index, event). Empty when all sequences have ended.

        Waits until there is an event. A slow reader receives more events at once.
        Raises ClientGone if the client has disconnected.
        """
        while not self._events and self._open and not self._gone:
            await self._wait()
        return self._take_events()

    async def forward(self, sink: EventSink) -> bool:
        """Pass the events to `sink` until it can take no more, or all sequences have ended.

        Later events go to `sink` directly from `deliver`, without an iteration of the event loop.
        Returns True if `sink` has returned False, and False if all sequences have ended.
        Raises ClientGone if the client has disconnected, and the errors of `sink`.
        """
        while True:
            events = self._take_events()
            if events:
                if not sink(events):
                    return True
            elif not self._open:
                return False
            else:
                self._sink = sink
                try:
                    if not await self._wait():
                        return True
                finally:
                    self._sink = None

    def deliver(self) -> None:
        """Hand the events added with `put` to the waiting reader. Without a reader, the events are kept."""
        if self._wake is None or self._wake.done():
            return
        if self._sink is None or not self._events or self._gone:
            self._wake.set_result(True)
            return
        try:
            more = self._sink(self._take_events())
        except Exception as error:
            self._wake.set_exception(error)
            return
        if not (more and self._open):
            self._wake.set_result(more)

    def progressed(self, now: float) -> None:
        """Record that the engine has computed something for the request. now: seconds of `time.monotonic()`."""
        self.limits.progressed = now
        if not self._timer.is_running and self._open:
            self._timer.start()

    def stepped(self, began: float, sent: float) -> None:
        """Record that a step has computed a part of the request. began, sent: fields of the `StepOutput`."""
        self.first_step, self.last_sent = self.first_step or began, sent

    def computing(self, sequence_id: int) -> None:
        """Record that a step computes a sequence now. The caller calls `progressed` after it."""
        if sequence_id in self._open:
            self._computing.add(sequence_id)

    def waiting(self, sequence_id: int) -> None:
        """Record that no step computes a sequence now, because an `Encode` has further texts or its worker was lost."""
        self._computing.discard(sequence_id)

    def stop(self, index: int) -> None:
        """End one sequence because a stop string was found in its text. index: index of the sequence in the call."""
        if self._ids[index] in self._open:
            self.finish_reasons.append("stop")
        self._client.completed(self._ids[index])
        self._abort(self._ids[index])

    def abandon(self, index: int) -> None:
        """End one sequence whose result is not needed any more. index: index of the sequence in the call.

        A sequence that was not sent to a worker yet is still sent, and runs to its end.
        """
        if self._client.is_sent(self._ids[index]):
            self._abort(self._ids[index])

    def leave(self) -> None:
        """Abort all sequences because the client has disconnected. The reader of events then raises ClientGone."""
        self._gone = True
        self._client.cancelled(self._open)
        self.close()
        self.deliver()

    def close(self) -> None:
        """Abort all unfinished sequences and run the callbacks of `on_close`. May be called more than once."""
        self._timer.stop()
        self._abort_all()
        callbacks, self._close_callbacks = self._close_callbacks, {}
        for callback in callbacks:
            callback()

    def fail(self, code: FailureCode, message: str) -> None:
        """End every open sequence with a `Failed` event, and tell the workers to drop the sequences."""
        for index, sequence_id in enumerate(self._ids):
            if sequence_id in self._open:
                self.failure = code
                self.put(index, Failed(sequence_id, code, message))
        self._abort_all()
        self.deliver()

    def put(self, index: int, event: SequenceEvent) -> None:
        """Add an event of the sequence with this index. `deliver` passes the event on."""
        self._events.append((index, event))

    def ended(self, sequence_id: int, event: Finished | Encoded | Failed) -> None:
        """Record that a worker has ended a sequence with an event."""
        self._close_row(sequence_id)
        self.ended_at = time.monotonic()
        self.encoded = isinstance(event, Encoded)
        self.stage_seconds = None
        if isinstance(event, Finished):
            self.stage_seconds = event.queue_seconds, event.prefill_seconds, event.decode_seconds
            self.finish_reasons += [hypothesis.finish_reason for hypothesis in event.hypotheses]
        elif isinstance(event, Failed):
            self.failure = event.code

    def _abort_all(self) -> None:
        """Abort all unfinished sequences, and forget those that were not sent."""
        self._client.withdraw(self)
        ended, self._open, self._computing = self._open, set(), set()
        self.limits.is_idle = True
        self._client.abort_all(sorted(ended))

    def _abort(self, sequence_id: int) -> None:
        if sequence_id in self._open:
            self._close_row(sequence_id)
            self._client.abort(sequence_id)

    def _close_row(self, sequence_id: int) -> None:
        self._open.discard(sequence_id)
        self._computing.discard(sequence_id)
        self.limits.is_idle = not self._open

    def _others_progressed(self) -> float | None:
        """Time at which the engine last computed something for any request, if all open sequences wait; else None."""
        is_waiting = self._open and not self._computing
        return self._client.last_computed(self._open) if is_waiting else None

    def _expire(self, limit: TimeLimit) -> None:
        if len(self._open) <= MAX_ENDED_AT_ONCE:
            self._end_by(limit)
        else:
            self._expiring = asyncio.create_task(self._end_in_turn(limit), name="time limit")

    async def _end_in_turn(self, limit: TimeLimit) -> None:
        """Wait for an iteration of the event loop with time left, and then end all sequences because of `limit`.

        Used for calls with many sequences.
        """
        await next_iteration()
        self._end_by(limit)

    def _end_by(self, limit: TimeLimit) -> None:
        if self._open and limit.code == "engine_error":
            log.error("a request to %s failed: %s", self.model, limit.message)
        self.fail(limit.code, limit.message)

    def _take_events(self) -> list[tuple[int, SequenceEvent]]:
        self.check_open()
        events, self._events = self._events, []
        return events

    async def _wait(self) -> bool:
        """Wait until there are new events, or all sequences have ended.

        Returns False if the sink cannot take more events now.
        """
        self._wake = asyncio.get_running_loop().create_future()
        try:
            return await self._wake
        finally:
            self._wake = None


def request_error(event: Failed) -> RequestError:
    """The error that the client receives when a sequence has failed."""
    return error_of(event.code, event.message)


def error_of(code: FailureCode, message: str) -> RequestError:
    """The error that the client receives for a failure. message: text for the client."""
    if code == "timeout":
        return DeadlineExceeded(message)
    if code == "request_too_large":
        return RequestTooLarge(message)
    if code == "not_ready":
        return NotReady(message, retry_after=2)
    if code == "invalid_format":
        return InvalidRequest(message, "response_format")
    return EngineFailure(message)
