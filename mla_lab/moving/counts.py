"""What is counted: values on each GPU, rows in a cache, FLOP of two orders of the same products."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import footprint as fp
from ..arrays import Array, to_numpy
from ..drawing import INK, LOOKS, NESTED, RED, SKY, Plot, above, axes, finish, frame, powers_of_two, reaching, tint

GPUS = tuple(2**i for i in range(8))


def per_gpu(tp: int = 1, heads: int = 128, groups: int = 8, latent: int = 512, rope: int = 64,
            head_dim: int = 128) -> Plot:
    """Values cached for a token and layer on each of ``tp`` tensor-parallel GPUs: heads are dealt out, a latent is not.

    ``tp``, ``heads`` and ``groups`` should be powers of two, or heads would not spread evenly.
    """
    figure, ax = axes(3.5)
    lines = [f"values cached for a token and layer on each GPU of {tp}, and on all of them together"]
    kinds = ("MHA", heads), (f"GQA-{groups}", groups), ("MQA", 1), ("MLA", 0)
    for look, marker, (name, kept) in zip(LOOKS, NESTED, kinds, strict=False):
        def on_each(gpus: int, kept: int = kept) -> int:
            return fp.gqa_elements(max(1, kept // gpus), head_dim) if kept else latent + rope
        here = on_each(tp)
        ax.plot(GPUS, [on_each(gpus) for gpus in GPUS], **look.line, markersize=5, label=f"{name}: {here:,}")
        ax.plot([tp], [here], color=look.color, marker=look.marker, markersize=marker, markeredgecolor="white")
        lines.append(f"{name:<6} {here:>6,} on each, {here * tp:>7,} together")
    ax.axvline(tp, color=INK, linewidth=1, zorder=1)  # behind the marks
    ax.set(xlabel="tensor-parallel GPUs (log scale)", ylabel="values on each GPU (log scale)")
    powers_of_two(ax, "x", "y")
    ax.legend(title=f"on each GPU of {tp}", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    alt = "MHA and GQA fall with the number of GPUs until each holds one head; MQA and MLA stay level. "
    return finish(figure, alt + "; ".join(lines), lines)


def cache_rows(rows: Array, used: int, latent: int, expanded: int) -> Plot:
    """The cache after ``used`` tokens: rows that are filled, the one that is new, and slots not yet used.

    Parameters
    ----------
    rows : array [s, r+p]
        All rows as they will be in the end.
    latent : int
        r; what follows in a row is the rope key.
    expanded : int
        Values that keys and values of all heads would take for a token.
    """
    values = np.round(to_numpy(rows).astype(np.float64), 2) + 0.0  # no negative zero
    slots, width = values.shape
    figure, ax = axes(1.2 + 0.34 * slots, width=1.2 + 0.75 * width)
    ax.set(xlim=(-0.5, width - 0.5), ylim=(slots - 0.5, -0.5), ylabel="token", yticks=range(slots))
    ax.grid(False)
    shades = np.ones((slots, width, 3))
    shades[:used, :latent], shades[:used, latent:] = tint(SKY, 0.45), tint(LOOKS[3].color, 0.35)
    ax.imshow(shades, aspect="auto")
    ax.hlines(np.arange(slots - 1) + 0.5, -0.5, width - 0.5, color="#BBBBBB", linewidth=0.5)
    for i, j in np.ndindex(slots, width):
        ax.text(j, i, f"{values[i, j]:.2f}" if i < used else "-", ha="center", va="center")
    if used:
        frame(ax, (width - 1) / 2, used - 1, width - 0.06, 0.94, fill=False, edgecolor=RED, linewidth=2.5)
    ax.axvline(latent - 0.5, color=INK, linewidth=2)
    ax.set_xticks(range(width), ["c"] * latent + ["k"] * (width - latent))
    ax.set_title(f"{used} of {slots} slots used; framed: the new row")
    lines = [f"after {used} tokens: {used} rows x ({latent} + {width - latent}) = {used * width} numbers; "
             f"expanded keys and values: {used} x {expanded} = {used * expanded}"]
    lines += [f"token {i}  " + "  ".join(f"{x:>5.2f}" for x in row) for i, row in enumerate(values[:used])]
    lines.append(f"unused slots: {slots - used}")
    alt = f"A table of {slots} slots for cached rows, {used} of them filled. "
    return finish(figure, alt + "; ".join(lines), lines)


def flop(new: int = 100, cached: int = 8192, r: int = 512, n: int = 128, p: int = 64, v: int = 128,
         spans: Sequence[int] = tuple(2**i for i in range(11))) -> Plot:
    """FLOP of one head for ``new`` tokens behind ``cached`` ones: keys and values rebuilt, or absorbed.

    A causal mask leaves t c + t (t + 1) / 2 pairs of query and key. Rebuilding takes 2 r (n + v) for each of all tokens
    and 2 (n + p + v) for a pair; absorbing 2 r (n + v) for each new token and 2 (2 r + p) for a pair.
    """
    def both(tokens: float) -> tuple[float, float]:
        pairs, move = tokens * cached + tokens * (tokens + 1) / 2, 2 * r * (n + v)
        return move * (tokens + cached) + 2 * (n + p + v) * pairs, move * tokens + 2 * (2 * r + p) * pairs

    figure, ax = axes(3.3)
    here, at = both(new), np.array(spans, dtype=float)
    for look, values, now, name in zip(LOOKS, both(at), here, ("rebuild", "absorb"), strict=False):
        ax.plot(at, values / 1e9, color=look.color, linestyle=look.linestyle, label=f"{name}: {now / 1e9:,.3g} GFLOP")
        ax.plot([new], [now / 1e9], color=look.color, marker=look.marker, markersize=9)
    ax.axvline(new, color=INK, linewidth=1)
    powers_of_two(ax, "x")
    drawn = np.array([both(at[0]), both(at[-1]), here]) / 1e9
    ax.set(xlabel="new tokens (log scale)", ylabel="GFLOP of a head (log scale)", yscale="log",
           ylim=reaching(drawn, 5e-5, 1e3), yticks=10.0 ** np.arange(-4, 4))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    ax.minorticks_off()
    above(ax)
    gain, half = 2 * r - n - v, cached + 0.5
    limit = (half**2 + 2 * r * (n + v) / gain * cached) ** 0.5 - half if gain > 0 else 0
    lines = [f"{new:,} new tokens behind {cached:,} cached ones, one head of one layer, r = {r}",
             f"rebuild {here[0] / 1e9:.4g} GFLOP, absorb {here[1] / 1e9:.4g} GFLOP: "
             + ("absorb" if here[1] < here[0] else "rebuild"),
             f"equal at {limit:,.1f} new tokens" if gain > 0 else "absorbing is cheaper for any number of new tokens"]
    return finish(figure, "Two rising lines of FLOP against new tokens. " + "; ".join(lines), lines)
