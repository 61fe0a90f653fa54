"""The matrix of faults and checks as one picture."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from .drawing import BLUE, GREY, INK, SKY, Plot, finish, tint
from .faults import FAULTS, rank, rotation, scale, weights
from .matrix import CAUGHT, COARSE, FINE, MARKS, NEVER, PAST, Matrix, stored, summary

ROW, COLUMN, LEFT, HEAD, FOOT = 0.17, 0.135, 2.42, 2.75, 0.95  # inches
FAMILIES = {f.id: name for name, module in (("rank", rank), ("rotation", rotation), ("scale", scale),
                                            ("weights and norms", weights)) for f in module.FAULTS}
SHADES = {NEVER: "#FFFFFF", PAST: GREY, FINE: tint(SKY, 0.8), COARSE: tint(SKY, 0.8), CAUGHT: BLUE}

SIGNS = {PAST: {"marker": ".", "markersize": 2.5}, FINE: {"marker": "_", "markersize": 6},
         COARSE: {"marker": "|", "markersize": 6}}


def family(fault: str) -> str:
    counted = {f.id for f in FAULTS if "elements" in f.changes}
    return "counts" if fault in counted else FAMILIES.get(fault, "attention")


def distinct(matrix: Matrix) -> list[tuple[str, list[str]]]:
    """Label and checks of every column: checks of one case that see exactly the same share one."""
    found: dict[tuple[str, str], list[str]] = {}
    for check in matrix.checks:
        found.setdefault((check.split(".")[0], matrix.column(check)), []).append(check)
    return [(checks[0] if len(checks) == 1 else f"{checks[0]} + {len(checks) - 1}", checks)
            for checks in found.values()]


def fault_matrix(matrix: Matrix | None = None) -> Plot:
    """Which check sees which fault; by default as `mla_lab.matrix.stored`."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    matrix = matrix or stored()
    columns, faults = distinct(matrix), list(matrix.rows)
    cells = np.array([list(matrix.column(checks[0])) for _, checks in columns]).T  # [fault, column]
    width, height = COLUMN * len(columns), ROW * len(faults)
    size = LEFT + width + 0.3, HEAD + height + FOOT
    figure = Figure(figsize=size, facecolor="white")
    ax = figure.add_axes((LEFT / size[0], FOOT / size[1], width / size[0], height / size[1]),
                         xlim=(-0.5, len(columns) - 0.5), ylim=(len(faults) - 0.5, -0.5))
    order = list(SHADES)
    ax.imshow(np.vectorize(order.index)(cells), cmap=ListedColormap(list(SHADES.values())), vmin=-0.5,
              vmax=len(order) - 0.5, aspect="auto", interpolation="nearest")
    for mark, look in SIGNS.items():
        y, x = np.nonzero(cells == mark)
        ax.plot(x, y, linestyle="", color=INK, **look)
    label(ax, [name for name, _ in columns])
    ax.set_yticks(range(len(faults)), faults, fontsize=10)
    ax.tick_params(length=0)
    ax.set_xticks([])
    lines_between(ax, [family(f) for f in faults], [checks[0].split(".")[0] for _, checks in columns])
    legend(ax)
    alone = [name for name in faults if len(matrix.caught_by(name)) == 1]
    alt = (f"A grid of {len(faults)} faults by {len(matrix.checks)} checks, dark where the check catches the fault. "
           "Each row and each column has a dark cell. Counts are caught by case 1 and ranks by case 2; faults of "
           "rotation, scale, weights and attention make most of case 5 dark, while the checks of cases 3 and 4 see "
           f"one or two families each. Seen by one check alone: {', '.join(alone) or 'none'}.")
    return finish(figure, alt, words(matrix))


def label(ax, names: Sequence[str]) -> None:
    """Names above the columns, every second one higher up with a line to it: side by side they would not fit."""
    for x, name in enumerate(names):
        up = 4 if x % 2 == 0 else 100
        ax.annotate(name, (x, 1), (0, up), xycoords=ax.get_xaxis_transform(), textcoords="offset points", rotation=90,
                    ha="center", va="bottom", fontsize=10,
                    arrowprops=None if up == 4 else {"arrowstyle": "-", "color": "#BBBBBB", "shrinkA": 0, "shrinkB": 0})


def lines_between(ax, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Faint lines between cells; strong ones between families of faults, named on the right, and between cases."""
    pale, at = {"color": "#DDDDDD", "linewidth": 0.5}, 0
    ax.hlines(np.arange(len(rows)) - 0.5, -0.5, len(columns) - 0.5, **pale)
    ax.vlines(np.arange(len(columns)) - 0.5, -0.5, len(rows) - 0.5, **pale)
    for name, group in groupby(rows):
        n = len(list(group))
        ax.axhline(at - 0.5, color=INK, linewidth=1)
        ax.annotate(name, (1, at + (n - 1) / 2), (5, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                    rotation=270, ha="left", va="center", fontsize=10)
        at += n
    at = 0
    for _, group in groupby(columns):
        ax.axvline(at - 0.5, color=INK, linewidth=1)
        at += len(list(group))


def legend(ax) -> None:
    """What a cell's shade and sign mean."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    bare = {"linestyle": "", "color": INK}
    handles = [(Line2D([], [], marker="s", markersize=11, markeredgecolor=INK, **bare | {"color": SHADES[mark]}),
                Line2D([], [], **bare, **SIGNS.get(mark, {}))) for mark in (CAUGHT, FINE, PAST, NEVER)]
    ax.legend(handles, [MARKS[mark] for mark in (CAUGHT, FINE, PAST, NEVER)], frameon=False, borderaxespad=0,
              handler_map={tuple: HandlerTuple(ndivide=1)}, loc="lower center", bbox_to_anchor=(0.5, 0.004),
              bbox_transform=ax.figure.transFigure)


def words(matrix: Matrix) -> list[str]:
    """How much each check sees, and how many see each fault."""
    line, _ = summary(matrix)
    lines = [line, "check: faults caught in float64 and bfloat16, in one of them, run past, out of reach"]
    for name, checks in distinct(matrix):
        column = matrix.column(checks[0])
        several = f" ({', '.join(checks[1:])})" if checks[1:] else ""
        counts = [sum(map(column.count, marks)) for marks in (CAUGHT, FINE + COARSE, PAST, NEVER)]
        lines.append(f"{name}{several}: {', '.join(map(str, counts))}")
    lines.append("fault: checks that catch it in both dtypes")
    return lines + [f"{fault}: {len(matrix.caught_by(fault))}" for fault in matrix.rows]
