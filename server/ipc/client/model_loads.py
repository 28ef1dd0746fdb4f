"""Asks the workers to measure, load and unload models, and remembers which models every worker should have.

A model is wanted from the end of `load` until `unload`. A worker that becomes ready, for example after a crash, gets a
`LoadModel` for each wanted model. A worker carries out loads one after the other. If a worker ends while it loads a
model, that model is no longer wanted, because it may have caused the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from server.ipc.client.dispatch import Dispatcher
from server.ipc.client.worker_state import WorkerState
from server.ipc.wire.descriptions import ModelInfo, ModelSpec
from server.ipc.wire.model_messages import (
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

log = logging.getLogger("triptych.client")


class ModelLoadFailed(Exception):
    """The memory need of a model could not be measured, or the model could not be loaded.

    The message is one line for the operator.
    """


class WorkerLost(ModelLoadFailed):
    """The worker ended while it measured or loaded a model. The model may have caused the end."""


class _Pending(NamedTuple):
    """A message whose answer has not arrived. answer: future of the answer; it fails if no answer can arrive."""

    message: ModelMessage
    answer: asyncio.Future[ModelAnswer]


class ModelLoads:
    """Loads and unloads models in all workers while they run. All methods must be called on one event loop.

    dispatcher: lists the workers, and the models that each worker has.
    loaded: called with the descriptions of a loaded model and its adapters, for each `ModelLoaded` message.
    """

    def __init__(self, dispatcher: Dispatcher, loaded: Callable[[list[ModelInfo]], None]) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called when a worker has gained or lost models."""
        self.dropped: Callable[[str, str], None] = lambda name, reason: None
        """Called with the name of a model and a reason if a new worker could not load the model again, and no other
        worker has the model."""
        self._dispatcher = dispatcher
        self._loaded = loaded
        self._wanted: dict[str, LoadModel] = {}
        self._names: dict[str, list[str]] = {}
        self._answers: dict[tuple[int, str], _Pending] = {}

    @property
    def is_ready(self) -> bool:
        """Whether a worker accepts messages."""
        return bool(self._dispatcher.accepting)

    def is_available(self, name: str) -> bool:
        """Whether a worker that accepts requests has a model. name: name of the model or adapter."""
        return bool(self._dispatcher.serving(name))

    async def measure(self, spec: ModelSpec) -> ModelMeasured:
        """The memory that a model needs in each worker. Raises ModelLoadFailed if it cannot be measured."""
        (answer,) = await self._ask(self._dispatcher.accepting[:1], spec.name, MeasureModel(spec))
        assert isinstance(answer, ModelMeasured)
        return answer

    async def load(self, spec: ModelSpec, kv_cache_bytes: int) -> None:
        """Load a model in every worker. kv_cache_bytes: memory for its KV caches in each worker.

        Raises ModelLoadFailed if a worker cannot load the model. Then no worker has the model.
        """
        message = LoadModel(spec, kv_cache_bytes)
        try:
            await self._ask(self._dispatcher.accepting, spec.name, message)
        except ModelLoadFailed:
            await self.unload(spec.name)
            raise
        self._wanted[spec.name] = message
        for worker in self._dispatcher.accepting:  # one that became ready meanwhile
            if spec.name not in worker.models:
                self._restore(worker, message)

    async def give_back_cache(self, name: str) -> None:
        """Empty the KV caches of a loaded model in every worker, and wait until their memory is given back.

        The model must have no open sequences. It stays loaded.
        """
        try:
            await self._ask(self._dispatcher.serving(name), name, GiveBackCache(name))
        except ModelLoadFailed:
            log.debug("a worker ended, or dropped %s, before it gave back its KV caches", name)

    async def unload(self, name: str) -> None:
        """Drop a model in every worker, and wait until its memory is free. The model must have no open sequences."""
        self._wanted.pop(name, None)
        for known in self._names.pop(name, [name]):
            self._dispatcher.forget_vocabulary(known)
            for worker in self._dispatcher.workers.values():
                worker.models.discard(known)
        try:
            await self._ask(list(self._dispatcher.workers.values()), name, UnloadModel(name))
        except ModelLoadFailed:
            log.debug("a worker ended before it dropped %s", name)

    async def restored(self, epoch: int) -> None:
        """Wait until a worker that has become ready has loaded all wanted models, or has failed to load them."""
        waiting = [pending.answer for (own, _), pending in self._answers.items() if own == epoch]
        await asyncio.gather(*waiting, return_exceptions=True)

    def on_answer(self, answer: ModelAnswer) -> None:
        """Handle an answer of a worker: record its models, and complete the future of the message."""
        worker = self._dispatcher.workers.get(answer.epoch)
        if worker is None:
            return
        pending = self._answers.get((answer.epoch, answer.model))
        if pending is not None and isinstance(pending.message, UnloadModel) and not isinstance(answer, ModelUnloaded):
            return  # the answer to an earlier message, which the worker sent before it received this one
        if isinstance(answer, ModelLoaded):
            names = [info.name for info in answer.models]
            self._names[answer.model] = names
            worker.models.update(names)
            self._dispatcher.send_kept(worker, names)
            self._loaded(answer.models)
        if pending is not None:
            del self._answers[answer.epoch, answer.model]
            if not pending.answer.done():
                pending.answer.set_result(answer)
        self.changed()

    def on_ready(self, worker: WorkerState) -> None:
        """Ask a worker that has become ready to load all wanted models."""
        for message in list(self._wanted.values()):
            self._restore(worker, message)
        self.changed()

    def on_lost(self, epoch: int) -> None:
        """Handle the end of a worker. The first message that the worker has not answered fails with WorkerLost.

        Messages about models that are not wanted fail too. The other messages would load wanted models again. They are
        cancelled: the worker had not begun them, so their models did not cause its end, and stay wanted.
        """
        lost = [key for key in self._answers if key[0] == epoch]
        for index, key in enumerate(lost):
            future, name = self._answers.pop(key).answer, key[1]
            if index == 0 or name not in self._wanted:
                future.set_exception(WorkerLost(f"model {name!r}: the worker ended while it loaded the model"))
                future.exception()
            else:
                future.cancel()
        self.changed()

    def _restore(self, worker: WorkerState, message: LoadModel) -> None:
        """Ask a worker to load a wanted model that it does not have."""
        name = message.model.name
        self._send(worker, name, message).add_done_callback(partial(self._restored, name))

    def _restored(self, name: str, done: asyncio.Future[ModelAnswer]) -> None:
        """Handle the answer of a worker that was asked to load a wanted model.

        If the worker could not load the model, and no other worker has it, the model is not wanted any more.

        done: future of the worker's answer.
        """
        if done.cancelled() or name not in self._wanted:
            return
        error = done.exception()
        answer = None if error is not None else done.result()
        if isinstance(answer, ModelFailed):
            error = ModelLoadFailed(answer.message)
        if error is not None and not self.is_available(name):
            self._wanted.pop(name)
            self.dropped(name, str(error))

    async def _ask(self, workers: Iterable[WorkerState], name: str, message: ModelMessage) -> list[ModelAnswer]:
        """Send a message to workers and wait for their answers. name: name of the model.

        Raises ModelLoadFailed if no worker is given. If a worker fails, it is raised after all workers have answered.
        """
        waiting = [self._send(worker, name, message) for worker in workers]
        if not waiting:
            raise ModelLoadFailed("no worker is ready")
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        found: list[ModelAnswer] = []
        for answer in answers:
            if isinstance(answer, asyncio.CancelledError):
                raise ModelLoadFailed(f"model {name!r} was dropped before it was loaded")
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, ModelFailed):
                raise ModelLoadFailed(answer.message)
            found.append(answer)
        return found

    def _send(self, worker: WorkerState, name: str, message: ModelMessage) -> asyncio.Future[ModelAnswer]:
        """Send a message about a model. Returns the future of the answer.

        The future of an earlier message to this worker about the same model is cancelled.
        """
        future: asyncio.Future[ModelAnswer] = asyncio.get_running_loop().create_future()
        earlier = self._answers.pop((worker.epoch, name), None)
        if earlier is not None:
            earlier.answer.cancel()
        self._answers[worker.epoch, name] = _Pending(message, future)
        worker.outbox.post(message, idle=False)
        return future
