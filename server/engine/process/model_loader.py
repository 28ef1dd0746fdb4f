"""Loads models while others run: a thread reads and packs the weights, and the main thread runs the first steps.

The thread runs on cores that no step needs, so that the steps of other models keep their cores. Each load has a new
thread, whose packed weights are in separate memory mappings (`models.backends.huge_pages`). The main thread creates the
KV pools and runs the first steps, because all programs share one scratch memory. See
docs/decisions/0151-models-on-demand.md.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from models.backends.tensor_memory import PRIVATE, TensorMemory
from server.engine.loading.host_memory import warn_without_host_pool
from server.engine.loading.load import LoadError, load, unexpected
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.model_infos import adapter_infos
from server.engine.loading.packed_cache import packed_cache
from server.engine.loading.reading_pace import ReadingPace
from server.engine.loading.speculation import find_drafts, make_drafter
from server.engine.process.captures import capture_models
from server.engine.process.host import map_large_blocks, reuse_large_blocks
from server.engine.process.measuring import MeasuringMemory, all_weight_bytes, needed_memory
from server.engine.process.warm_up import add_warm_up
from server.engine.stepping.engine import Engine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import EngineOptions, ModelInfo, ModelSpec
from server.ipc.wire.model_messages import (
    CacheGivenBack,
    GiveBackCache,
    LoadModel,
    MeasureModel,
    ModelAnswer,
    ModelFailed,
    ModelLoaded,
    ModelMeasured,
    ModelMessage,
    ModelUnloaded,
    UnloadModel,
)
from server.system.cores import run_when_idle

log = logging.getLogger("triptych.worker")

POLL_SECONDS = 0.02
"""Seconds between two calls of `ModelLoader.poll` while the worker has no other work."""
LOADING_PRIORITY = 19
"""Niceness of the loading thread, and of the torch threads that it starts. A higher niceness is a lower priority."""
SWITCH_SECONDS = 0.0005
"""Switch interval of the interpreter while a thread loads. The default of 5 ms would delay each step."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A model whose weights are read, and whose engine is not built yet.

    draft: the loaded draft model; None if the model uses no draft model.
    """

    message: LoadModel
    loaded: LoadedCheckpoint
    draft: LoadedCheckpoint | None


@dataclass(frozen=True, slots=True)
class _WarmingUp:
    """A loaded model during its warm-up, before requests can use it.

    engine: a temporary engine with this model only. It runs the warm-up steps.
    model: the parts of `engine` that compute this model's requests. loaded: the model's weights. info: the model's
        description for the HTTP process.
    """

    engine: Engine
    model: ModelEngine
    loaded: LoadedCheckpoint
    info: ModelInfo


class ModelLoader:
    """Carries out the messages about models on demand. The main loop calls `add` and `poll`.

    engine: the engine to which loaded models are added.
    options: options of the worker. Each `LoadModel` message has the size of the KV cache for its model.
    send: sends answers to the HTTP process.
    device_bytes: memory that all models together may take of a CUDA device; 0 on a CPU.
    """

    def __init__(
        self, engine: Engine, options: EngineOptions, send: Callable[[ModelAnswer], None], device_bytes: int = 0
    ) -> None:
        self._device_bytes = device_bytes
        self._engine = engine
        self._options = options
        self._pace = ReadingPace()
        self._cache = packed_cache(options, self._pace.turn)
        self._send = send
        self._waiting: deque[MeasureModel | LoadModel] = deque()
        self._results: queue.SimpleQueue[_Read | ModelMeasured | ModelFailed] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._reading = ""
        self._warming: _WarmingUp | None = None
        self._dropped: set[str] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a load or measurement is in progress, so that `poll` must be called soon."""
        return self._thread is not None or self._warming is not None

    @property
    def has_steps(self) -> bool:
        """Whether `poll` has a warm-up step to run, so that it must be called without a pause."""
        return self._warming is not None

    def add(self, message: ModelMessage) -> None:
        """Begin the work of a message. Loads and measurements wait until earlier ones are done; others do not."""
        if isinstance(message, UnloadModel):
            self._unload(message.model)
        elif isinstance(message, GiveBackCache):
            self._engine.give_back_caches(message.model)
            self._send(CacheGivenBack(self._engine.epoch, message.model))
        else:
            self._waiting.append(message)
            self._start()

    def poll(self) -> None:
        """Make progress: run one warm-up step, or take the result of the loading thread and start the next load.

        The main loop calls this after each step, so that the loading thread knows whether steps run beside it.
        """
        self._pace.are_steps_running = self._engine.has_work
        if self._warming is not None:
            self._warm_up(self._warming)
            return
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        name, self._reading = self._reading, ""
        if name in self._dropped:
            del result
            self._dropped.discard(name)
            self._give_back(name)
        elif isinstance(result, _Read):
            self._build(result)
        else:
            self._send(result)
        if self._warming is None:
            self._start()

    def _start(self) -> None:
        """Start a thread for the next waiting message, unless another load or measurement is in progress."""
        if self.is_busy or not self._waiting:
            return
        message = self._waiting.popleft()
        self._reading = message.model.name if isinstance(message, LoadModel) else ""
        # Blocks that the thread frees would leave holes in the heap of the steps.
        map_large_blocks()
        self._thread = threading.Thread(target=self._run, args=(message,), name="load", daemon=True)
        self._thread.start()

    def _run(self, message: MeasureModel | LoadModel) -> None:
        """Measure or read a model, in the loading thread. Puts one result into the queue, also after an exception."""
        name = message.model.name
        failed = ModelFailed(self._engine.epoch, name, f"model {name!r}: the load was interrupted")
        result: _Read | ModelMeasured | ModelFailed = failed
        try:
            with _in_background(self._options.threads, self._engine.device):
                result = self._measure(message.model) if isinstance(message, MeasureModel) else self._read(message)
        except LoadError as error:
            result = replace(failed, message=str(error))
        except Exception as error:
            log.debug("an exception while loading", exc_info=error)
            result = replace(failed, message=str(LoadError(f"model {name!r}: {unexpected(error)}")))
        finally:
            self._results.put(result)

    def _measure(self, spec: ModelSpec) -> ModelMeasured:
        memory = MeasuringMemory()
        loaded, draft = self._load(spec, memory)
        weight_bytes = memory.kept_bytes
        if self._engine.device.type == "cuda":  # its packers keep nothing in `memory`
            weight_bytes = all_weight_bytes(loaded) + (0 if draft is None else all_weight_bytes(draft))
        return needed_memory(self._engine.epoch, loaded, draft, weight_bytes, self._options)

    def _read(self, message: LoadModel) -> _Read:
        return _Read(message, *self._load(message.model, PRIVATE))

    def _load(self, spec: ModelSpec, memory: TensorMemory) -> tuple[LoadedCheckpoint, LoadedCheckpoint | None]:
        """Load a model and its draft model, which is None if the model has none. Raises LoadError if either fails."""

        def read(spec: ModelSpec) -> LoadedCheckpoint:
            return load(spec, self._engine.device, lambda done_bytes, total_bytes: None, memory, self._cache)

        loaded = read(spec)
        return loaded, find_drafts([loaded], read).get(spec.name)

    def _build(self, read: _Read) -> None:
        """Create the KV pools and the engine of a model, and begin its first steps."""
        name, options = read.message.model.name, self._options_for(read.message.kv_cache_bytes)
        try:
            share, drafter = make_drafter(read.loaded, read.draft, options, options.kv_cache_bytes)
            model, info = build(read.loaded, options, share, drafter)
        except LoadError as error:
            self._send(ModelFailed(self._engine.epoch, name, str(error)))
            return
        warn_without_host_pool([model], options)
        engine = Engine({name: model}, self._engine.device, self._engine.epoch)
        add_warm_up(engine, [read.loaded], num_tokens=1)
        self._warming = _WarmingUp(engine, model, read.loaded, info)

    def _options_for(self, kv_cache_bytes: int) -> EngineOptions:
        """Engine options for one model.

        Its part of the host memory is the same as the part of its KV cache in the memory for all models.
        """
        spilled = self._options.kv_spill_bytes * kv_cache_bytes // self._device_bytes if self._device_bytes else 0
        return replace(self._options, kv_cache_bytes=kv_cache_bytes, kv_spill_bytes=spilled)

    def _warm_up(self, warming: _WarmingUp) -> None:
        if warming.engine.has_work:
            warming.engine.step()
            return
        warming.engine.stats()
        # No thread may use the device during a capture, so that the next load begins afterwards.
        captured = self._capture(warming)
        self._warming = None
        name = warming.model.name
        if name in self._dropped:
            self._dropped.discard(name)
            self._give_back(name)
        else:
            self._engine.add_model(warming.model)
            reuse_large_blocks()
            # Only the first steps show how a model runs.
            execution = captured.get(name, warming.loaded.model.transformer.execution)
            info = replace(warming.info, execution=execution)
            self._send(ModelLoaded(self._engine.epoch, name, [info, *adapter_infos(warming.loaded, info)]))
        self._start()

    def _capture(self, warming: _WarmingUp) -> dict[str, str]:
        """Capture the decode steps of a model on a CUDA device.

        Returns how the model runs its steps, as `capture_models` does.
        """
        if self._engine.device.type != "cuda":
            return {}
        return capture_models(warming.engine, [warming.loaded], self._options)

    def _unload(self, name: str) -> None:
        """Remove a model from the engine. A waiting load of the model is cancelled.

        A load in progress goes on to its end, and its result is then discarded.
        """
        self._waiting = deque(message for message in self._waiting if message.model.name != name)
        if name == self._reading or (self._warming is not None and self._warming.model.name == name):
            self._dropped.add(name)
            return
        self._engine.remove_model(name)
        self._give_back(name)

    def _give_back(self, name: str) -> None:
        """Return the memory of a dropped model to the system, and report this with `ModelUnloaded`."""
        gc.collect()
        reuse_large_blocks()
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._send(ModelUnloaded(self._engine.epoch, name))


@contextlib.contextmanager
def _in_background(threads: int, device: torch.device) -> Iterator[None]:
    """Context manager in the loading thread: low priority, its own number of torch threads, a short switch interval.

    The threads of steps interrupt it as soon as they wake up, and it gets little time while they use all cores.
    A short switch interval lets the main thread run soon while this thread runs Python code.

    threads: number of torch threads; 0 for torch's default.
    device: the CUDA device of the worker. It is set again here, because each thread starts with the first device.
    """
    torch.set_num_threads(threads or torch.get_num_threads())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            # On Linux a thread has its own priority, which the threads that it starts inherit.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOADING_PRIORITY)
    run_when_idle()
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
