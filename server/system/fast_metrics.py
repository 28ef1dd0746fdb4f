"""A counter and a histogram without locks, for metrics that change with every request or token and have one writer.

`prometheus_client` takes a lock for each update and tries a histogram's buckets one by one, which costs microseconds
for each token of each stream. Here an update is an addition; the Prometheus objects are built when `/metrics` is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class FastCounterSeries:
    """The value of a `FastCounter` for one combination of label values."""

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount


class FastCounter(Collector):
    """A counter with labels.

    name: metric name without the suffix `_total`.
    description: help text of the metric.
    labels: names of the labels.
    """

    def __init__(self, name: str, description: str, *labels: str) -> None:
        self._name, self._description, self._labels = name, description, labels
        self._series: dict[tuple[str, ...], FastCounterSeries] = {}

    def labels(self, *values: str) -> FastCounterSeries:
        """The counter for a combination of label values, in the order of the names."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = FastCounterSeries()
        return found

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._description, labels=self._labels)
        for values, series in self._series.items():
            family.add_metric(values, series.value)
        yield family


class FastHistogramSeries:
    """The values of a `FastHistogram` for one label value.

    counts: observations per bucket, not cumulative; the last bucket has no upper bound.
    total: sum of all observations.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Record an observation `times` times."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times


class FastHistogram(Collector):
    """A histogram with one label.

    name, description: metric name and help text.
    bounds: inclusive upper bounds of the buckets, ascending.
    label: name of the label.
    """

    def __init__(self, name: str, description: str, bounds: Sequence[float], label: str) -> None:
        self._name, self._description, self._label = name, description, label
        self._bounds = tuple(map(float, bounds))
        self._series: dict[str, FastHistogramSeries] = {}

    def labels(self, value: str) -> FastHistogramSeries:
        found = self._series.get(value)
        if found is None:
            found = self._series[value] = FastHistogramSeries(self._bounds)
        return found

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._description, labels=[self._label])
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for value, series in self._series.items():
            buckets = list(zip(names, map(float, accumulate(series.counts)), strict=True))
            family.add_metric([value], buckets, series.total)
        yield family
