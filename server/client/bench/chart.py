"""Charts as SVG, without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 36, 48
COLOURS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a", "#e03e3e", "#5c5c5c", "#9a8000")

Points = Sequence[tuple[float, float]]


def chart(title: str, x_name: str, y_name: str, series: Mapping[str, Points], scatter: bool = False) -> str:
    """Draw a line chart with a logarithmic x axis, or a scatter chart with a linear one. The y axis starts at zero.

    x_name, y_name: labels of the axes.
    series: points (x, y) of each line, by the name of the line. At least one must have points.
    scatter: draw points without lines; the x axis then starts at zero.
    Returns the SVG document.
    """
    drawn = {name: points for name, points in series.items() if points}
    xs = sorted({x for points in drawn.values() for x, _ in points})
    if scatter:
        x_step = _round_step(xs[-1] / 5)
        xs = [number * x_step for number in range(math.ceil(xs[-1] / x_step) + 1)]
    step = _round_step(max(y for points in drawn.values() for _, y in points) / 5)
    highest = step * math.ceil(max(y for points in drawn.values() for _, y in points) / step)
    scale = float if scatter else math.log2
    low, high = scale(xs[0]), scale(xs[-1])

    def across(x: float) -> float:
        return LEFT + (scale(x) - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - y / highest * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 20, title, size=14),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name, anchor="middle"),
        f'<g transform="rotate(-90 14 {HEIGHT / 2})">{_text(14, HEIGHT / 2, y_name, anchor="middle")}</g>',
    ]
    for number in range(round(highest / step) + 1):
        y = up(number * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e3e3e3"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{number * step:g}", anchor="end"))
    parts += [_text(across(x), HEIGHT - BOTTOM + 16, f"{x:g}", anchor="middle") for x in xs]
    for index, (name, points) in enumerate(drawn.items()):
        colour = COLOURS[index % len(COLOURS)]
        line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        if not scatter:
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        y = TOP + 8 + 18 * index
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y}h16" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - RIGHT + 32, y + 4, name))
    return "\n".join([*parts, "</svg>", ""])


def _round_step(rough: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(text)}</text>'
