"""Pictures as SVG text: fast enough to be drawn anew at every key, and readable on light and on dark pages.

Lines and letters take the colour of the page's text; the four colours of the series have a contrast of at least 3 to 1
to white and to black alike, and a letter or a marker goes with each. A picture is an image with a title and a
description for those who do not see it.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from ..drawing import BLUE, GREEN, PURPLE, RED

WIDTH, LEFT, RIGHT = 640, 64, 16  # pixels
COLORS = {"MHA": BLUE, "GQA": RED, "MQA": GREEN, "MLA": PURPLE, "naive": RED, "absorbed": PURPLE}
MARKS = {"MHA": "M0,-7L7,0L0,7L-7,0Z", "GQA": "M0,-7L7,6L-7,6Z", "MQA": "M-6,-6H6V6H-6Z",
         "MLA": "M7,0A7,7 0 1 1 -7,0A7,7 0 1 1 7,0Z"}
MARKS |= {"naive": MARKS["MQA"], "absorbed": MARKS["MLA"]}


def picture(title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """An image of ``parts``, which are SVG already."""
    return (f'<svg role="img" viewBox="0 0 {WIDTH} {height:g}" xmlns="http://www.w3.org/2000/svg" '
            f'style="width:100%;max-width:{WIDTH}px;height:auto;display:block;color:inherit" font-size="14" '
            f'font-family="inherit" fill="currentColor"><title>{escape(title)}</title>'
            f'<desc>{escape(description)}</desc>{"".join(parts)}</svg>')


def text(x: float, y: float, words: str, anchor: str = "start", **how: str) -> str:
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in how.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, opacity: float = 1, dash: str = "") -> str:
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
            f'stroke-opacity="{opacity:g}" stroke-dasharray="{dash}"/>')


def curve(points: Iterable[tuple[float, float]], color: str, dash: str = "") -> str:
    path = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2.5" stroke-dasharray="{dash}"/>'


def mark(kind: str, x: float, y: float) -> str:
    return f'<path d="{MARKS[kind]}" transform="translate({x:.1f},{y:.1f})" fill="{COLORS[kind]}"/>'


def scale(title: str, rows: Sequence[tuple[str, str, float | None, str]], ends: tuple[float, float],
          ticks: Sequence[tuple[float, str]], limit: tuple[float, str]) -> str:
    """Each row a mark on one logarithmic scale that stays where it is, so that a mark moves with its value alone.

    Marks, not bars: a logarithmic scale has no zero for a bar to start from. What lies off the scale waits at its end,
    with an arrow; what is not above 0 has no mark.

    Parameters
    ----------
    rows
        Kind, label, value or None, and the value in words.
    ends
        What the scale's left and right end stand for.
    ticks
        Values on the scale and their names.
    limit
        A value to hold the marks against, drawn as a line, and what it is called.
    """
    left, right, top = 90, WIDTH - 150, 34
    low, high = map(math.log10, ends)
    bottom = top + 30 * len(rows)

    def across(value: float) -> float:
        return left + (right - left) * min(max((math.log10(value) - low) / (high - low), 0), 1)

    parts = [text((left + right) / 2, bottom + 38, f"logarithmic scale, fixed: it starts at {ticks[0][1]}, not at 0",
                  "middle", font_size="12")]
    for value, name in ticks:
        parts += [line(across(value), top, across(value), bottom, 0.2),
                  text(across(value), bottom + 18, name, "middle", font_size="12")]
    value, name = limit
    if value > 0:
        x = across(value)
        parts += [line(x, top - 12, x, bottom, 0.8, "4 4"),
                  text(x, top - 18, name, "end" if x > (left + right) / 2 else "start", font_size="12")]
    for i, (kind, label, value, words) in enumerate(rows):
        y = top + 15 + 30 * i
        parts += [text(left - 14, y + 5, label, "end"), line(left, y, right, y, 0.2), text(right + 14, y + 5, words)]
        if value:
            x = across(value)
            parts.append(mark(kind, x, y))
            if not ends[0] <= value <= ends[1]:
                parts.append(text(x + (12 if x == left else -12), y + 5, "\u2190" if x == left else "\u2192", "middle"))
    described = "; ".join(f"{label}: {words}" for _, label, _, words in rows)
    fixed = f"Fixed logarithmic scale from {ticks[0][1]} to {ticks[-1][1]}."
    return picture(title, f"{described}; line at {name}. {fixed}", bottom + 46, parts)


class Log:
    """A plot with log scales: pixels of values, decades as grid lines, names of the axes."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], x_name: str, y_name: str, height: float = 320):
        self.x, self.y, self.height = tuple(map(math.log10, x)), tuple(map(math.log10, y)), height
        self.bottom = height - 46
        self.parts = [text((LEFT + WIDTH - RIGHT) / 2, height - 6, x_name, "middle"),
                      text(14, (16 + self.bottom) / 2, y_name, "middle",
                           transform=f"rotate(-90 14 {(16 + self.bottom) / 2:.1f})")]
        for power in self._powers(self.x):
            at = self.at(10.0**power, 10.0 ** self.y[0])[0]
            self.parts += [line(at, 16, at, self.bottom, 0.2),
                           text(at, self.bottom + 18, number(power), "end" if at > WIDTH - 30 else "middle")]
        for power in self._powers(self.y):
            at = self.at(10.0 ** self.x[0], 10.0**power)[1]
            self.parts += [line(LEFT, at, WIDTH - RIGHT, at, 0.2), text(LEFT - 6, at + 5, number(power), "end")]

    @staticmethod
    def _powers(ends: tuple[float, float]) -> range:
        """Powers of ten between the ends, not more than eight of them."""
        low, high = math.ceil(ends[0] - 1e-9), math.floor(ends[1] + 1e-9)
        return range(low, high + 1, max(1, -(-(high - low) // 8)))

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels; both values must be above 0."""
        across, up = ((math.log10(value) - low) / (high - low) for value, (low, high) in ((x, self.x), (y, self.y)))
        return LEFT + across * (WIDTH - RIGHT - LEFT), self.bottom - up * (self.bottom - 16)


def number(power: int) -> str:
    """10 to a power, short: 1,000, then 10^6."""
    return f"{10**power:,}" if 0 <= power < 5 else f"{10.0**power:g}" if -3 < power < 0 else f"10^{power}"
