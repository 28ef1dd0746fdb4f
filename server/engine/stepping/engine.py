"""All models of one device: chooses the model of each step and collects its results.

Single-threaded: `add` and `abort` are called between steps. Times are seconds of time.monotonic().
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from server.engine.encoding.encode_queue import EncodeRequest
from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.scheduling.encoder_budget import delayed_seconds
from server.engine.sequences.events import EngineEvents, StepFailed
from server.engine.sequences.sequence import SequenceGroup
from server.engine.stepping.arriving_rows import ArrivingRows
from server.engine.stepping.fairness import DeficitRoundRobin
from server.engine.stepping.model_engine import ModelEngine
from server.engine.stepping.statistics import Statistics
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Generate, GenerateRow, SequenceMessage, Vocabulary
from server.ipc.wire.step_messages import Failed, Stats, StepOutput, StepTiming
from server.ipc.wire.time_limits import NO_PROGRESS_SECONDS

log = logging.getLogger("triptych.engine")

MAX_EXPIRED = 256
"""Requests that end by their deadline before one step. Thousands at once would delay the step and the event loop."""
MAX_STALE_DEADLINES = 64
"""The heap of deadlines is cleaned when it has more than this many entries beyond two per open request. Until then it
keeps entries of ended requests."""
MAX_GRAMMAR_WAIT_SECONDS = 0.002
"""Longest wait for grammars if there is nothing else to do. Then the worker reads messages again."""


class DeviceLost(RuntimeError):
    """The device has failed; only a new process can use it."""


class StepError(NamedTuple):
    """An error that made a step fail.

    is_of_memory: whether the device had too little memory. text: type and first line of the error.
    """

    is_of_memory: bool
    text: str

    @classmethod
    def of(cls, error: BaseException) -> StepError:
        line = (str(error).strip().splitlines() or [""])[0]
        is_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
            part in line for part in ("out of memory", "ALLOC_FAILED")
        )
        return cls(is_of_memory, f"{type(error).__name__}: {line}")


class Engine:
    """The models of one device and their requests.

    epoch: unique number of this worker process, part of every message to the HTTP process.
    send: sends messages that cannot wait for the end of a step; None if there is no HTTP process.
    step_error: the error of the last step that failed; None if none has failed. The exception object itself is not
        kept, because its stack holds the tensors of the step.
    """

    def __init__(self, models: dict[str, ModelEngine], device: torch.device, epoch: int = 0) -> None:
        self.models = models
        self.device = device
        self.epoch = epoch
        self.send: Callable[[StepOutput], None] | None = None
        self.step_error: StepError | None = None
        self._by_name = {name: model for model in models.values() for name in (model.name, *model.adapters)}
        self._arriving = ArrivingRows()
        self._requests: dict[int, tuple[ModelEngine, SequenceGroup | EncodeRequest]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._round_robin = DeficitRoundRobin(models)
        self._events = EngineEvents(self._report)
        self._statistics = Statistics(device, epoch)
        self._encoded_last: set[str] = set()
        self._has_encoded = False

    def add_model(self, model: ModelEngine) -> None:
        """Add a loaded model, so that the engine serves its requests."""
        self.models[model.name] = model
        self._by_name |= dict.fromkeys((model.name, *model.adapters), model)
        self._round_robin.add(model.name)

    def remove_model(self, name: str) -> None:
        """Drop a model and its requests, without events. An unknown name is ignored."""
        model = self.models.get(name)
        if model is None:
            return
        self._drop_requests(model)
        self._statistics.forget(model)
        del self.models[name]
        for known in (name, *model.adapters):
            self._by_name.pop(known, None)
        self._round_robin.remove(name)
        self._encoded_last.discard(name)

    def give_back_caches(self, name: str) -> None:
        """Drop the requests of a model, without events, and return the memory of its KV caches to the system.

        The model can be used at once; its prefix cache is empty. An unknown name is ignored.
        """
        model = self.models.get(name)
        if model is not None and model.generation is not None:
            self._drop_requests(model)
            model.generation.give_back_caches()

    def _drop_requests(self, model: ModelEngine) -> None:
        """End all requests of a model, without events."""
        for sequence_id in [key for key, (owner, _) in self._requests.items() if owner is model]:
            self._end(sequence_id, "abort")
        self._arriving.remove((model.name, *model.adapters))

    @property
    def step_seconds(self) -> float:
        """Seconds after which the step in progress counts as stuck. May be read from another thread."""
        encodings = [model.encoding for model in list(self.models.values()) if model.encoding is not None]
        return max((encoding.step_seconds for encoding in encodings), default=NO_PROGRESS_SECONDS)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._events or self._arriving) or any(model.has_work for model in self.models.values())

    def add(self, message: Generate | Encode) -> None:
        """Add a request. If it cannot be served, the next `step` returns the failure."""
        model = self._by_name.get(message.model)
        if model is not None and isinstance(message, Generate) and model.generation is not None:
            if model.generation.accepts(message, self._events):
                if len(message.rows) > model.generation.scheduler.max_batch_rows:
                    self._arriving.add(message)
                else:
                    self._add_rows(model, message, message.rows)
        elif model is not None and isinstance(message, Encode) and model.encoding is not None:
            self._queued(model, message, model.encoding.add(message, self._events))
        else:
            text = f"no model {message.model!r} for this task is loaded"
            entries = message.rows if isinstance(message, Generate) else [message]
            self._events.failed += [Failed(entry.sequence_id, "engine_error", text) for entry in entries]

    def _add_rows(self, model: ModelEngine, message: Generate, rows: Sequence[GenerateRow]) -> None:
        assert model.generation is not None
        self._queued(model, message, model.generation.add(message, rows, self._events, time.monotonic()))

    def _queued(
        self, model: ModelEngine, message: Generate | Encode, requests: Sequence[SequenceGroup | EncodeRequest]
    ) -> None:
        """Record the queued requests of a message, and their deadlines, so that they can be aborted by id."""
        for request in requests:
            self._requests[request.sequence_id] = (model, request)
            if message.deadline is not None:
                self._add_deadline(message.deadline, request.sequence_id)

    def _add_arriving(self) -> None:
        """Make sequence groups of one part of a large message, if any. A part has as many rows as a step can have."""
        if self._arriving:
            model = self._by_name[self._arriving.model]
            assert model.generation is not None
            self._add_rows(model, *self._arriving.next(model.generation.scheduler.max_batch_rows))

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Set the bytes of a model's tokens, which grammars and stop strings need. An unknown model is ignored."""
        model = self.models.get(vocabulary.model)
        if model is not None and model.generation is not None:
            model.generation.set_vocabulary(vocabulary.tokens)

    def take_sequences(self, message: SequenceMessage) -> None:
        """Add a part to a stored set of allowed sequences, or drop a set. A message about another model is ignored."""
        model = self.models.get(message.model)
        if model is not None and model.generation is not None:
            model.generation.take_sequences(message)

    def abort(self, sequence_id: int) -> None:
        """Drop a row of a `Generate`, or an `Encode`, and free its blocks. No event is recorded.

        An unknown id is ignored.
        """
        self._end(sequence_id, "abort")

    def step(self) -> StepOutput | None:
        """Run one step of one model. Returns all events since the last call, or None if there are none.

        If a step fails, its requests get an error and the engine goes on. Raises DeviceLost if the device has failed;
        the engine cannot be used after that.
        """
        self._add_arriving()
        self._expire(time.monotonic())
        busy = {name for name, model in self.models.items() if model.has_work}
        while (name := self._round_robin.pick(self._after_encoding(busy))) is not None:
            started = time.monotonic()
            timing = None
            try:
                timing = self._step(self.models[name])
                if timing is not None:
                    self._statistics.timings.append(timing)
            except StepFailed as error:
                log.exception("a step of %s failed; its requests get an error", name)
                self.step_error = StepError.of(error.__cause__ or error)
                self._recover(error)
            self._round_robin.charge(name, time.monotonic() - started)
            if timing is not None or self._events:
                return self._output(started)
            busy.remove(name)
            self._has_encoded = False
        self._wait_for_grammars()
        return self._output(time.monotonic())

    def _after_encoding(self, busy: set[str]) -> set[str]:
        """Names of the models that may run the next step.

        After an encoder step, only models with running sequence groups may, so that encoder steps do not follow each
        other while streams run. Otherwise all models in `busy` may.

        busy: names of the models with work.
        """
        if not self._has_encoded:
            return busy
        return {name for name in busy if self._is_generating(self.models[name])} or busy

    def _wait_for_grammars(self) -> None:
        """Wait a moment for grammar masks. Called if no model could run a step.

        Does nothing if no group waits for a mask, or if there are events to send.
        """
        generations = [model.generation for model in self.models.values() if model.generation is not None]
        waits = [generation.grammar_waits for generation in generations if generation.grammar_waits is not None]
        waiting = [wait for wait in waits if wait.is_waiting]
        if waiting and not self._events:
            waiting[0].wait(MAX_GRAMMAR_WAIT_SECONDS / len(waiting))

    def _step(self, model: ModelEngine) -> StepTiming | None:
        """Run one step of a model; generation and encoding alternate. Returns None if there was nothing to compute."""
        generation, encoding = model.generation, model.encoding
        encode_first = model.name not in self._encoded_last
        if (
            encoding is not None
            and encoding.has_work
            and (encode_first or generation is None or not generation.has_work)
        ):
            return self._encode(model.name, encoding)
        self._encoded_last.discard(model.name)
        self._has_encoded = False
        timing = generation.step(self._events) if generation is not None else None
        if timing is None and encoding is not None and encoding.has_work:
            return self._encode(model.name, encoding)
        return timing

    def _encode(self, name: str, encoding: EncoderEngine) -> StepTiming | None:
        """Run one encoder step. The step is short if sequence groups of any model run, because it delays these groups.

        name: name of the model. encoding: encoder engine of the model.
        """
        self._encoded_last.add(name)
        self._has_encoded = True
        generations = [model.generation for model in self.models.values() if self._is_generating(model)]
        schedulers = [generation.scheduler for generation in generations if generation is not None]
        has_prefill = any(scheduler.has_prefill for scheduler in schedulers)
        seconds = delayed_seconds([scheduler.decode_seconds for scheduler in schedulers], has_prefill)
        return encoding.step(self._events, bool(schedulers), seconds)

    @staticmethod
    def _is_generating(model: ModelEngine) -> bool:
        return model.generation is not None and bool(model.generation.scheduler.running)

    def _recover(self, error: Exception) -> None:
        """Release cached GPU memory after an error. Raises DeviceLost if the device does not respond."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except RuntimeError as second:
            raise DeviceLost(str(second)) from error

    def _add_deadline(self, deadline: float, sequence_id: int) -> None:
        heapq.heappush(self._deadlines, (deadline, sequence_id))
        # Most requests end long before their deadlines. Deadlines of ended requests are removed when there are many.
        if len(self._deadlines) > 2 * len(self._requests) + MAX_STALE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(self._deadlines)

    def _expire(self, now: float) -> None:
        """End requests whose deadline has passed, at most `MAX_EXPIRED` of them. The next step ends more requests."""
        for _ in range(MAX_EXPIRED):
            if not self._deadlines or self._deadlines[0][0] > now:
                break
            self._end(heapq.heappop(self._deadlines)[1], "timeout")

    def _end(self, sequence_id: int, reason: Literal["abort", "timeout"]) -> None:
        model, request = self._requests.pop(sequence_id, (None, None))
        if model is None:
            self._arriving.abort(sequence_id)
            return
        if isinstance(request, SequenceGroup) and model.generation is not None:
            model.generation.finish(request, reason, self._events)
        elif isinstance(request, EncodeRequest) and model.encoding is not None:
            model.encoding.finish(request, reason, self._events)

    def _output(self, began: float) -> StepOutput | None:
        """Collect all events since the last call as a message; None if there are none.

        began: time of `time.monotonic()` at which the step began.
        """
        if not self._events:
            return None
        events, self._events = self._events, EngineEvents(self._report)
        for sequence_id in [end.sequence_id for end in events.finished] + [end.sequence_id for end in events.failed]:
            self._requests.pop(sequence_id, None)
        for encoded in events.encoded:
            entry = self._requests.get(encoded.sequence_id)
            if entry is not None and isinstance(entry[1], EncodeRequest) and entry[1].finished:
                del self._requests[encoded.sequence_id]
        return StepOutput(
            self.epoch,
            events.tokens,
            events.finished,
            events.encoded,
            events.failed,
            events.prompts,
            events.computing,
            began,
            time.monotonic(),
        )

    def _report(self, sequence_ids: list[int]) -> None:
        """Tell the HTTP process at once, before the step, that the step will compute these requests."""
        if self.send is not None:
            now = time.monotonic()
            self.send(StepOutput(self.epoch, computing=sequence_ids, began=now, sent=now))

    def stats(self) -> Stats:
        """The heartbeat message: present numbers of requests and blocks, and counts of events since the last call."""
        arriving: Counter[str] = Counter()
        for name, count in self._arriving.rows_by_model.items():
            arriving[self._by_name[name].name] += count
        return self._statistics.take(self.models.values(), arriving, self._arriving.num_tokens)
