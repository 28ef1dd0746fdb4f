"""Our metrics, which use no locks, render the same text as metrics of prometheus_client."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from server.system.fast_metrics import FastCounter, FastHistogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)


def test_rendered_text_equals_prometheus_client() -> None:
    reference, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("gap_seconds", "Gaps.", ["model"], buckets=BOUNDS, registry=reference)
    counter = Counter("made_total", "Made.", ["model"], registry=reference)
    fast_histogram = FastHistogram("gap_seconds", "Gaps.", BOUNDS, "model")
    fast_counter = FastCounter("made", "Made.", "model")
    ours.register(fast_histogram)
    ours.register(fast_counter)
    rng = random.Random(3)
    values = [*BOUNDS, 0.0, 5.0, *(rng.uniform(0, 2) ** 4 for _ in range(200))]
    for model in ("a", "b"):
        for metric in (histogram, fast_histogram, counter, fast_counter):
            metric.labels(model)
    for value in values:
        for _ in range(3):
            histogram.labels("a").observe(value)
            fast_histogram.labels("a").observe(value)
        counter.labels("b").inc(2)
        fast_counter.labels("b").inc(2)
    text = generate_latest(ours)
    assert text == generate_latest(reference) and b'gap_seconds_count{model="a"} 618.0' in text


def test_one_value_observed_several_times() -> None:
    series = FastHistogram("x", "X.", BOUNDS, "model").labels("a")
    series.observe(0.01, 5)
    assert series.counts == [0, 5, 0, 0, 0] and series.total == 0.05
