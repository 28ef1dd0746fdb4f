"""Join the Prometheus metrics of all replicas to one page. Each sample gets the label `replica`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

LABEL = "replica"


def gather(pages: Mapping[str, bytes]) -> bytes:
    """Join the metrics pages of all replicas to one page. pages: Prometheus text of each replica, by its name."""
    families: dict[str, Metric] = {}
    for replica, page in sorted(pages.items()):
        for family in text_string_to_metric_families(page.decode()):
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            known.samples.extend(_labelled(family.samples, replica))
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


def _labelled(samples: Iterable[Sample], replica: str) -> Iterator[Sample]:
    for sample in samples:
        yield sample._replace(labels={LABEL: replica, **sample.labels})


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
