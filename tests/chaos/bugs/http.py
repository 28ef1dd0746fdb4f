"""Planted bugs in the HTTP process. The docstring of each function says what goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from tests.chaos.bugs.registry import bug, replace


def _replace_imported(name: str, new: Any) -> None:
    """Replace a function in every module of the product that contains it as `name`."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("server", "weights", "models") and name in vars(module):
            replace(module, name, new)


def _without_limits(*names: str) -> None:
    """Set limits of the worker supervisor to infinity. Raises AttributeError for a limit that does not exist."""
    from server.ipc.workers.supervisor import SupervisorLimits

    def initialize(self: Any, *rest: Any, **named: Any) -> None:
        old(self, *rest, **named)
        for name in names:
            object.__setattr__(self, name, type(getattr(self, name))(10**9))

    for name in names:
        if name not in SupervisorLimits.__dataclass_fields__:
            raise AttributeError(f"the supervisor has no limit {name}")
    old = replace(SupervisorLimits, "__init__", initialize)


@bug("http")
def lost_worker_tells_nobody() -> None:
    """Open streams are not ended when their worker dies."""
    from server.ipc.client.client import EngineClient

    def forget(self: Any, epoch: int, message: str) -> None:
        self._dispatcher.workers.pop(epoch, None)

    replace(EngineClient, "_leave", forget)


@bug("http")
def late_events_are_taken() -> None:
    """Late events of a dead worker are given to requests that meanwhile run on another worker."""
    import msgspec

    from server.ipc.client.client import EngineClient

    def take(self: Any, output: Any) -> None:
        for worker in list(self._dispatcher.workers.values()):
            old(self, msgspec.structs.replace(output, epoch=worker.epoch))

    old = replace(EngineClient, "on_output", take)


@bug("http")
def a_dying_supervisor_tells_nobody() -> None:
    """If a worker supervisor fails, its worker stays dead and the server continues without it."""
    from server.ipc.workers.worker_pool import WorkerPool

    replace(WorkerPool, "_on_end", lambda self, supervisor, task: None)


@bug("http")
def pauses_do_not_grow() -> None:
    """A worker that becomes ready resets the count of failures, even if it fails again at once."""
    from server.ipc.workers.restart_policy import RestartPolicy

    def failed(self: Any, ready_seconds: float | None) -> None:
        old(self, None if ready_seconds is None else 1e9)

    old = replace(RestartPolicy, "failed", failed)


@bug("http")
def lost_requests_are_repeated_without_end() -> None:
    """A request is repeated on another worker each time its worker dies, even if the client already has some events."""
    from server.ipc.client.client import EngineClient

    def leave(self: Any, epoch: int, message: str) -> None:
        for sequence in self._sequences.by_id.values():
            sequence.was_moved = False
            sequence.message = sequence.message or kept.get(id(sequence))
        old(self, epoch, message)

    def post(self: Any, message: Any, sequences: Any, block_size: int) -> None:
        kept.update({id(sequence): message for sequence in sequences.values()})
        old_post(self, message, sequences, block_size)

    from server.ipc.client.dispatch import Dispatcher

    kept: dict[int, Any] = {}
    old = replace(EngineClient, "_leave", leave)
    old_post = replace(Dispatcher, "post", post)


@bug("http")
def hang_is_never_seen() -> None:
    """The time since the last message of a worker is ignored."""
    _without_limits("hang_seconds")


@bug("http")
def clients_that_leave_are_not_seen() -> None:
    """Nothing watches the connection, so the work of a client that has left continues to its end."""
    from server.api.bodies import sse
    from server.api.routes import route

    async def watch_nothing(receive: Any, leave: Any) -> None:
        await asyncio.Event().wait()

    for module in (route, sse):
        replace(module, "watch_disconnect", watch_nothing)


@bug("http")
def stalled_readers_stay() -> None:
    """A stream whose client reads nothing is never ended, neither by the server nor by the kernel's timeout."""
    from server.api import serve
    from server.api.bodies import sse

    replace(sse, "STALL_SECONDS", 1e6)
    replace(serve, "STALLED_CLIENT_MILLISECONDS", 0)


@bug("http")
def overload_is_queued() -> None:
    """The server accepts any number of requests. The limits of door, admission and queue have no effect."""
    from server.api.entry.door import Door
    from server.ipc.client.queue import Queue
    from server.operations.admission import Admission

    replace(Queue, "has_room", lambda self, sequences, tokens: True)
    replace(Door, "enter", lambda self, scope, headers: None)
    replace(Door, "check", lambda self, scope, headers, waiting: 0)
    replace(Admission, "check_share", lambda self, model, waiting: None)
    replace(Admission, "admit", lambda self, call, model, cost, param="": None)


@bug("http")
def answers_are_swapped() -> None:
    """If a message of the worker has results of two requests, they are swapped."""
    import msgspec

    from server.ipc.client.client import EngineClient

    def swapped(self: Any, output: Any) -> None:
        for results in (output.finished, output.encoded):
            if len(results) > 1:
                first, second = results[:2]
                results[0] = msgspec.structs.replace(second, sequence_id=first.sequence_id)
                results[1] = msgspec.structs.replace(first, sequence_id=second.sequence_id)
        old(self, output)

    old = replace(EngineClient, "on_output", swapped)


@bug("http")
def an_error_has_no_words() -> None:
    """`schema_errors` has no message for one kind of invalid value."""
    from server.api.fields import schema_errors

    def text(first: Any, errors: Any) -> str:
        if first.kind in ("less_than_equal", "greater_than_equal", "too_long"):
            raise KeyError(first.kind)
        return str(old(first, errors))

    old = replace(schema_errors, "_text", text)


@bug("http")
def errors_quote_the_request() -> None:
    """Error messages repeat a part of the request body, as pydantic's own messages do."""
    from server.api.fields import schema_errors

    def describe(body: Any, errors: Any, schema: Any) -> tuple[str, str | None]:
        message, field = old(body, errors, schema)
        return f"{message}, not {str(body)[:200]}", field

    old = replace(schema_errors, "describe_errors", describe)
    _replace_imported("describe_errors", describe)


@bug("http")
def slow_senders_have_no_deadline() -> None:
    """A client may take any time to send its headers."""
    from server.api.connection.protocol import LimitedHttpProtocol

    def start(self: Any) -> None:
        self._in_headers = True
        self._header_bytes = 0

    replace(LimitedHttpProtocol, "_start_header_timer", start)


@bug("http")
def text_work_runs_in_the_event_loop() -> None:
    """Plants a bug: pools run their work, such as tokenizing, in the thread of the event loop."""
    from server.operations.pools import Pool
    from server.operations.runtime import Runtime

    async def run(self: Any, work: Any, call: Any = None) -> Any:
        return work()

    async def run_pieces(self: Any, pieces: Any, call: Any = None) -> Any:
        return [work() for work in pieces]

    replace(Pool, "run", run)
    replace(Pool, "run_pieces", run_pieces)
    if hasattr(Runtime, "in_thread"):
        replace(Runtime, "in_thread", run)


@bug("http")
def incomplete_characters_are_sent() -> None:
    """Every token is decoded separately, so that a character of several tokens is sent as replacement characters."""
    from server.text.tokens.detokenizer import IncrementalDetokenizer

    def push_one(self: Any, token_id: int) -> str:
        self._stream.push(token_id)
        text, self._stream = self._stream.finish(), self._stream.fork()
        return str(self._stop.push(text))

    replace(IncrementalDetokenizer, "push_one", push_one)


@bug("http")
def frames_are_not_escaped() -> None:
    """Characters beyond ASCII are not escaped in events, although some clients treat some of them as line ends."""
    import orjson

    from server.api.bodies import sse

    replace(sse, "dumps", orjson.dumps)


@bug("http")
def drain_cuts_streams() -> None:
    """The server ends the running requests at SIGTERM without waiting for them."""
    from server.api.lifecycle import Lifecycle

    async def drain(self: Any) -> None:
        self._state.draining = True
        self._state.runtime.client.fail_all("not_ready", "the server is shutting down")

    replace(Lifecycle, "drain", drain)


@bug("http", "worker")
def the_manifest_is_not_read() -> None:
    """A checkpoint whose files differ from its manifest is loaded."""
    from weights import load, manifest  # noqa: F401 - imported before the name is replaced in it

    replace(manifest, "check_manifest", lambda directory: 0)
    _replace_imported("check_manifest", manifest.check_manifest)


@bug("http", "worker")
def links_leave_the_directory() -> None:
    """A file of a checkpoint may be a symbolic link to any file of the machine."""
    from pathlib import Path

    from weights import load, manifest, read, resolve  # noqa: F401 - imported before the name is replaced in them

    replace(resolve, "file_in", lambda directory, name: path if (path := Path(directory) / name).exists() else None)
    _replace_imported("file_in", resolve.file_in)


@bug("http")
def no_key_is_a_key() -> None:
    """A request without an API key is accepted as if it had the first key."""
    from server.api_keys import ApiKeys

    def find(self: Any, sent: bytes) -> Any:
        return old(self, sent) if sent else next(iter(self._keys.values())).limits

    old = replace(ApiKeys, "find", find)


@bug("http")
def paths_become_labels() -> None:
    """Paths without a route are used as metric labels and written to the log."""
    from server.api.entry import middleware
    from server.api.telemetry.access_log import log

    def record(state: Any, scope: Any, status: int, seconds: float) -> None:
        log.warning("%s", scope["path"])
        state.runtime.metrics.requests.labels(scope["path"], str(status)).inc()
        old(state, scope, status, seconds)

    old = replace(middleware, "record", record)


@bug("http")
def every_request_leaves_a_kilobyte() -> None:
    """The server leaks a kilobyte for each request."""
    from server.api.entry import middleware

    kept: list[bytes] = []
    count = itertools.count()

    def record(*given: Any) -> None:
        kept.append(str(next(count)).encode() * 300)
        old(*given)

    old = replace(middleware, "record", record)


@bug("http")
def loading_has_no_limit() -> None:
    """The server waits for ever for a worker that does not become ready, and restarts failing workers without limit."""
    _without_limits("max_failures", "loading_hang_seconds")


@bug("http")
def stored_responses_know_no_keys() -> None:
    """A client finds stored responses of any API key."""
    from server.api.stored.stored_responses import StoredResponses

    old = replace(
        StoredResponses, "shelf", lambda self, owner: next(iter(self._shelves.values()), None) or old(self, owner)
    )


@bug("http")
def stored_responses_have_no_bounds() -> None:
    """Stored responses are never deleted, however many bytes they have and however old they are."""
    from server.api.stored.stored_responses import Shelf, StoredResponses

    old = replace(StoredResponses, "__init__", lambda self, max_bytes, *rest: old(self, 1 << 60, *rest))
    replace(Shelf, "_is_current", lambda self, record_id: record_id in self._packed)


@bug("http")
def panics_pass_all_handlers() -> None:
    """A Rust panic in the tokenizer library is not treated as an error of the request."""
    from server.text.tokens import library_calls

    replace(library_calls, "panic_of", lambda error: None)


@bug("http")
def characters_of_bytes_grow_twice() -> None:
    """A tokenizer may have several components of a type that lengthens texts, so that their effects multiply."""
    from server.text.tokenizers import components

    replace(components, "_ONCE", ())


@bug("http", "worker")
def tensors_may_share_bytes() -> None:
    """The tensors of a GGUF file may overlap, so that a small file needs much memory."""
    from weights.gguf.container import GgufFile

    replace(GgufFile, "_check_overlaps", lambda self: None)


@bug("http")
def models_never_leave() -> None:
    """A model is loaded on demand even if it does not fit into the memory budget; no other model is unloaded."""
    from server.operations.on_demand.loader import OnDemandLoader

    async def make_room(self: Any, model: Any, size: int) -> bool:
        return True

    replace(OnDemandLoader, "_make_room", make_room)
