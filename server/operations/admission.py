"""Admit or refuse requests by their cost, before any of their work is done.

The cost of an admitted request is reserved until its call closes. The limits bound the memory of this process: all
requests in progress together may need `memory_bytes`, as estimated by `server.operations.cost`. A request that needs
more than that alone is refused as too large. A request that does not fit beside the requests in progress is refused
immediately, with the time after which to retry. A recording waits until other requests end instead (`admit_in_turn`).
A request's own reservations never cause its refusal. An idle server therefore admits every request that is not too
large, unless the API key has used up its requests or tokens of the minute (`server.limits.key_rates`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from server.errors import Overloaded, RequestTooLarge, StartError
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
"""Upper limit of the default memory for requests. The process then stays below 1 GB, also with one long text in the
tokenizer and one recording."""
_MIN_MEMORY_BYTES = 64 << 20
_MEMORY_SHARE = 16
"""Divisor of the machine's memory for the default memory for requests."""
PROCESS_BYTES = 640 << 20
"""Memory that the HTTP process needs besides the memory reserved for requests: 150 MiB of code, one long text in the
tokenizer (370 MiB), and the stacks of its threads."""
_MODEL_SHARE = 0.75
"""Fraction of the memory limit and of the request limit that requests for one model may take, if there are several."""


def default_memory_bytes(machine_bytes: int) -> int:
    """Default memory, in bytes, for all requests in progress on a machine with this memory."""
    return min(max(machine_bytes // _MEMORY_SHARE, _MIN_MEMORY_BYTES), DEFAULT_MEMORY_BYTES)


def memory_within(limit_bytes: int, stated_bytes: int | None, default_bytes: int) -> int:
    """Memory, in bytes, for all requests in progress in a process that may allocate `limit_bytes` more.

    It must never run out, because libraries in C++ and Rust end the process when an allocation fails.

    stated_bytes: value of `--max-request-memory`; None if it is not set.
    default_bytes: memory for requests if the limit of the process allows it.
    Raises StartError if `limit_bytes` is too small.
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
    """The part of `ServedModel` that admission uses."""

    @property
    def name(self) -> str: ...


@dataclass
class _Reserved:
    """Total of the amounts that are reserved: by one call, for one model, by one API key, or in the whole server."""

    requests: int = 0
    tokens: int = 0
    memory_bytes: int = 0

    def add(self, requests: int, tokens: int, memory_bytes: int) -> None:
        self.requests += requests
        self.tokens += tokens
        self.memory_bytes += memory_bytes


@dataclass
class _Reservation(_Reserved):
    """The amounts that are reserved for one call. `requests` is 1 if anything is reserved, otherwise 0."""

    model: str = ""
    key: str | None = None
    prompt_tokens: int = 0
    """Prompt tokens that were counted against the API key's limit of tokens per minute."""


@dataclass
class Admission:
    """Reserves the cost of requests.

    memory_bytes: limit on the memory of all requests in progress together, and therefore of one request.
    max_requests: maximum number of requests in progress.
    models: number of models and adapters at the start, loaded or declared. If there are several, one of them may take
        only a part of both limits.
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
        """Reserve memory and tokens for a call until it ends. If it is called several times, the largest cost counts.

        param: the request's field that causes most of the cost, for errors.

        Raises:
            RequestTooLarge: the request exceeds the limits even alone, or exceeds those of its API key.
            Overloaded: other requests in progress have reserved too much, or the key has used its rate per minute.
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
        """Reserve the cost of a call as `admit` does, but wait for memory that other requests have reserved.

        The call must have reserved nothing before, so that no two calls wait for each other.

        Raises:
            DeadlineExceeded: a time limit of the call has passed.
            RequestTooLarge, ClientGone: for the reasons of `admit`.
            Overloaded: a limit other than memory is exceeded.
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
        """Reserve further memory for an admitted call whose result grows. Does nothing for a closed call.

        memory_bytes: memory to add to the reservation.
        what: name of the part of the answer that needs the memory, for errors.
        param: the request's field that asks for it, for errors.

        Raises:
            RequestTooLarge: the call alone exceeds the memory for requests, or that of its API key.
            Overloaded: other requests in progress have reserved too much.
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
        """Add tokens and memory to the reservation of a call. Its limits must have been checked before."""
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
                f"the API key has no {exceeded.unit} left",
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
        """Raise RequestTooLarge for a request that needs more memory than the limit, even alone.

        param: the request's field that causes most of the cost, for errors.
        """
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
        """Raise Overloaded if too little memory is left, in total or for the request's model.

        If there are several models, the requests of one model may take only a part of the memory. This does not apply
        to a model's only request. A new request is also refused if its model has too many requests in progress.

        held: the reservation of the request. memory: bytes that the request needs in addition.
        param: the request's field that needs the memory, for errors; None for a new request.
        """
        of_model, share = self._by_model.get(held.model, _Reserved()), int(self.memory_bytes * _MODEL_SHARE)
        total = REQUEST_MEMORY.refusal(_mebibytes(self.memory_bytes))
        checks = [("the requests in progress", self.total, self.memory_bytes, total)]
        is_shared = self.models > 1 and of_model.requests > held.requests
        if is_shared:
            refusal = MODEL_MEMORY.refusal(f"{_mebibytes(share)} for each model")
            checks.append((f'the requests for "{held.model}"', of_model, share, refusal))
        for requests, reserved, limit, refusal in checks:
            lacking = reserved.memory_bytes + memory - limit
            if lacking > 0:
                state = f"{requests} may need {_mebibytes(reserved.memory_bytes)} of memory"
                state += f", and this one {_mebibytes(memory)} more"
                raise Overloaded(state, refusal, self._rate.seconds_until(lacking), param)
        if is_shared and not held.requests:
            self.check_share(held.model)

    def check_share(self, model: str, waiting: int = 0) -> None:
        """Raise Overloaded if a model has its maximum of requests in progress. Does nothing if it is the only model.

        waiting: number of further requests for the model that have arrived and are not admitted yet.
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

    def _check_key(self, call: Call, held: _Reservation, tokens: int, memory: int, param: str) -> None:
        """Check the limits of the call's API key for requests, tokens and memory.

        held: the reservation of the call. tokens, memory: tokens and bytes that the call needs in addition.
        Raises RequestTooLarge if the call alone exceeds a limit, and Overloaded if all calls of the key together exceed
        it.
        """
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
            state = f"the API key has {used:,} {unit} in progress, and this request adds {more:,}"
            raise Overloaded(state, limit_of_key.refusal(f"{limit:,.0f}"), self._rate.seconds_until(memory))


def _mebibytes(size: int) -> str:
    """A size in MiB, with one digit after the point below 10 MiB."""
    digits = 1 if size < 10 << 20 else 0
    return f"{size / 2**20:,.{digits}f} MiB"
