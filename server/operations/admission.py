"""Admission of requests by their cost, before any of their work is done.

The cost of an admitted request is reserved until its call closes. The limits bound the memory of this process: one
request, and all requests in progress together, may need `memory_bytes`, as estimated by `server.operations.cost`. A
request that could never fit is refused as too large. A request that does not fit beside the others in progress is
refused immediately, with the time after which to retry. A recording waits for their end instead (`admit_in_turn`).
What a request has reserved itself is never a reason for a refusal: on an idle server, a request is admitted or too
large, unless its API key has used its requests or tokens of the minute (`server.limits.key_rates`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from server.errors import Overloaded, Refusal, RequestTooLarge, StartError
from server.ipc.client.call import Call
from server.ipc.client.release_rate import ReleaseRate
from server.limits.key_rates import KeyRates
from server.limits.refusals import (
    KEY_MEMORY,
    KEY_REQUESTS,
    KEY_TOKENS,
    MODEL_MEMORY,
    MODEL_REQUESTS,
    REQUEST_MEMORY,
)
from server.operations.cost import LOG_PROBABILITIES, Cost
from server.operations.waiting import Waiting

DEFAULT_MEMORY_BYTES = 384 << 20
"""With the process itself, one long text in the tokenizer and one recording, this stays below 1 GB."""
_MIN_MEMORY_BYTES = 64 << 20
_MEMORY_SHARE = 16
"""Requests may need the memory of the machine divided by this number: 1/16."""
PROCESS_BYTES = 640 << 20
"""Memory of the HTTP process besides the requests' own: 150 MiB of code, one long text in the tokenizer (370 MiB), and
the stacks of its threads."""
_MODEL_SHARE = 0.75
"""Requests for one of several models may take this part of the memory and of the requests."""


def default_memory_bytes(machine_bytes: int) -> int:
    """Memory for the requests in progress on a machine with this memory."""
    return min(max(machine_bytes // _MEMORY_SHARE, _MIN_MEMORY_BYTES), DEFAULT_MEMORY_BYTES)


def memory_within(limit_bytes: int, stated_bytes: int | None, default_bytes: int) -> int:
    """Memory for the requests in progress in a process that may allocate `limit_bytes` more.

    stated_bytes: what `--max-request-memory` says; None if it is left out.
    Raises StartError if too little is left. Libraries in C++ and Rust end the process when they get no memory, so it
    must not run out.
    """
    least = stated_bytes or _MIN_MEMORY_BYTES
    if least + PROCESS_BYTES > limit_bytes:
        advice = "" if stated_bytes is None else ", or lower --max-request-memory"
        raise StartError(
            f"the limits of the process (ulimit -d, -v) leave {limit_bytes >> 20:,} MiB, and the server needs "
            f"{least + PROCESS_BYTES >> 20:,} MiB with {least >> 20:,} MiB for requests; raise the limits{advice}"
        )
    return stated_bytes or min(default_bytes, limit_bytes - PROCESS_BYTES)


class AdmittedModel(Protocol):
    """The part of a served model that admission uses."""

    @property
    def name(self) -> str: ...


@dataclass
class _Reserved:
    """Amounts that are reserved for one call, one model, one key, or the whole server."""

    requests: int = 0
    tokens: int = 0
    memory_bytes: int = 0

    def add(self, requests: int, tokens: int, memory_bytes: int) -> None:
        self.requests += requests
        self.tokens += tokens
        self.memory_bytes += memory_bytes


@dataclass
class _Reservation(_Reserved):
    """The amounts that are reserved for one call. requests: 1 as soon as anything is reserved, else 0."""

    model: str = ""
    key: str | None = None
    prompt_tokens: int = 0
    """Tokens that were taken from the tokens a minute of the key."""


@dataclass
class Admission:
    """Reserves the cost of requests.

    memory_bytes: limit on the memory that one request, and all requests in progress, may need.
    max_requests: maximum number of requests in progress.
    models: number of loaded models. Several models share both limits so that none takes all.
    """

    memory_bytes: int = DEFAULT_MEMORY_BYTES
    max_requests: int = 512
    models: int = 1
    total: _Reserved = field(default_factory=_Reserved)
    _by_model: dict[str, _Reserved] = field(default_factory=dict)
    _by_key: dict[str, _Reserved] = field(default_factory=dict)
    _calls: dict[Call, _Reservation] = field(default_factory=dict)
    _rate: ReleaseRate = field(default_factory=ReleaseRate)
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    rates: KeyRates = field(default_factory=KeyRates)

    def admit(self, call: Call, model: AdmittedModel, cost: Cost, param: str = "inputs") -> None:
        """Reserve memory and tokens for a call until it ends. Of several costs of a call, the largest is reserved.

        param: the field that causes most of the cost, which errors name.

        Raises:
            RequestTooLarge: the request could not run even alone, or the limits of its key never allow it.
            Overloaded: the other requests in progress leave no room.
            ClientGone: the client has disconnected.
        """
        call.check_open()
        held = self._calls.get(call) or _Reservation(model=model.name, key=call.key.name if call.key else None)
        more_tokens = max(cost.input_tokens + cost.new_tokens - held.tokens, 0)
        more_memory = max(cost.memory_bytes - held.memory_bytes, 0)
        self.check_size(cost, param)
        self._check_key(call, held, more_tokens, more_memory, param)
        self._check_room(held, more_memory)
        self._take_from_rates(call, held, cost.input_tokens)
        if call not in self._calls:
            self._calls[call] = held
            call.on_close(lambda: self._release(call))
        self._add(held, more_tokens, more_memory)

    async def admit_in_turn(self, call: Call, model: AdmittedModel, cost: Cost, param: str) -> None:
        """The same as `admit`, except that the call waits for memory that other requests have reserved.

        A call that waits must have reserved nothing, so that no two calls wait for each other.

        Raises:
            DeadlineExceeded: a time limit of the call has passed. And the errors of `admit`, for other limits.
        """
        while True:
            try:
                return self.admit(call, model, cost, param)
            except Overloaded as error:
                if error.refusal.reason not in (REQUEST_MEMORY.reason, MODEL_MEMORY.reason):
                    raise
            released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(released)
            await Waiting(released, call, call.limits, "memory was needed").result()

    def extend(self, call: Call, memory_bytes: int, what: str, param: str) -> None:
        """Reserve further memory for an admitted call, whose result grows. A closed call reserves nothing.

        what: name of what needs the memory, for errors. param: the field that asks for it.

        Raises:
            RequestTooLarge: the call alone needs more than requests may, or than the limits of its key allow.
            Overloaded: the other requests in progress leave no room.
        """
        held = self._calls.get(call)
        if held is None:
            return
        own = held.memory_bytes + memory_bytes
        of_key = call.key.max_cost if call.key is not None else None
        limit = None
        if own > self.memory_bytes:
            limit = f"{self.memory_bytes / 2**20:,.0f} MiB (--max-request-memory)"
        elif of_key is not None and own > of_key:
            limit = f"the {of_key:,.0f} bytes of memory that its API key allows"
        if limit is not None:
            raise RequestTooLarge(
                f"`{param}` makes the answer too large: with its {what} the request needs more than {limit}; "
                "ask for fewer tokens",
                param,
            )
        self._check_key(call, held, 0, memory_bytes, param)
        self._check_room(held, memory_bytes, param)
        self._add(held, 0, memory_bytes)

    def _add(self, held: _Reservation, tokens: int, memory_bytes: int) -> None:
        """Reserve more for a call that was checked."""
        for reserved in self._reserved(held):
            reserved.add(1 - held.requests, tokens, memory_bytes)
        held.add(1 - held.requests, tokens, memory_bytes)

    def _take_from_rates(self, call: Call, held: _Reservation, prompt_tokens: int) -> None:
        """Count a request and its prompt tokens against the limits per minute of its API key. Raises Overloaded."""
        key = call.key
        if key is None:
            return
        requests, tokens = 1 - held.requests, max(prompt_tokens - held.prompt_tokens, 0)
        exceeded = self.rates.exceeded(key, requests, tokens)
        if exceeded is not None:
            raise Overloaded(
                f"the API key has used its {exceeded.unit} of this minute",
                exceeded.limit.refusal(f"{exceeded.most:,} {exceeded.unit} a minute"),
                max(math.ceil(exceeded.seconds), 1),
            )
        self.rates.take(key, requests, tokens)
        held.prompt_tokens += tokens

    def _reserved(self, held: _Reservation) -> list[_Reserved]:
        found = [self.total, self._by_model.setdefault(held.model, _Reserved())]
        if held.key is not None:
            found.append(self._by_key.setdefault(held.key, _Reserved()))
        return found

    def _release(self, call: Call) -> None:
        held = self._calls.pop(call)
        if call.key is not None:
            self.rates.take(call.key, 0, call.prompt_tokens + call.completion_tokens - held.prompt_tokens)
        for reserved in self._reserved(held):
            reserved.add(-held.requests, -held.tokens, -held.memory_bytes)
        for table, name in ((self._by_model, held.model), (self._by_key, held.key)):
            if name is not None and not table[name].requests:
                del table[name]
        self._rate.add(held.memory_bytes)
        while self._waiting:
            released = self._waiting.popleft()
            if not released.done():
                released.set_result(None)

    def check_size(self, cost: Cost, param: str) -> None:
        """Raise RequestTooLarge for a request that could not run even alone. param: as for `admit`."""
        if cost.memory_bytes <= self.memory_bytes:
            return
        measure, count, each = max(cost.measures(), key=lambda part: part[1] * part[2])
        if measure == LOG_PROBABILITIES and cost.scored_param:
            param = cost.scored_param
        raise RequestTooLarge(
            f"`{param}` makes the request too large: up to {count:,} {measure}. It would need "
            f"{cost.memory_bytes / 2**20:,.0f} MiB, and the limit is {self.memory_bytes / 2**20:,.0f} MiB "
            f"(--max-request-memory), about {self.memory_bytes // each:,} {measure}",
            param,
        )

    def _check_room(self, held: _Reservation, memory: int, param: str | None = None) -> None:
        """Raise Overloaded if too little memory for requests is left, in total or for the model of the request.

        With several models, the requests of one model may take a share of the memory. The only request of a model may
        take more than the share.

        held: the reservation of the request. memory: bytes that the request needs in addition.
        param: the field that needs more memory during a request, for errors.
        """
        limit = self.memory_bytes
        if self.total.memory_bytes + memory > limit:
            refusal = REQUEST_MEMORY.refusal(_mebibytes(limit))
            lacking = self.total.memory_bytes + memory - limit
            raise self._overloaded("the requests in progress need all memory for requests", refusal, lacking, param)
        of_model = self._by_model.get(held.model, _Reserved())
        if self.models == 1 or of_model.requests == held.requests:
            return
        share = int(limit * _MODEL_SHARE)
        if of_model.memory_bytes + memory > share:
            refusal = MODEL_MEMORY.refusal(f"{_mebibytes(share)} for each model")
            state = f'the requests in progress for "{held.model}" need all memory of one model'
            raise self._overloaded(state, refusal, of_model.memory_bytes + memory - share, param)
        if not held.requests:
            self.check_share(held.model)

    def check_share(self, model: str, waiting: int = 0) -> None:
        """Raise Overloaded if one of several models has as many requests in progress as one of them may have.

        waiting: further requests for the model, which have arrived and are not admitted yet.
        """
        of_model = self._by_model.get(model, _Reserved())
        requests = of_model.requests + waiting
        most = max(int(self.max_requests * _MODEL_SHARE), 1)
        if self.models == 1 or requests < most:
            return
        raise Overloaded(
            f'{requests:,} requests for "{model}" are in progress',
            MODEL_REQUESTS.refusal(f"{most:,} for each model"),
            self._rate.seconds_until(of_model.memory_bytes // max(of_model.requests, 1)),
        )

    def _overloaded(self, state: str, refusal: Refusal, lacking_bytes: int, param: str | None) -> Overloaded:
        return Overloaded(state, refusal, self._rate.seconds_until(lacking_bytes), param)

    def _check_key(self, call: Call, held: _Reservation, tokens: int, memory: int, param: str) -> None:
        """Check the limits of the API key of a call. held, memory: as for `_check_room`. tokens: as `memory`."""
        key = call.key
        if key is None:
            return
        of_key = self._by_key.get(key.name, _Reserved())
        parts = (
            (KEY_REQUESTS, "requests", 1 - held.requests, held.requests, of_key.requests, key.max_requests),
            (KEY_TOKENS, "tokens", tokens, held.tokens, of_key.tokens, key.max_tokens),
            (KEY_MEMORY, "bytes of memory", memory, held.memory_bytes, of_key.memory_bytes, key.max_cost),
        )
        for limit_of_key, unit, more, own, used, limit in parts:
            if limit is None or not more or used + more <= limit:
                continue
            if own + more > limit:
                raise RequestTooLarge(
                    f"`{param}` makes the request too large for the API key: up to {own + more:,} {unit}; its limit is "
                    f"{limit:,.0f}",
                    param,
                )
            raise Overloaded(
                f"the API key has {used:,} {unit} in progress",
                limit_of_key.refusal(f"{limit:,.0f}"),
                self._rate.seconds_until(memory),
            )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
