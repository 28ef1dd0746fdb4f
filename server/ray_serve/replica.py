"""A replica: a server without a listening socket, with the HTTP application in this process and workers as children."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import ray
from prometheus_client import Gauge
from ray import serve
from starlette.types import Message, Scope
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn

from server.api.app import create_api
from server.compose import Server
from server.errors import NotReady, StartError
from server.ipc.workers.worker_process import WORKER_COMMAND
from server.log_format import ENVIRONMENT, start_logging
from server.ray_serve.arguments import check_exposure, read
from server.ray_serve.autoscaling import RUNNING, WAITING, model_figure
from server.ray_serve.messages import answer
from server.ray_serve.multiplexing import ReplicaModels
from server.settings.settings import Settings

WAIT_SECONDS = 30.0
"""Longest time that a request waits while the worker is restarted.

Ray sends most requests to the replica with the fewest in progress. A replica that refused all requests immediately
would therefore receive most of the traffic.
"""
UNREADY_SECONDS = 30.0
"""A replica is unhealthy if no worker was ready for this time plus twice the time that loading took at the start."""


class Replica:
    """One server. Ray Serve starts it, sends it requests when it is ready, and replaces it when it is unhealthy.

    arguments: settings of Triptych by name, and `config`, the path of a TOML file. The number of threads defaults to
        the CPUs that Ray has assigned.
    Raises StartError for invalid settings, without an API key, and if the application does not start.
    """

    async def __init__(self, arguments: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        settings = _with_assigned_threads(read(arguments))
        check_exposure(settings)
        os.environ[ENVIRONMENT] = settings.log_format
        start_logging(settings.log_level, settings.log_format)
        started = time.monotonic()
        self._server = Server(settings, WORKER_COMMAND)
        self._app = create_api(self._server.state, self._server.lifecycle.unattended_lifespan)
        self._lifespan: LifespanOn | None = LifespanOn(Config(self._app, lifespan="on", log_config=None))
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise StartError("the application did not start; its error is in the log")
        try:
            # Ray Serve sends no request before the constructor ends, so a replica that loads is not ready yet.
            await self._server.lifecycle.wait_loaded()
        except BaseException:
            await self._lifespan.shutdown()
            raise
        self._last_ready_seconds = time.monotonic()
        self._unready_limit_seconds = UNREADY_SECONDS + 2 * (self._last_ready_seconds - started)

    async def answer(self, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
        """Answer one HTTP request. Yields the ASGI messages of the response, in batches, as they come.

        A POST request first waits up to `WAIT_SECONDS` while the worker is restarted.
        """
        if scope["method"] == "POST":
            await self._wait_ready()
        async for messages in answer(self._app, scope, body):
            yield messages

    async def _wait_ready(self) -> None:
        """Wait up to `WAIT_SECONDS` for a ready worker. After that, the application itself refuses the request."""
        end = time.monotonic() + WAIT_SECONDS
        while not (self._server.state.ready or self._server.lifecycle.failed) and time.monotonic() < end:
            await asyncio.sleep(0.05)

    def metrics_page(self) -> tuple[str, bytes]:
        """Return the name of this replica, and its metrics as Prometheus text."""
        return serve.get_replica_context().replica_id.unique_id, self._server.state.runtime.metrics.render()

    def check_health(self) -> None:
        """Called by Ray Serve. Raises NotReady if the worker has failed for good, or was not ready for too long."""
        now = time.monotonic()
        if self._server.lifecycle.failed:
            raise NotReady("the worker could not be brought back")
        if self._server.state.ready:
            self._last_ready_seconds = now
        elif now - self._last_ready_seconds > self._unready_limit_seconds:
            raise NotReady(f"no worker was ready for {now - self._last_ready_seconds:.0f} s")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve: figures for the autoscaling policy, of all models together and of each one."""
        metrics = self._server.state.runtime.metrics
        waiting_for_loads = self._waiting_for_loads()
        found = {
            RUNNING: sum(_samples(metrics.running).values()),
            WAITING: sum(_samples(metrics.waiting).values()) + sum(waiting_for_loads.values()),
        }
        found |= {model_figure(RUNNING, model): count for model, count in _samples(metrics.model_running).items()}
        return found | {model_figure(WAITING, model): count for model, count in self._waiting().items()}

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Ray Serve: the models of this replica, for `server.ray_serve.router`."""
        runtime = self._server.state.runtime
        loaded = list(runtime.texts)
        if runtime.registry is not None:
            models = runtime.registry.models.values()
            loaded = [name for model in models if model.state in ("loading", "loaded") for name in model.names]
        return ReplicaModels(frozenset(loaded), self._waiting()).to_stats()

    def _waiting(self) -> dict[str, float]:
        """Number of requests that wait for each model: for its load, or in the queue of the engine."""
        waiting = Counter(_samples(self._server.state.runtime.metrics.model_waiting))
        waiting.update(self._waiting_for_loads())
        return dict(waiting)

    def _waiting_for_loads(self) -> dict[str, float]:
        registry = self._server.state.runtime.registry
        models = [] if registry is None else registry.models.values()
        return {model.name: float(model.waiting) for model in models if model.waiting}

    async def __del__(self) -> None:
        """Stop the worker processes. Called by Ray Serve when the replica stops, after its last request."""
        lifespan, self._lifespan = getattr(self, "_lifespan", None), None
        if lifespan is not None:
            await lifespan.shutdown()


def _samples(gauge: Gauge) -> dict[str, float]:
    """The values of a gauge by the model in its label; the key is empty for a gauge without labels."""
    return {sample.labels.get("model", ""): sample.value for family in gauge.collect() for sample in family.samples}


def _with_assigned_threads(settings: Settings) -> Settings:
    """Set the number of threads to the CPUs that Ray has assigned, divided by the number of workers.

    The settings are returned unchanged if they state a number of threads, or if Ray has assigned no CPUs.
    """
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    if settings.threads or not cpus:
        return settings
    return settings.model_copy(update={"threads": max(int(cpus) // max(settings.workers, 1), 1)})
