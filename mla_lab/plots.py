"""Figures, each with its numbers in words beside it. `mla_lab.figures` writes those of the README.

Every function returns a `Plot`. The numbers are the same on every backend and machine: what is of rounding size is
drawn, and the text says how it compares with its bound.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from . import drawing
from . import footprint as fp
from .arrays import UNIT_ROUNDOFF, Array, to_numpy
from .config import MLAConfig
from .diagrams import absorption_pipeline, two_streams
from .drawing import INK, LOOKS, NESTED, RED, SKY, WIDTH, Plot, above, axes, finish, frame, powers_of_two, tint
from .models import get_model
from .rope_plots import residual_by_span, rotation, score_by_distance

__all__ = ["Plot", "absorption_pipeline", "cache_growth", "cache_over_steps", "cache_sizes", "dtype_ladder", "heat",
           "residual_by_span", "rotation", "score_by_distance", "spectrum", "two_streams"]


def _four(heads: int, groups: int, head_dim: int, latent: int, rope: int) -> dict[str, tuple[str, int]]:
    """Formula and elements cached for a token and layer, by attention."""
    return {"MHA": (f"2 x {heads} x {head_dim}", fp.mha_elements(heads, head_dim)),
            f"GQA-{groups}": (f"2 x {groups} x {head_dim}", fp.gqa_elements(groups, head_dim)),
            "MQA": (f"2 x 1 x {head_dim}", fp.mqa_elements(head_dim)), "MLA": (f"({latent} + {rope})", latent + rope)}


def cache_sizes(config: MLAConfig | None = None) -> Plot:
    """Bytes that a token leaves in a layer's bf16 cache under MHA, GQA-8, MQA and MLA.

    Parameters
    ----------
    config : MLAConfig, optional
        DeepSeek-V3's by default. Key-value heads of the other three are as wide as its values.
    """
    c = config or get_model("DeepSeek-V3").mla
    h, v = c.num_attention_heads, c.v_head_dim
    rows = _four(h, min(8, h), v, c.kv_lora_rank, c.qk_rope_head_dim)
    figure, ax = axes(2.9)
    lines = [f"B per token and layer in bf16 (2 B a value), and share of MHA; {h} query heads, key-value heads of {v}"]
    for look, (name, (formula, n)) in zip(LOOKS, rows.items(), strict=False):
        ax.barh(name, 2 * n, color=tint(look.color, 0.6), edgecolor=look.color, hatch=look.hatch, linewidth=1.5)
        ax.annotate(f"{2 * n:,} B", (2 * n, name), (6, 0), textcoords="offset points", va="center", fontsize=11)
        lines.append(f"{name:<6} {formula + ' x 2 B':<18} = {2 * n:>7,} B  {fp.percent(n / rows['MHA'][1]):>8}")
    sizes = [2 * n for _, n in rows.values()]
    ax.set(xscale="log", xlabel="bytes per token and layer, bf16 (log scale)",
           xlim=drawing.reaching([min(sizes) / 5, 5 * max(sizes)], 50, 400_000))
    ax.xaxis.set_minor_formatter(lambda *_: "")
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    alt = ", ".join(f"{name} {size:,}" for name, size in zip(rows, sizes, strict=True))
    return finish(figure, f"Bar chart on a log scale of the bytes cached per token and layer: {alt}.", lines)


def cache_growth(tokens: int = 8192, heads: int = 128, groups: int = 8, latent: int = 512, rope: int = 64,
                 head_dim: int = 128, dtype_bytes: int = 2) -> Plot:
    """Cache of one layer in MiB against the number of tokens, with the values at ``tokens`` marked.

    The axes stay as they are wherever the sliders of notebooks 00 and 01 stand, so that a line that does not move is
    one whose cache did not change.
    """
    rows, at = _four(heads, groups, head_dim, latent, rope), np.array([min(1024, tokens), max(131072, tokens)])
    figure, ax = axes(3.5)
    lines = [f"cache of a layer, one request of {tokens:,} tokens, share of MHA; {dtype_bytes} B a value, MiB = 2^20 B"]
    for look, marker, (name, (formula, n)) in zip(LOOKS, NESTED, rows.items(), strict=False):
        size = fp.mib(tokens * n * dtype_bytes)
        ax.plot(at, at * n * dtype_bytes / 2**20, color=look.color, linestyle=look.linestyle, linewidth=2)
        ax.plot([tokens], [tokens * n * dtype_bytes / 2**20], **look.line, markersize=marker, markeredgecolor="white",
                label=f"{name}: {size}")
        share = fp.percent(n / rows["MHA"][1])
        lines.append(f"{name:<6} {f'{formula} x {dtype_bytes} B':<18} x {tokens:,} = {size}, {share}")
    ax.axvline(tokens, color=INK, linewidth=1, zorder=1)  # behind the marks
    ax.set(xlabel="tokens of one request (log scale)", ylabel="cache of one layer in MiB (log scale)")
    powers_of_two(ax, "x", "y")
    ends = [at[i] * size(n for _, n in rows.values()) * dtype_bytes / 2**20 for i, size in ((0, min), (1, max))]
    ax.set_ylim(drawing.reaching(ends, 2**-3, 2**14))
    ax.legend(title=f"at {tokens:,} tokens", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
              labelspacing=0.8)
    alt = f"Parallel lines of cache size against tokens; at {tokens:,} tokens " + "; ".join(lines[1:])
    return finish(figure, alt, lines)


def cache_over_steps(lengths: Sequence[int], width: int, expanded: int) -> Plot:
    """Values cached in a layer after each call: latent rows of ``width``, or ``expanded`` keys and values a token."""
    figure, ax = axes(3.2)
    calls, tokens = np.arange(1, len(lengths) + 1), np.array(lengths)
    for look, (name, n) in zip(LOOKS, (("latent", width), ("expanded K and V", expanded)), strict=False):
        ax.plot(calls, tokens * n, **look.line, label=f"{name}: {n:,} a token")
        for i in {0, len(calls) - 1}:
            at = calls[i], tokens[i] * n
            ax.annotate(f"{at[1]:,}", at, (0, 8), textcoords="offset points", ha="center")
    powers_of_two(ax, "y")
    ax.margins(y=0.2)
    ax.set(xlabel="call (the first is the prefill)", ylabel="values cached in a layer\n(log scale)", xticks=calls)
    above(ax)
    lines = [f"values cached in a layer after each call: tokens x {width} (latent), x {expanded} (expanded K and V)"]
    lines += [f"call {i}: {t} tokens, {t * width:,} and {t * expanded:,} values" for i, t in enumerate(lengths, 1)]
    alt = f"Two rising lines; the expanded cache is {expanded / width:.1f} times the latent one after every call."
    return finish(figure, alt, lines)


def spectrum(curves: Mapping[str, Array], rank: int, radius: float | None = None, longest: int | None = None,
             heights: tuple[float, float] | None = None) -> Plot:
    """Singular values of several matrices, largest first, and the gap behind the claimed rank.

    Parameters
    ----------
    curves : mapping of str to array [k]
    radius : float, optional
        How far rounding can have moved a singular value; what lies below is noise. By default 1e-10 of the largest.
    longest, heights : int, (float, float), optional
        Where the axes end, for sliders that change how many values there are: by default where the curves do.
    """
    figure, ax = axes(3.6)
    lines = [f"singular values, largest first (no unit); number {rank} and the next, and how many are not noise"]
    for look, (name, values) in zip(LOOKS, curves.items(), strict=False):
        s = to_numpy(values).astype(np.float64)
        noise, last = 1e-10 * s[0] if radius is None else radius, min(rank, len(s)) - 1
        ax.plot(np.arange(1, len(s) + 1), np.maximum(s, 1e-18 * s[0]), **look.line, markersize=5, label=name,
                markevery=max(1, len(s) // 14))
        after = f"{s[rank]:.3g}" if rank < len(s) and s[rank] > noise else "noise" if rank < len(s) else "none"
        lines.append(f"{name}: largest {s[0]:.3g}, number {last + 1} {s[last]:.3g}, the next {after}; "
                     f"{np.sum(s > noise)} of {len(s)}")
    ax.axvline(rank + 0.5, color=INK, linewidth=1)
    ax.set(yscale="log", xlabel="number of the singular value", ylabel="singular value (log scale)", ylim=heights)
    ax.set_xlim(0.5, 0.5 + 1.02 * (longest or max(map(len, curves.values()))))  # there is no number 0
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    left = rank < 0.7 * ax.get_xlim()[1]
    ax.annotate(f"the rank: {rank}", (rank + 0.5, 0.6), (6 if left else -6, 0), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="left" if left else "right", fontsize=11)
    if radius is not None:
        ax.axhline(radius, color=INK, linestyle=":", label="most that rounding can do")
    above(ax)
    lines.append("noise: below 1e-10 of the largest" if radius is None else
                 f"noise: below {radius:.1e}, the most that rounding can have moved a singular value")
    alt = f"Singular values on a log scale, with a line behind number {rank}. " + "; ".join(lines[1:])
    return finish(figure, alt, lines)


def dtype_ladder(rungs: Sequence[tuple[str, float]], wrong: Sequence[tuple[str, float]] | None = None) -> Plot:
    """Distance of naive and absorbed attention in each dtype, and the same in units of its rounding.

    Parameters
    ----------
    rungs : sequence of (dtype, constant)
        The constant is the rms distance over (unit roundoff x rms size).
    wrong : sequence of (dtype, relative distance), optional
        The same rms distance over rms size for a wrong formula, which no precision makes smaller.
    """
    rungs = sorted(rungs, key=lambda rung: -UNIT_ROUNDOFF[rung[0]])
    names, units = [name for name, _ in rungs], np.array([UNIT_ROUNDOFF[name] for name, _ in rungs])
    series = {"naive against absorbed": np.array([c for _, c in rungs]) * units}
    lines = ["rms distance of naive and absorbed outputs / rms size (no unit), and that / unit roundoff of the dtype",
             "the quotients written in the figure are of rounding size and differ a little between machines",
             "unit roundoff: " + ", ".join(f"{name} 2^{math.log2(UNIT_ROUNDOFF[name]):.0f}" for name in names)]
    if wrong:
        series["a wrong formula"] = np.array([dict(wrong)[name] for name in names])
    figure, (left, right) = axes(3.3, 2)
    for look, (name, distance) in zip(LOOKS, series.items(), strict=False):
        left.plot(names, distance, **look.line, label=name)
        right.plot(names, distance / units, **look.line)
        level = np.all(np.abs(np.diff(np.log(distance / units))) <= -0.5 * np.diff(np.log(units)))
        lines.append(f"{name}: the distance shrinks with the unit roundoff, so it is rounding" if level else
                     f"{name}: the distance is {', '.join(f'{d:.2g}' for d in distance)}, so it is not rounding")
    for x, c in enumerate(series["naive against absorbed"] / units):
        right.annotate(f"{c:.2g}", (x, c), (0, -17), textcoords="offset points", ha="center")
    left.set(yscale="log", ylabel="relative rms distance (log scale)")
    right.set(yscale="log", ylabel="distance / unit roundoff (log scale)", ylim=(0.01, None if wrong else 1e4))
    for ax in (left, right):
        ax.margins(x=0.15)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    alt = "Left: the distance in each dtype. Right: the same over the unit roundoff, nearly level for rounding. "
    return finish(figure, alt + "; ".join(lines[3:]), lines)


def heat(matrix: Array, title: str, rows: str | Sequence[str], columns: str | Sequence[str],
         marks: Array | None = None) -> Plot:
    """A small matrix with its numbers in the cells.

    Parameters
    ----------
    rows, columns : str or sequence of str
        What the axis counts, or a label for each row or column.
    marks : array of bool, optional
        Cells to frame.
    """
    from matplotlib.colors import LinearSegmentedColormap
    m = to_numpy(matrix).astype(np.float64) + 0.0  # no negative zero
    figure, ax = axes(1.3 + 0.36 * m.shape[0], width=min(WIDTH, max(1.6 + 0.8 * m.shape[1], 1.0 + 0.12 * len(title))))
    pale = LinearSegmentedColormap.from_list("pale", ["#FFFFFF", SKY]).with_extremes(bad="#DDDDDD")
    shown = m[np.isfinite(m)]
    low, high = (shown.min(), shown.max()) if shown.size else (0.0, 0.0)
    if low == high:  # one value only: blue, or white if it is 0
        low, high = low - abs(low), high or 1.0
    ax.imshow(np.where(np.isfinite(m), m, np.nan), cmap=pale, aspect="auto", vmin=min(low, high), vmax=max(low, high))
    ax.grid(False)
    words = [[f"{x:.3g}" for x in row] for row in m]
    for (i, j), _ in np.ndenumerate(m):
        frame(ax, j, i, 1, 1, fill=False, edgecolor="#BBBBBB", linewidth=0.5)
        ax.text(j, i, words[i][j], ha="center", va="center")
        if marks is not None and to_numpy(marks)[i, j]:
            frame(ax, j, i, 0.92, 0.88, fill=False, edgecolor=RED, linewidth=2.5)
    for axis, count, labels in ((ax.yaxis, m.shape[0], rows), (ax.xaxis, m.shape[1], columns)):
        axis.set_ticks(range(count), range(count) if isinstance(labels, str) else labels)
        axis.set_label_text(labels if isinstance(labels, str) else "")
    ax.set_title(title)
    width = max(len(word) for row in words for word in row)
    lines = [title, *("  ".join(f"{word:>{width}}" for word in row) for row in words)]
    return finish(figure, f"{title}: a table of {m.shape[0]} x {m.shape[1]} cells.", lines)
