"""The numbers a Prometheus server reads at `/metrics`. Knows names, labels and buckets, not whence
the numbers come.

Labels take values from fixed sets only: models that are loaded, route templates that exist, statuses, reasons.
Source: https://prometheus.io/docs/practices/naming/ and the exposition format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from server.tallies import Tally, TallyHistogram

disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LAGS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class _PoolSizes(Collector):
    """`kv_blocks_total{pool}`: how many blocks each pool was given.

    The suffix `_total` is a counter's, by the naming rules; a size that never falls while a pool lives may be one.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily("triptych_kv_blocks", "KV blocks that each pool was given.", labels=["pool"])
        for pool, blocks in self.sizes.items():
            family.add_metric([pool], blocks)
        yield family


class Metrics:
    """All metrics, in a registry of their own, so that several servers in one process (tests) do not share numbers."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"triptych_{name}", text, tuple(labels), registry=registry)

        def gauge(name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(f"triptych_{name}", text, tuple(labels), registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float], labels: Iterable[str] = ()) -> Histogram:
            return Histogram(f"triptych_{name}", text, tuple(labels), registry=registry, buckets=tuple(buckets))

        def tally(name: str, text: str, label: str) -> Tally:
            made = Tally(f"triptych_{name}", text, label)
            registry.register(made)
            return made

        def tallied(name: str, text: str, buckets: tuple[float, ...], label: str) -> TallyHistogram:
            made = TallyHistogram(f"triptych_{name}", text, buckets, label)
            registry.register(made)
            return made

        self.requests = counter("requests_total", "HTTP requests answered.", ["route", "status"])
        self.finished = counter("requests_finished_total", "Sequences finished, by reason.", ["model", "reason"])
        self.rejected = counter("requests_rejected_total", "Requests refused, by error code.", ["reason"])
        self.cancelled = counter("requests_cancelled_total", "Requests whose client left, by stage.", ["stage"])

        self.running = gauge("requests_running", "Sequences the engine works on.")
        self.waiting = gauge("requests_waiting", "Sequences that wait for the engine.")
        self.queue_tokens = gauge("queue_tokens", "Tokens of the sequences that wait.")
        self.streams_open = gauge("streams_open", "Event streams being sent.")

        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens accepted.", ["model"])
        self.generated_tokens = tally("generated_tokens", "Tokens generated.", "model")
        self.padding_tokens = counter("padding_tokens_total", "Tokens computed only to fill a shape.")
        self.wasted_tokens = counter("wasted_tokens_total", "Tokens computed and thrown away.")

        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token.", _LATENCY, ["model"]
        )
        self.inter_token = tallied("inter_token_seconds", "Between two tokens of a sequence.", _SHORT, "model")
        self.request_seconds = histogram("request_seconds", "From arrival to the last byte.", _LATENCY, ["route"])
        self.queue_seconds = histogram("queue_seconds", "From admission to the first step.", _LATENCY, ["model"])
        self.tokenize_seconds = histogram("tokenize_seconds", "Turning a request's text into ids.", _SHORT)

        self.step_seconds = histogram("step_seconds", "One step of the engine.", (*_SHORT, 2.5, 5.0), ["phase"])
        self.batch_rows = histogram("batch_rows", "Sequences of one step.", _ROWS)
        self.batch_tokens = histogram("batch_tokens", "Tokens of one step.", _TOKENS)

        self.beam_lag_tokens = histogram(
            "beam_lag_tokens", "Tokens made by streaming beams that are not agreed on yet, at each step.", _LAGS
        )
        self.mask_wait_seconds = histogram(
            "mask_wait_seconds", "How long a step waited for its grammars' masks after the forward pass.", _SHORT
        )

        self.kv_blocks_used = gauge("kv_blocks_used", "KV blocks in use.", ["pool"])
        self.pools = _PoolSizes()
        registry.register(self.pools)
        self.preemptions = counter("preemptions_total", "Sequences that lost their KV blocks and started over.")
        self.prefix_queries = counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")
        self.drafted_tokens = counter(
            "speculative_drafted_tokens_total", "Tokens guessed before the model judged them.", ["model"]
        )
        self.accepted_tokens = counter(
            "speculative_accepted_tokens_total", "Guessed tokens that the model chose itself.", ["model"]
        )

        self.worker_restarts = counter("worker_restarts_total", "Workers that had to be replaced.")
        self.model_load_seconds = gauge("model_load_seconds", "Time one model took to load.", ["model", "family"])
        self.device_memory = gauge("device_memory_bytes", "Memory of the worker's device, by kind.", ["kind"])
        self.build_info = gauge("build_info", "Always 1; the labels say what is running.", ["version", "device"])

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
