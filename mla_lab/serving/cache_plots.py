"""Figures of paged and quantised caches, each with its numbers in words beside it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .. import footprint as fp
from ..drawing import INK, LOOKS, Plot, above, axes, finish, powers_of_two, reaching, tint
from .latents import OUTLIER_CHANNEL, with_outlier
from .page_size import PAGE_SIZES, PageCost
from .quantize import FORMATS, GRANULARITIES, band, quantize, relative
from .traces import Trace, lengths


def page_costs(costs: Sequence[PageCost], marked: int = 64) -> Plot:
    """Share of empty slots, share of prompt tokens that coarser pages fail to find, and table bytes, by page size.

    The page size ``marked`` is drawn as a vertical line.
    """
    sizes = [c.block_size for c in costs]
    finest = min(costs, key=lambda c: c.block_size)
    curves = {"empty slots": [float(c.empty_share) for c in costs]}
    if finest.hit_share is not None:
        curves["prompt tokens not found"] = [float(finest.hit_share - c.hit_share) for c in costs]
    figure, (left, right) = axes(3.4, columns=2)
    for look, (name, values) in zip(LOOKS, curves.items(), strict=False):
        left.plot(sizes, 100 * np.array(values), **look.line, label=name)
    per_token = [c.table_bytes / c.tokens for c in costs]
    right.plot(sizes, per_token, **LOOKS[2].line)
    for ax in (left, right):
        ax.axvline(marked, color=INK, linestyle=":", linewidth=1.5)
        powers_of_two(ax, "x")
        ax.set_xlabel("page size in tokens (log scale)")
    powers_of_two(right, "y")
    left.set_ylabel("share in %")
    right.set_ylabel("bytes of table a token (log)")
    left.legend(loc="upper left", frameon=False)
    lines = ["page size  empty slots  of all slots  table B a token  prompt found"]
    for c, b in zip(costs, per_token, strict=True):
        found = "unknown" if c.hit_share is None else fp.percent(c.hit_share)
        lines.append(f"{c.block_size:>9}{c.empty_slots:>13,}{fp.percent(c.empty_share):>14}{b:>17.4f}{found:>14}")
    at = next((line for line, size in zip(lines[1:], sizes, strict=True) if size == marked), lines[-1])
    alt = (f"Left, {' and '.join(curves)} rise with the page size; right, the table shrinks in proportion. "
           f"A dotted line marks {marked} tokens. {' '.join(lines[0].split())}: {' '.join(at.split())}.")
    return finish(figure, alt, lines)


def pages_of(trace: Trace, block_size: int, requests: int = 12) -> Plot:
    """The first requests of a trace in pages: tokens held, and slots that stay empty in the last page."""
    held = np.array(lengths(trace)[:requests])
    empty = -held % block_size
    figure, ax = axes(3.4)
    at = np.arange(len(held))
    for look, name, values, below in ((LOOKS[0], "tokens", held, 0 * held), (LOOKS[1], "empty slots", empty, held)):
        look_of_bar = {"color": tint(look.color, 0.6), "edgecolor": look.color, "hatch": look.hatch}
        ax.bar(at, values, bottom=below, label=name, **look_of_bar)
    most = int(np.max(held + -held % max(PAGE_SIZES)))  # so that bars of tokens stay as the page grows
    ax.set(xlabel="request", ylabel="slots", xticks=at, ylim=(0, 1.03 * max(most, np.max(held + empty))))
    above(ax)
    pages = (held + empty) // block_size
    lines = [f"{len(held)} requests in pages of {block_size}: {pages.sum():,} pages, {held.sum():,} tokens, "
             f"{empty.sum():,} empty slots = {fp.percent(empty.sum() / (held + empty).sum())}",
             f"mean {empty.mean():.1f} empty slots a request; (B - 1) / 2 = {(block_size - 1) / 2:.1f}",
             f"tables: {pages.sum():,} entries x 4 B = {4 * pages.sum():,} B for all layers"]
    return finish(figure, f"Stacked bars of slots by request. {lines[0]}.", lines)


def hit_share_by_memory(gigabytes: Sequence[float], shares: Mapping[str, Sequence[float]], best: float) -> Plot:
    """Share of prompt tokens found against the memory of the pool, one curve for each kind of cache."""
    figure, ax = axes(3.6)
    lines = ["GB of cache   " + "".join(f"{gb:>8g}" for gb in gigabytes)]
    for look, (name, values) in zip(LOOKS, shares.items(), strict=False):
        ax.plot(gigabytes, 100 * np.array(values), **look.line, label=name)
        lines.append(f"{name:<14}" + "".join(f"{fp.percent(v, 1):>8}" for v in values))
    ax.axhline(100 * best, color=INK, linestyle=":", linewidth=1.5)
    ax.set(xlabel="memory for the cache in GB (log scale)", ylabel="prompt tokens found in %", ylim=(-3, 103))
    powers_of_two(ax, "x")
    above(ax)
    lines.append(f"endless pool: {fp.percent(best, 1)} (dotted line)")
    return finish(figure, f"Curves of the share of prompt tokens found against memory. {'; '.join(lines[1:])}.", lines)


def error_by_outlier(octaves: Sequence[int], curves: Sequence[tuple[str, str]], tokens: int = 64) -> Plot:
    """Relative error of the other channels where one is 2^octave times as large: a curve for (format, granularity)."""
    figure, ax = axes(3.6)
    low, high = (100 * x for x in band("e4m3"))
    ax.axhspan(low, high, color=tint(LOOKS[0].color, 0.25), label="band of e4m3")
    others = np.arange(with_outlier(1, 1).shape[1]) != OUTLIER_CHANNEL
    lines = ["error of the other channels, one of them 2^k times as large; k = " + ", ".join(map(str, octaves)),
             f"band of e4m3: {low:.2f} to {high:.2f} %"]
    for look, (form, granularity) in zip(LOOKS, curves, strict=False):
        errors = []
        for octave in octaves:
            rows = with_outlier(tokens, 2.0**octave)
            errors.append(100 * relative(quantize(rows, form, granularity).read()[:, others], rows[:, others]))
        ax.plot(octaves, errors, **look.line, label=f"{form}, {granularity}")
        lines.append(f"{form}, {granularity:<8}" + "".join(f"{e:>7.1f}" for e in errors) + " %")
    ax.set(yscale="log", xlabel="size of the outlier in octaves, 2^k", ylabel="error of the rest in % (log)")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xticks(octaves)
    above(ax)
    return finish(figure, f"Curves of error against the outlier's size, logarithmic. {'; '.join(lines[1:])}.", lines)


def errors_of_format(form: str, octave: int = 0, tokens: int = 64) -> Plot:
    """Error of the channels without the outlier at each granularity, as bars."""
    rows = with_outlier(tokens, 2.0**octave)
    others = np.arange(rows.shape[1]) != OUTLIER_CHANNEL
    errors = {g: 100 * relative(quantize(rows, form, g).read()[:, others], rows[:, others]) for g in GRANULARITIES}
    figure, ax = axes(2.7)
    for look, (name, error) in zip(LOOKS, errors.items(), strict=False):
        ax.barh(name, error, color=tint(look.color, 0.6), edgecolor=look.color, hatch=look.hatch)
        ax.annotate(f"{error:.2f} %", (error, name), (6, 0), textcoords="offset points", va="center")
    ax.set(xlabel="relative error of the other channels in % (log scale)", ylabel="scale for each", xscale="log",
           xlim=reaching(list(errors.values()), 0.2, 400))  # every format, with and without an outlier
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.minorticks_off()
    ax.invert_yaxis()
    lines = [f"{form}, {FORMATS[form].bits} bits, one channel 2^{octave} times as large: error of the others",
             *(f"a scale for each {name:<8}{error:>7.2f} %" for name, error in errors.items())]
    return finish(figure, f"Bars. {'; '.join(lines)}.", lines)
