"""All Prometheus metrics of the server: names, labels, buckets and help texts. `/metrics` renders them.

Label values come from fixed sets only: loaded models, route templates, statuses and reasons.
Source: https://prometheus.io/docs/practices/naming/ and the text exposition format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from server.system.fast_metrics import FastCounter, FastHistogram

disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_SECONDS = (*_LATENCY_SECONDS, 120.0, 300.0, 600.0, 1800.0)
"""Buckets for whole requests. They go up to 30 minutes, because answers have no time limit by default."""
_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LAG_TOKENS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class _PoolSizes(Collector):
    """Collector of the metric `triptych_kv_blocks_total{pool}`: number of blocks in each KV pool.

    It is sent as a counter, because Prometheus reserves the suffix `_total` for counters, and the size of a pool never
    falls.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily("triptych_kv_blocks", "Number of blocks in each KV pool.", labels=["pool"])
        for pool, blocks in self.sizes.items():
            family.add_metric([pool], blocks)
        yield family


class Metrics:
    """All metrics of one server. Each object has its own registry: servers in one process do not share counts."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def fast_counter(name: str, description: str, *labels: str) -> FastCounter:
            found = FastCounter(f"triptych_{name}", description, *labels)
            registry.register(found)
            return found

        def fast_histogram(name: str, description: str, bounds: Sequence[float], label: str) -> FastHistogram:
            found = FastHistogram(f"triptych_{name}", description, bounds, label)
            registry.register(found)
            return found

        def counter(name: str, description: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"triptych_{name}", description, tuple(labels), registry=registry)

        def gauge(name: str, description: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(f"triptych_{name}", description, tuple(labels), registry=registry)

        def histogram(name: str, description: str, bounds: Iterable[float], labels: Iterable[str] = ()) -> Histogram:
            return Histogram(f"triptych_{name}", description, tuple(labels), registry=registry, buckets=tuple(bounds))

        self.requests = fast_counter("requests", "HTTP requests answered.", "route", "status")
        self.finished = fast_counter("requests_finished", "Sequences finished, by reason.", "model", "reason")
        self.rejected = counter(
            "requests_rejected_total",
            "Requests rejected, by error code; with status 429, by limit.",
            ["reason"],
        )
        self.cancelled = counter(
            "requests_cancelled_total", "Sequences cancelled because the client disconnected, by stage.", ["stage"]
        )

        self.running = gauge("requests_running", "Sequences that the engine is processing.")
        self.waiting = gauge("requests_waiting", "Sequences waiting for the engine.")
        self.model_running = gauge(
            "model_requests_running", "Sequences that the engine is processing, by model.", ["model"]
        )
        self.model_waiting = gauge("model_requests_waiting", "Sequences waiting for the engine, by model.", ["model"])
        self.queue_tokens = gauge("queue_tokens", "Tokens of the sequences waiting for the engine.")
        self.streams_open = gauge("streams_open", "Event streams in progress.")

        self.prompt_tokens = fast_counter("prompt_tokens", "Prompt tokens accepted.", "model")
        self.generated_tokens = fast_counter("generated_tokens", "Tokens generated.", "model")
        self.padding_tokens = counter("padding_tokens_total", "Padding tokens computed to fill a batch shape.")
        self.wasted_tokens = counter("wasted_tokens_total", "Tokens computed and then discarded.")

        self.time_to_first_token = fast_histogram(
            "time_to_first_token_seconds",
            "Time from the queue of the engine to the first token of a sequence; tokenizing is not in it.",
            _LATENCY_SECONDS,
            "model",
        )
        self.inter_token = fast_histogram(
            "inter_token_seconds", "Time between two tokens of a sequence.", _SHORT_SECONDS, "model"
        )
        self.request_seconds = fast_histogram(
            "request_seconds", "Time from the arrival of a request to its last byte.", _REQUEST_SECONDS, "route"
        )
        self.queue_seconds = fast_histogram(
            "queue_seconds", "Time from admission of a sequence to its first step.", _LATENCY_SECONDS, "model"
        )
        self.tokenize_seconds = histogram("tokenize_seconds", "Time to tokenize a request.", _SHORT_SECONDS)

        self.step_seconds = histogram(
            "step_seconds", "Duration of one engine step.", (*_SHORT_SECONDS, 2.5, 5.0), ["phase"]
        )
        self.batch_rows = histogram("batch_rows", "Sequences in one engine step.", _ROWS)
        self.batch_tokens = histogram("batch_tokens", "Tokens in one engine step.", _TOKENS)

        self.beam_lag_tokens = histogram(
            "beam_lag_tokens", "Tokens of a streaming beam search not yet sent, because beams differ.", _LAG_TOKENS
        )
        self.mask_wait_seconds = histogram(
            "mask_wait_seconds", "Time a step waited for grammar masks after the forward pass.", _SHORT_SECONDS
        )

        self.kv_blocks_used = gauge("kv_blocks_used", "KV blocks in use.", ["pool"])
        self.pools = _PoolSizes()
        self.state_bytes = gauge(
            "state_bytes",
            "Memory of the states of mixers: of running sequences, and of snapshots in the prefix cache.",
            ["kind"],
        )
        self.preemptions = counter("preemptions_total", "Sequences preempted: their KV blocks were taken back.")
        self.prefix_queries = counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")
        self.host_bytes = gauge(
            "kv_host_bytes", "Host memory for KV blocks of the prefix cache: used, and in total.", ["kind"]
        )
        self.host_blocks = counter(
            "kv_host_blocks_total",
            "KV blocks of the prefix cache copied to host memory (spilled) and back (restored), and copies dropped "
            "because their checksum was wrong (damaged).",
            ["event"],
        )
        self.drafted_tokens = counter(
            "speculative_drafted_tokens_total", "Draft tokens proposed by speculative decoding.", ["model"]
        )
        self.accepted_tokens = counter(
            "speculative_accepted_tokens_total", "Draft tokens accepted by the model.", ["model"]
        )

        self.worker_restarts = counter("worker_restarts_total", "Worker processes that were lost.")
        self.model_load_seconds = gauge("model_load_seconds", "Time to load a model.", ["model", "family"])
        self.model_from_packed_cache = gauge(
            "model_from_packed_cache", "1 for a model that was read from the packed cache, else 0.", ["model"]
        )
        self.model_eager = gauge(
            "model_eager",
            "1 for a model whose steps run operation by operation, else 0. The reason is in /info.",
            ["model"],
        )
        self.models = gauge("models", "Models that are loaded on demand, by state.", ["state"])
        self.model_bytes = gauge("model_bytes", "Memory counted for a model that is loaded on demand.", ["model"])
        self.models_budget_bytes = gauge("models_budget_bytes", "Memory of all models together; 0 for no limit.")
        self.model_loads = counter("model_loads_total", "Loads of models on demand, by outcome.", ["model", "outcome"])
        self.model_unloads = counter("model_unloads_total", "Unloads of models, by reason.", ["model", "reason"])
        self.model_load_duration = histogram(
            "model_load_duration_seconds", "Duration of a load on demand, with the wait for room.", _REQUEST_SECONDS
        )
        self.device_memory = gauge("device_memory_bytes", "Memory of the worker's device, by kind.", ["kind"])
        self.build_info = gauge("build_info", "Always 1; the labels hold version and device.", ["version", "device"])
        registry.register(self.pools)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
