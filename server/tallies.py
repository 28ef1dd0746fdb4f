"""A counter and a histogram that take no locks: for what is counted with every token, by one thread only.

Each number of `prometheus_client` has a lock of its own, and a histogram tries its buckets one by one: some µs for each
token of each stream. Here it is an addition; what Prometheus reads is made when it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Sum:
    """One series of a `Tally`."""

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int) -> None:
        self.value += amount


class Tally(Collector):
    """A counter with one label. name: without `_total`."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self._about = name, text, label
        self._series: dict[str, Sum] = {}

    def labels(self, value: str) -> Sum:
        return self._series.setdefault(value, Sum())

    def collect(self) -> Iterable[Metric]:
        name, text, label = self._about
        family = CounterMetricFamily(name, text, labels=[label])
        for value, series in self._series.items():
            family.add_metric([value], series.value)
        yield family


class Spread:
    """One series of a `TallyHistogram`. counts: of each bucket alone, the last one without an upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times


class TallyHistogram(Collector):
    """A histogram with one label. buckets: upper bounds, rising, that belong to their bucket."""

    def __init__(self, name: str, text: str, buckets: Sequence[float], label: str) -> None:
        self._about = name, text, label
        self._bounds = tuple(map(float, buckets))
        self._series: dict[str, Spread] = {}

    def labels(self, value: str) -> Spread:
        return self._series.setdefault(value, Spread(self._bounds))

    def collect(self) -> Iterable[Metric]:
        name, text, label = self._about
        family = HistogramMetricFamily(name, text, labels=[label])
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for value, series in self._series.items():
            buckets = list(zip(names, map(float, accumulate(series.counts)), strict=True))
            family.add_metric([value], buckets, series.total)
        yield family
