"""A table of the parts of request times: the parts that the server reports, and the rest (client and network)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.client.bench.load import Sample
from server.client.bench.summary import PERCENTILES, Level, percentile

PARTS: Mapping[str, str] = {
    "arrival": "arrival: received, checked, admitted",
    "tokenize": "tokenizer",
    "hand_over": "hand-over to the worker",
    "step": "step: the model",
    "hand_back": "hand-back to the HTTP process",
    "render": "write: the answer is rendered",
}
"""Names of the parts in the server's header to their names in the table, in order.

The header may have further parts.
"""
REST = "client, connection and HTTP library"


def parts_of(level: Level) -> dict[str, list[float]]:
    """The time of each part in seconds: one value for each complete answer whose header has parts.

    The parts have the order of `PARTS`, and `REST` (the time outside of the server) is the last one.
    """
    samples = [sample for sample in level.succeeded if sample.parts]
    if not samples:
        return {}
    names = dict.fromkeys([*PARTS, *(name for sample in samples for name in sample.parts)])
    found = {name: [sample.parts.get(name, 0.0) for sample in samples] for name in names}
    found = {name: seconds for name, seconds in found.items() if any(seconds)}
    return found | {REST: [_rest(sample) for sample in samples]}


def _rest(sample: Sample) -> float:
    return sample.ended - sample.sent - sum(sample.parts.values())


def breakdown_table(levels: Sequence[Level]) -> str:
    """Format the parts of each level as text: percentiles in milliseconds, and the share in the total time."""
    lines = []
    for level in levels:
        parts = parts_of(level)
        if not parts:
            lines.append(f"{level.load}: the server reports no parts of the time; it needs Triptych")
            continue
        total = sum(map(sum, parts.values())) or 1.0
        rows = [(PARTS.get(name, name), seconds) for name, seconds in parts.items()]
        width = max(len(name) for name, _ in rows)
        head = "  ".join(f"{f'p{percent}':>8}" for percent in PERCENTILES)
        lines.append(f"{f'{level.load}, ms':<{width}}  {head}     share")
        for name, seconds in rows:
            cells = "  ".join(f"{percentile(seconds, percent) * 1000:8.3f}" for percent in PERCENTILES)
            lines.append(f"{name:<{width}}  {cells}  {sum(seconds) / total:8.1%}")
    return "\n".join(lines)
