"""Counts without locks read as those of prometheus_client do, character for character."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from server.tallies import Tally, TallyHistogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)


def test_a_histogram_and_a_counter_read_as_the_library_s_own() -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("gap_seconds", "Gaps.", ["model"], buckets=BOUNDS, registry=theirs)
    counter = Counter("made_total", "Made.", ["model"], registry=theirs)
    spread, tally = TallyHistogram("gap_seconds", "Gaps.", BOUNDS, "model"), Tally("made", "Made.", "model")
    ours.register(spread)
    ours.register(tally)
    rng = random.Random(3)
    values = [*BOUNDS, 0.0, 5.0, *(rng.uniform(0, 2) ** 4 for _ in range(200))]
    for model in ("a", "b"):
        histogram.labels(model), spread.labels(model), counter.labels(model), tally.labels(model)
    for value in values:
        for _ in range(3):
            histogram.labels("a").observe(value)
            spread.labels("a").observe(value)
        counter.labels("b").inc(2)
        tally.labels("b").inc(2)
    text = generate_latest(ours)
    assert text == generate_latest(theirs) and b'gap_seconds_count{model="a"} 618.0' in text


def test_the_same_value_many_times_at_once() -> None:
    spread = TallyHistogram("x", "X.", BOUNDS, "model").labels("a")
    spread.observe(0.01, 5)
    assert spread.counts == [0, 5, 0, 0, 0] and spread.total == 0.05
