"""Bar charts as SVG, without a plotting library: one group of horizontal bars for each thing that is compared."""

from __future__ import annotations

import html
from collections.abc import Mapping

from server.client.bench.chart import COLOURS

WIDTH, LEFT, RIGHT = 760, 190, 70
BAR, GAP, TOP = 14, 12, 56

Groups = Mapping[str, Mapping[str, float]]
"""Name of the group → name of the bar → value."""


def bars(title: str, unit: str, groups: Groups) -> str:
    """Draw the groups below one another. Each group has its own scale: its longest bar has the full length.

    unit: unit of the values, such as `tokens/s`. Returns the SVG document.
    """
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    height = TOP + sum(len(values) * BAR + GAP for values in groups.values()) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(12, 20, f"{title} ({unit}; longer is better)", size=14),
    ]
    across = 12.0
    for name, colour in colours.items():
        parts.append(f'<rect x="{across:.0f}" y="32" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(across + 14, 41, name))
        across += 26 + 6.2 * len(name)
    y = TOP
    for group, values in groups.items():
        most = max(values.values())
        parts.append(_text(LEFT - 8, y + len(values) * BAR / 2 + 4, group, anchor="end"))
        for name, value in values.items():
            length = value / most * (WIDTH - LEFT - RIGHT)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{colours[name]}"/>')
            parts.append(_text(LEFT + length + 5, y + BAR - 4, f"{value:,.0f}"))
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(text)}</text>'
