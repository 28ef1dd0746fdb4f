"""Update the metrics from the events of the engine client (`server.ipc.client.observer.Observer`)."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterable
from typing import get_args

from server.ipc.client.observer import Stage
from server.ipc.wire.descriptions import Device, ModelInfo
from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished
from server.ipc.wire.step_messages import Failed, Stats
from server.ipc.wire.worker_messages import PreparingKernels, Progress
from server.metrics import Metrics
from server.operations.on_demand.declared import DeclaredModel, ModelState
from server.system.fast_metrics import FastCounterSeries, FastHistogramSeries

log = logging.getLogger("triptych")


def version() -> str:
    """Version of the installed package, or "unknown" if the package is not installed."""
    try:
        return importlib.metadata.version("triptych")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Telemetry:
    """Observer of the engine client that updates the metrics for every event.

    metrics: the metrics to update.
    report: called with the progress of loading, which the command line shows as a progress bar.
    """

    def __init__(self, metrics: Metrics, report: Callable[[Progress | PreparingKernels], None] | None = None) -> None:
        self.metrics = metrics
        self._report = report
        self._token_metrics: dict[str, tuple[FastCounterSeries, FastHistogramSeries, FastHistogramSeries]] = {}

    def on_progress(self, progress: Progress | PreparingKernels) -> None:
        if self._report is not None:
            self._report(progress)

    def on_ready(self, models: list[ModelInfo], device: Device) -> None:
        self.metrics.build_info.labels(version(), device).set(1)
        for info in models:
            self.metrics.model_load_seconds.labels(info.name, info.family).set(info.load_seconds)
            self.metrics.model_from_packed_cache.labels(info.name).set(info.is_from_packed_cache)
            if info.is_from_packed_cache and not info.adapter_of:
                log.info("model %s was read from the packed cache in %.2f s", info.name, info.load_seconds)
            self.metrics.model_eager.labels(info.name).set(info.is_eager)
            # Kept because they are updated for every token, and finding them by their labels takes time.
            self._token_metrics[info.name] = (
                self.metrics.generated_tokens.labels(info.name),
                self.metrics.time_to_first_token.labels(info.name),
                self.metrics.inter_token.labels(info.name),
            )

    def on_models(self, models: Iterable[DeclaredModel], budget_bytes: int) -> None:
        """Update the metrics of models that are loaded on demand: their sizes, and the number of models in each state.

        budget_bytes: limit of their total memory.
        """
        metrics = self.metrics
        metrics.models_budget_bytes.set(budget_bytes)
        counts = dict.fromkeys(get_args(ModelState), 0)
        for model in models:
            counts[model.state] += 1
            metrics.model_bytes.labels(model.name).set(model.size_bytes)
        for state, count in counts.items():
            metrics.models.labels(state).set(count)

    def on_model_load(self, name: str, outcome: str, seconds: float) -> None:
        self.metrics.model_loads.labels(name, outcome).inc()
        self.metrics.model_load_duration.observe(seconds)

    def on_model_unload(self, name: str, reason: str) -> None:
        self.metrics.model_unloads.labels(name, reason).inc()

    def on_model_gone(self, name: str) -> None:
        self.metrics.model_bytes.remove(name)

    def on_lost(self) -> None:
        metrics = self.metrics
        metrics.worker_restarts.inc()
        for gauge in (metrics.running, metrics.waiting, metrics.queue_tokens):
            gauge.set(0)
        metrics.model_running.clear()
        metrics.model_waiting.clear()
        for pool in metrics.pools.sizes:
            metrics.kv_blocks_used.labels(pool).set(0)

    def on_stats(self, stats: Stats) -> None:
        metrics = self.metrics
        metrics.running.set(stats.running)
        metrics.waiting.set(stats.waiting)
        metrics.queue_tokens.set(stats.queue_tokens)
        metrics.model_running.clear()
        metrics.model_waiting.clear()
        for gauge, values in (
            (metrics.model_running, stats.running_rows),
            (metrics.model_waiting, stats.waiting_rows),
            (metrics.kv_blocks_used, stats.kv_blocks_used),
            (metrics.state_bytes, stats.state_bytes),
            (metrics.host_bytes, stats.host_bytes),
            (metrics.device_memory, stats.device_memory_bytes),
        ):
            for label, value in values.items():
                gauge.labels(label).set(value)
        known = metrics.pools.sizes  # sizes never decrease, even while a worker is being replaced
        metrics.pools.sizes = {pool: max(blocks, known.get(pool, 0)) for pool, blocks in stats.kv_blocks_total.items()}
        for step in stats.steps:
            metrics.step_seconds.labels(step.phase).observe(step.seconds)
            metrics.batch_rows.observe(step.rows)
            metrics.batch_tokens.observe(step.tokens)
            metrics.padding_tokens.inc(step.padding_tokens)
            if step.mask_wait_seconds is not None:
                metrics.mask_wait_seconds.observe(step.mask_wait_seconds)
            for tokens in step.beam_lag_tokens:
                metrics.beam_lag_tokens.observe(tokens)
        metrics.preemptions.inc(stats.preemptions)
        metrics.wasted_tokens.inc(stats.wasted_tokens)
        metrics.prefix_queries.inc(stats.prefix_queries)
        metrics.prefix_hits.inc(stats.prefix_hits)
        for event, blocks in stats.host_blocks.items():
            metrics.host_blocks.labels(event).inc(blocks)
        for model, (drafted, accepted) in stats.drafts.items():
            metrics.drafted_tokens.labels(model).inc(drafted)
            metrics.accepted_tokens.labels(model).inc(accepted)

    def on_admitted(self, model: str, tokens: int) -> None:
        self.metrics.prompt_tokens.labels(model).inc(tokens)

    def on_first_output(self, model: str, seconds: float) -> None:
        self._token_metrics[model][1].observe(seconds)

    def on_tokens(self, model: str, count: int, seconds: float | None, sequences: int) -> None:
        generated_tokens, _, inter_token = self._token_metrics[model]
        generated_tokens.inc(count * sequences)
        if seconds is not None:
            inter_token.observe(seconds / count, count * sequences)

    def on_finished(self, model: str, event: Finished | Encoded | Failed | None) -> None:
        reason: str
        if isinstance(event, Finished):
            reason = event.hypotheses[0].finish_reason if event.hypotheses else "stop"
            self.metrics.queue_seconds.labels(model).observe(event.queue_seconds)
        elif isinstance(event, Failed):
            reason = event.code
        else:
            reason = "stop" if event is None else "encoded"
        self.metrics.finished.labels(model, reason).inc()

    def on_cancelled(self, stage: Stage, sequences: int) -> None:
        self.metrics.cancelled.labels(stage).inc(sequences)
