"""What every figure is made of: a `Plot`, one style for curves and bars, and boxes with arrows for diagrams.

Figures are built without pyplot: nothing is drawn until somebody asks for the PNG, and there is no window and no global
state. The look is that of ``data/style.mplstyle``; a marker, dash or hatch always goes with a colour. The background is
white and opaque, to be read on light and on dark pages.
"""
from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 7.8  # inches
SKY, ORANGE, BLUE, RED, GREEN, PURPLE = "#56B4E9", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY, INK = "#F2F2F2", "#333333"


class Look(NamedTuple):
    """How one series is drawn."""

    color: str
    marker: str
    linestyle: Any
    hatch: str

    @property
    def line(self) -> dict:
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle}


LOOKS = (Look(BLUE, "o", "-", ""), Look(RED, "s", "--", "///"), Look(GREEN, "^", "-.", "..."),
         Look(PURPLE, "D", ":", "xxx"), Look(INK, "v", (0, (5, 1, 1, 1, 1, 1)), "++"))
NESTED = (16, 10, 7, 6)  # marker sizes, largest drawn first: where two series have one value, both are seen


@cache
def _style() -> dict:
    from matplotlib import rc_params_from_file
    return dict(rc_params_from_file(Path(__file__).parent / "data" / "style.mplstyle", use_default_template=False))


def style() -> AbstractContextManager:
    """The look of all figures, for as long as it is entered."""
    from matplotlib import rc_context
    return rc_context(_style())


@dataclass(frozen=True)
class Plot:
    """A figure, a description for those who do not see it, and the numbers it shows.

    In a notebook it displays as the picture; its text form is the numbers, which strict comparison holds.
    """

    figure: Figure
    alt: str
    numbers: str

    def png(self, dpi: int = 110) -> bytes:
        """The figure as PNG. No version of anything is written into it, so that equal figures give equal bytes."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from PIL.Image import fromarray
        buffer = io.BytesIO()
        with style():
            self.figure.set_dpi(dpi)
            canvas = FigureCanvasAgg(self.figure)
            canvas.draw()  # once; savefig would draw twice, to learn the size of what it is about to draw
        fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(buffer, "png", dpi=(dpi, dpi))
        return buffer.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict]:
        return self.png(), {"alt": self.alt}

    def __repr__(self) -> str:
        return self.numbers


def finish(figure: Figure, alt: str, lines: Sequence[str]) -> Plot:
    """A `Plot` whose numbers are ``lines``, its layout settled: it would move a little with every drawing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        with style():
            engine.execute(figure)  # without drawing, which takes as long again
        figure.set_layout_engine("none")
    return Plot(figure, " ".join(alt.split()), "\n".join(lines))


def axes(height: float, columns: int = 1, width: float = WIDTH, **how: Any) -> tuple[Figure, Any]:
    """A figure, and axes side by side in it: one of them, or an array."""
    from matplotlib.figure import Figure
    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        made = figure.subplots(1, columns, **how)
        for ax in np.ravel(made):
            ax.grid(alpha=_style()["grid.alpha"])  # ticks to come would be made outside the style
    return figure, made


def above(ax: Any) -> None:
    """The legend above the axes, where it hides no curve."""
    columns = 2 if max(map(len, ax.get_legend_handles_labels()[1])) < 36 else 1
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False)


def powers_of_two(ax: Any, *names: str) -> None:
    """Log scales on the axes ``names`` (x, y) whose ticks are written out."""
    for name in names:
        getattr(ax, f"set_{name}scale")("log", base=2)
        axis = getattr(ax, f"{name}axis")
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:.4g}")


def reaching(values: Any, low: float, high: float) -> tuple[float, float]:
    """Limits of an axis: ``low`` and ``high``, the range of the sliders, and further only where ``values`` leave it.

    Limits that follow the data would make what stays seem to move, and what moves seem to stay.
    """
    return min(low, np.min(values)), max(high, np.max(values))


def tint(color: str, share: float = 0.3) -> tuple[float, ...]:
    """A pale version of ``color``, for areas with text on them."""
    return tuple(1 - share * (1 - int(color[i : i + 2], 16) / 255) for i in (1, 3, 5))


# --- diagrams ---------------------------------------------------------------------------------------------------------

def canvas(height: float) -> tuple[Figure, Any]:
    """A figure and axes that count inches."""
    from matplotlib.figure import Figure
    with style():
        figure = Figure(figsize=(WIDTH, height))
        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    ax.set_axis_off()
    return figure, ax


def frame(ax: Any, x: float, y: float, width: float, height: float, **how: Any) -> None:
    """A rectangle centred at (x, y)."""
    from matplotlib.patches import Rectangle
    look = {"linewidth": 1.2, "edgecolor": INK} | how
    ax.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **look))


def box(ax: Any, x: float, y: float, text: str, width: float = 1.3, height: float = 0.8, color: Any = GREY) -> None:
    """A rectangle with text in it."""
    frame(ax, x, y, width, height, facecolor=color)
    ax.text(x, y, text, ha="center", va="center", fontsize=10, linespacing=1.35)


def arrow(ax: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0})
