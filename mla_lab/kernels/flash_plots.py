"""Figures of notebook 09: a softmax on its way, a GPU's parts and their work, tiles of query rows."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..drawing import GREY, INK, LOOKS, Plot, above, axes, finish, tint
from .checks09_flash_decode import PUBLISHED
from .scheduler import OVERHEAD, TILE, blocks_of, fixed_splits, greedy, loads, tiles, utilisation

LOGITS = (1.0, 0.2, 1.6, 0.9, 2.1, 3.0, 1.1, 0.4, 3.6, 2.2, 0.7, 2.9)
SHORT = (512, 1024, 640, 2048, 300, 1500, 900, 3000, 700)


def online(seen: int = 4, logits: Sequence[float] = LOGITS) -> Plot:
    """Online softmax after ``seen`` keys: the maximum so far, and every key's weight beside what it will be."""
    z, at = np.array(logits), np.arange(len(logits))
    top, final = z[:seen].max(), np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    now = np.exp(z[:seen] - top)
    total = now.sum()
    running = np.maximum.accumulate(z)
    figure, (left, right) = axes(3.2, 2)
    for look, which, name in ((LOOKS[0], at < seen, "seen"), (LOOKS[4], at >= seen, "to come")):
        left.plot(at[which], z[which], linestyle="", color=look.color, marker=look.marker, label=name)
    left.step(at[:seen], running[:seen], where="post", color=LOOKS[1].color, linestyle="--", label="maximum so far")
    left.set(xlabel="key", ylabel="logit", xlim=(-0.6, len(z) - 0.4), ylim=(0, z.max() * 1.1))
    above(left)
    right.bar(at, final, color=GREY, edgecolor=INK, label="in the end")
    right.plot(at[:seen], now / total, linestyle="", color=LOOKS[0].color, marker="o", label="now")
    right.set(xlabel="key", ylabel="weight", xlim=(-0.6, len(z) - 0.4), ylim=(0, 1.05))
    above(right)
    before = running[seen - 2] if seen > 1 else -np.inf
    lines = [f"{seen} of {len(z)} keys seen: maximum {top:.1f}, sum of exp(logit - maximum) {total:.4f}",
             f"LSE = {top:.1f} + log {total:.4f} = {top + np.log(total):.4f}; "
             f"in the end {z.max() + np.log(np.exp(z - z.max()).sum()):.4f}",
             f"at the last key the sums before it shrank by exp({before:.1f} - {top:.1f}) = {np.exp(before - top):.4f}"]
    return finish(figure, "Left: logits and their maximum so far. Right: weights now and in the end. "
                  + "; ".join(lines), lines)


def schedule(rule: str = "greedy", longest: int = 16384, parts: int = 8, splits: int = 2) -> Plot:
    """What each part of a GPU does: one request of ``longest`` tokens among nine short ones.

    Parameters
    ----------
    rule : str
        'greedy', FlashMLA's, or 'fixed': every request in ``splits`` pieces. The axis of time is the same
        for every rule: it reaches as far as one piece or 16 of each request would take.
    """
    lengths = (*SHORT[:4], longest, *SHORT[4:])
    plan = greedy(lengths, parts) if rule == "greedy" else fixed_splits(lengths, parts, splits)
    figure, ax = axes(1.4 + 0.24 * parts)
    for y, part in enumerate(plan):
        x = 0
        for piece in part:
            look = LOOKS[piece.request % len(LOOKS)]
            ax.barh(y, OVERHEAD, left=x, color="white", edgecolor="#999999", linewidth=0.7)
            ax.barh(y, piece.blocks, left=x + OVERHEAD, color=tint(look.color, 0.5), edgecolor=look.color,
                    hatch=look.hatch, linewidth=1)
            x += OVERHEAD + piece.blocks
    worst = max(max(loads(fixed_splits(lengths, parts, pieces))) for pieces in (1, 16))
    slowest, cut = max(loads(plan)), sum(piece.split > 0 for part in plan for piece in part)
    ax.axvline(slowest, color=INK)
    ax.set(xlabel=f"time in key blocks of 64; white: {OVERHEAD} for each piece", ylabel="part of the GPU",
           xlim=(0, 1.05 * max(worst, slowest)), ylim=(parts - 0.4, -0.6), yticks=range(parts))
    ax.grid(False, axis="y")
    blocks = sum(map(blocks_of, lengths))
    name = rule if rule == "greedy" else f"{splits} pieces of each request"
    lines = [f"{name}: {blocks} key blocks of {len(lengths)} requests on {parts} parts, longest {longest:,} tokens",
             f"slowest part {slowest} blocks of time, {cut} cuts, {100 * utilisation(plan):.0f} % of time is useful",
             "times of the parts: " + " ".join(map(str, loads(plan)))]
    return finish(figure, "Bars of the pieces that each part does. " + "; ".join(lines), lines)


def tile_steps(most: int = 256, rows: int = 80) -> Plot:
    """Time over query rows: steps of 64, the line it would be without tiles, and what was published of an H20."""
    at = np.arange(1, most + 1)
    figure, ax = axes(3.2)
    ax.plot(at, [tiles(int(n)) for n in at], color=LOOKS[0].color, drawstyle="steps-pre", label="tiles of 64 rows")
    ax.plot(at, at / TILE, color=LOOKS[2].color, linestyle="-.", label="rows / 64")
    one = PUBLISHED[0][1]
    for group, low, high in PUBLISHED:
        ax.errorbar(group, [(low + high) / 2 / one] * len(group), yerr=(high - low) / 2 / one, color=LOOKS[1].color,
                    marker="s", linestyle="", capsize=4, label="published, H20" if group is PUBLISHED[0][0] else None)
    ax.axvline(rows, color=INK, linewidth=1)
    ax.set(xlabel="query rows: heads x new tokens", ylabel="time of one tile = 1", ylim=(0, None))
    above(ax)
    lines = [f"{rows} rows: {tiles(rows)} tile{'s' * (tiles(rows) > 1)} of 64, "
             f"{100 * rows / (TILE * tiles(rows)):.0f} % of their rows are used"]
    lines += [f"published for {group[0]} to {group[-1]} rows: {low:.3g} to {high:.3g} ms, "
              f"{low / one:.2f} to {high / one:.2f} times the shortest" for group, low, high in PUBLISHED]
    return finish(figure, "A staircase, a line through its corners, and six points. " + "; ".join(lines), lines)
