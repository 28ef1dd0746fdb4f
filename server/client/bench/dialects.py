"""The routes that `triptych bench` can measure: how a request is made, and how tokens are found in its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server.client.bench.load import Clock, Job, Sample
from server.client.connection import Connection, StreamEvent
from server.client.errors import RequestFailed, Unreachable
from server.client.records import is_cut


@dataclass(frozen=True)
class Measured:
    """A route that `triptych bench` can measure.

    path: path of the route.
    body: returns the JSON body of a request, from its prompt and maximum number of tokens.
    streams: whether the answer is a stream of events.
    """

    path: str
    body: Callable[[Job], dict[str, Any]]
    streams: bool = True


_STREAM = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
"""Fields of a request to OpenAI's routes. With temperature 0, the answers have the same lengths in each run."""

ROUTES: dict[tuple[str, str], Measured] = {
    ("openai", "generate"): Measured(
        "/v1/completions", lambda job: {"prompt": job.prompt, "max_tokens": job.max_tokens, **_STREAM}
    ),
    ("openai", "chat"): Measured(
        "/v1/chat/completions",
        lambda job: {"messages": [{"role": "user", "content": job.prompt}], "max_tokens": job.max_tokens, **_STREAM},
    ),
    ("openai", "embed"): Measured("/v1/embeddings", lambda job: {"input": job.prompt}, streams=False),
    ("native", "generate"): Measured(
        "/generate", lambda job: {"prompt": job.prompt, "max_new_tokens": job.max_tokens, "stream": True}
    ),
    ("native", "translate"): Measured(
        "/translate", lambda job: {"inputs": job.prompt, "max_new_tokens": job.max_tokens, "stream": True}
    ),
    ("native", "embed"): Measured("/embed", lambda job: {"inputs": job.prompt}, streams=False),
    ("native", "classify"): Measured("/classify", lambda job: {"inputs": job.prompt}, streams=False),
}
"""Routes, by (dialect, task)."""


async def measure(
    connection: Connection,
    route: Measured,
    job: Job,
    due: float,
    more: dict[str, Any],
    clock: Clock,
    breakdown: bool = False,
) -> Sample:
    """Send one request, and record when the parts of its answer arrive. Errors are recorded, not raised.

    due: time at which the request should be sent. more: fields to add to the request.
    breakdown: ask for the parts of its time; the answer is then no stream.
    """
    streams, body = route.streams and not breakdown, route.body(job) | more
    if breakdown:
        body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    sample = Sample(due, clock.now())
    received: list[tuple[float, StreamEvent]] = []
    answer: Any = None
    try:
        if streams:
            async for event in connection.events(route.path, body):
                received.append((clock.now(), event))
        else:
            found = await connection.post(route.path, body, breakdown)
            answer, sample.parts = found.value, found.parts
    except RequestFailed as error:
        sample.error = "broken stream" if error.status == 200 else f"HTTP {error.status}"
        sample.message = str(error)
    except Unreachable as error:
        sample.error = "timeout" if error.timed_out else "connection"
    sample.ended = clock.now()
    # Events are parsed after the last one, so that the measured times contain no parsing.
    if sample.error is None:
        if streams:
            _read_events(sample, received)
        else:
            _read_usage(sample, answer.get("usage") if isinstance(answer, dict) else None)
    return sample


def _read_events(sample: Sample, received: Sequence[tuple[float, StreamEvent]]) -> None:
    """Fill a sample from the events of an answer, from OpenAI's routes or Triptych's.

    received: (time of arrival, event) of each event, in order.
    """
    complete = False
    for seconds, event in received:
        if event.data == "[DONE]":
            complete = True
            continue
        data = json.loads(event.data)
        if event.name == "error" or "error" in data:
            sample.error = "error event"
            return
        if event.name == "done" and is_cut(data):
            sample.error = "timeout"
            return
        complete = complete or event.name == "done"
        _read_usage(sample, data.get("usage"))
        if event.name == "token" or any(
            _has_text(choice) for choice in data.get("choices") or () if event.name != "done"
        ):
            sample.times.append(seconds)
    if not complete:
        sample.error = "broken stream"


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether a choice in a chunk of OpenAI's streams has tokens. The first and the last chunk of a chat have none."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


def _read_usage(sample: Sample, usage: Any) -> None:
    if isinstance(usage, dict):
        sample.prompt_tokens = usage.get("prompt_tokens", sample.prompt_tokens)
        sample.completion_tokens = usage.get("completion_tokens", sample.completion_tokens)
        details = usage.get("prompt_tokens_details")
        sample.cached_tokens = (details if isinstance(details, dict) else usage).get(
            "cached_tokens", sample.cached_tokens
        )
