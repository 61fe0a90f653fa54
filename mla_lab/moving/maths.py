"""What is measured: a rank and its tolerance, a pair that turns, logits in three dtypes, faults and a tolerance."""
from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..arrays import UNIT_ROUNDOFF, Array, to_numpy
from ..drawing import GREY, INK, LOOKS, Plot, above, axes, finish, tint
from ..rope import rotate


def rank(sigma: Array, radius: float, exponent: int, dtype: str = "float64") -> Plot:
    """Singular values in their order, the tolerance ``10^exponent``, and how far rounding may have moved a value.

    The count is one number for every tolerance from ``radius`` up to the smallest value that is not noise. What is
    counted below the radius differs from machine to machine, so it is not printed.
    """
    s, tolerance = to_numpy(sigma).astype(np.float64), 10.0**exponent
    true, counted, number = int(np.sum(s > radius)), int(np.sum(s > tolerance)), np.arange(1, len(s) + 1)
    figure, ax = axes(3.5)
    ax.axhspan(1e-22, radius, color=GREY)
    for look, which, label in ((LOOKS[0], s > tolerance, "counted"), (LOOKS[1], s <= tolerance, "not counted")):
        ax.plot(number[which], np.maximum(s[which], 1e-18), linestyle="", color=look.color, marker=look.marker,
                markersize=5, label=label)
    ax.axhline(tolerance, color=INK, label="tolerance")
    ax.set(yscale="log", ylim=(1e-19, 1e4), xlabel="number of the singular value", ylabel="singular value (log scale)")
    ax.set_yticks([1e-18, 1e-12, 1e-6, 1, 1e3])
    ax.minorticks_off()
    ax.text(1, 3e-19, "grey: what rounding can do", va="bottom", fontsize=11)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    span = math.floor(math.log10(s[true - 1] / radius)) if true else 0
    said = "noise is counted, and how much differs between machines" if tolerance < radius else (
        f"{counted} counted, " + ("the rank" if counted == true else f"{true - counted} too few"))
    lines = [f"keys stored in {dtype}: {len(s)} singular values; rounding can have moved one by {radius:.1e}",
             f"tolerance 1e{exponent:+03d}: {said}",
             f"any tolerance from {radius:.1e} to {s[max(true, 1) - 1]:.2g} counts {true}: a factor of 10^{span}"]
    alt = "Singular values on a log scale, a line at the tolerance, and a band of what rounding can do. "
    return finish(figure, alt + "; ".join(lines), lines)


def pair(position: int = 3, distance: int = 2, number: int = 1, p: int = 8, theta: float = 10000.0,
         most: int = 64) -> Plot:
    """A key at ``position`` and a query ``distance`` behind it: one pair of channels, and the score of all of them.

    Both vectors turn as the position moves; the angle between them stays, and so does the score.
    """
    radians, ones, at = theta ** (-np.arange(0, p, 2) / p), np.full((1, p), p**-0.5), np.arange(most + 1)
    keys, queries = (rotate(ones, where[:, None], radians)[:, 0] for where in (at, at + distance))
    scores = {"both rotated": np.sum(queries * keys, axis=-1), "key not rotated": queries @ ones[0]}
    figure, (left, right) = axes(3.4, 2, width_ratios=(1, 1.5))
    around, speed = np.linspace(0, 2 * np.pi, 200), radians[number]
    left.plot(np.cos(around), np.sin(around), color="#888888", linewidth=1)
    ends = {"key": position * speed, "query": (position + distance) * speed}
    for look, (name, angle) in zip(LOOKS, ends.items(), strict=False):
        left.plot([0, np.cos(angle)], [0, np.sin(angle)], **look.line, markevery=[1], markersize=9, linewidth=2,
                  label=name)
    between = np.linspace(*ends.values(), 60)
    left.plot(0.4 * np.cos(between), 0.4 * np.sin(between), color=INK, linewidth=1)
    left.set(aspect="equal", xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xticks=(-1, 0, 1), yticks=(-1, 0, 1),
             xlabel=f"channel {2 * number}", ylabel=f"channel {2 * number + 1}")
    above(left)
    for look, (name, values) in zip(LOOKS[2:], scores.items(), strict=False):
        right.plot(at, values, color=look.color, linestyle=look.linestyle)
        right.plot([position], [values[position]], **look.line, markersize=9, label=name)
    right.set(xlabel="position of the key in tokens", ylabel="score of all pairs", ylim=(-1.1, 1.1))
    above(right)
    lines = [f"key at {position}, query at {position + distance}; "
             f"pair {number} of {p // 2} turns by {speed:.4g} rad a token",
             f"key turned by {ends['key']:.4g} rad, query by {ends['query']:.4g} rad; "
             f"between them {distance * speed:.4g} rad",
             "score of all pairs: " + ", ".join(f"{values[position]:.4f} ({name})" for name, values in scores.items())]
    alt = "Left: a circle with the vectors of key and query. Right: the score against the position, level. "
    return finish(figure, alt + "; ".join(lines), lines)


def logits(naive: Array, absorbed: Array, exact: Array, guarantee: Array, dtype: str) -> Plot:
    """Logits of one query by both orders of products, and their distance against what rounding is allowed.

    Parameters
    ----------
    naive, absorbed, exact, guarantee : array [s]
        The last is a bound on the distance of the first two, element by element.
    """
    a, b, e, bound = (to_numpy(x).astype(np.float64) for x in (naive, absorbed, exact, guarantee))
    keys, apart = np.arange(len(e)), np.abs(a - b)
    figure, (left, right) = axes(3.4, 2)
    for look, values, name, size in ((LOOKS[0], a, "naive", 9), (LOOKS[1], b, "absorbed", 5)):
        left.plot(keys, values, color=look.color, marker=look.marker, linestyle="", markersize=size, label=name)
    high = math.ceil(1.05 * np.abs(e).max())  # a whole number: it does not follow the rounding of the values
    left.set(xlabel="key", ylabel="logit", ylim=(-high, high))
    above(left)
    right.plot(keys, bound, color=INK, linestyle="--", label="guarantee")
    for look, which, name in ((LOOKS[2], apart > 0, "distance"), (LOOKS[3], apart == 0, "no distance")):
        if which.any():
            right.plot(keys[which], np.maximum(apart[which], 4e-18), color=look.color, marker=look.marker, linestyle="",
                       label=name)
    right.set(yscale="log", ylim=(1e-18, 10), xlabel="key", ylabel="distance (log scale)")
    right.minorticks_off()
    above(right)
    inside, size = bool((apart <= bound).all()), float(np.sqrt(np.mean(e**2)))
    lines = [f"{dtype}, unit roundoff 2^{math.log2(UNIT_ROUNDOFF[dtype]):.0f}; "
             f"{len(e)} logits of one query, first ones {', '.join(f'{x:.3f}' for x in e[:3])}",
             f"naive and absorbed equal to the bit: {bool((apart == 0).all())}; inside the guarantee: {inside}",
             f"the guarantee is at most {bound.max() / size:.0e} of the logits' rms size"]
    return finish(figure, "Left: two sets of points that coincide. Right: their distance. " + "; ".join(lines), lines)


def faults(sizes: Mapping[str, float], exponent: float) -> Plot:
    """How much each fault changes the output, against a hand-picked tolerance of ``10^exponent``.

    Parameters
    ----------
    sizes : mapping of str to float
        The largest change over the rms size of the right output; 0 where a fault changes nothing.
    """
    tolerance, low = 10.0**exponent, 1e-6
    passing = {name for name, size in sizes.items() if size <= tolerance}
    figure, ax = axes(1.3 + 0.32 * len(sizes))
    for i, (name, size) in enumerate(sizes.items()):
        look, words, end = LOOKS[name in passing], "0" if size == 0 else f"{size:.2g}", max(size, 1.3 * low)
        ax.barh(i, end, color=tint(look.color, 0.6), edgecolor=look.color, hatch=look.hatch, linewidth=1.5)
        ax.annotate(words, (end, i), (5, 0), textcoords="offset points", va="center", backgroundcolor="white")
    ax.axvline(tolerance, color=INK, linewidth=2)
    ax.set(xscale="log", xlim=(low, 60),
           xlabel="largest change over the output's rms size (log scale); line: tolerance")
    ax.minorticks_off()
    ax.set_yticks(range(len(sizes)), sizes)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    lines = [f"tolerance {tolerance:.2g} of the output's rms size: {len(passing)} of {len(sizes)} faults pass"]
    lines += [f"{'passes' if name in passing else 'caught'} {'0' if size == 0 else f'{size:.2g}':>7}  {name}"
              for name, size in sizes.items()]
    return finish(figure, "Bars on a log scale and a line at the tolerance. " + "; ".join(lines), lines)
