"""Figures of notebook 08. What was measured is in the picture only; the text is the same on every machine."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..config import MLAConfig
from ..drawing import INK, LOOKS, Plot, above, axes, finish, powers_of_two, tint
from ..models import get_model
from .counts import absorbed_kernel, premultiplied
from .counts import crossover as counted_crossover
from .roofline import DEVICES, Device, intensity_limit

V3 = get_model("DeepSeek-V3").mla
HERE = "heights and times are this machine's, in the picture only"


def roofs(names: Sequence[str] = ("H800", "H200", "H20", "B200"), heads: int = 128, new: int = 1,
          itemsize: int = 2, context: int = 16384, span: tuple[float, float] = (2**3, 2**11)) -> Plot:
    """Roofs of GPUs, and where absorbed decode of DeepSeek-V3 stands under them.

    Parameters
    ----------
    names : sequence of str
        Of `mla_lab.kernels.roofline.DEVICES`.
    heads, new, itemsize, context : int
        Query heads on a GPU, new tokens of a step, bytes of a cached value, tokens cached.
    span : (float, float)
        Intensities, in FLOP/B, from and to which roofs are drawn.
    """
    config = replace(V3, num_attention_heads=heads)
    work = absorbed_kernel(config, new, context - new, itemsize, causal=False)
    at, x = work.intensity, np.geomspace(*span, 200)
    figure, ax = axes(3.6)
    lines = [f"{heads} heads, {new} new token{'s' * (new > 1)}, {context:,} cached tokens of 576 x {itemsize} B: "
             f"{at:.1f} FLOP/B (long contexts: {intensity_limit(config, new, itemsize):.1f})"]
    for look, name in zip(LOOKS, names, strict=False):
        device = DEVICES[name]
        ax.plot(x, [device.attainable(i) / 1e12 for i in x], color=look.color, linestyle=look.linestyle,
                label=f"{name}: ridge at {device.ridge:.0f} FLOP/B")
        ax.plot([at], [device.attainable(at) / 1e12], color=look.color, marker=look.marker, markersize=9)
        lines.append(f"{name:<5} ridge {device.ridge:>5.1f} FLOP/B: {device.bound(at)}-bound, "
                     f"at most {device.attainable(at) / 1e12:,.0f} TFLOP/s")
    ax.axvline(at, color=INK, linewidth=1)
    powers_of_two(ax, "x")
    ax.set(yscale="log", xlabel="intensity in FLOP/B (log scale)", ylabel="TFLOP/s (log scale)", ylim=(20, 4000))
    ax.set_yticks([20, 100, 500, 2500], ["20", "100", "500", "2,500"])
    above(ax)
    return finish(figure, "Roofs that rise and then stay level, and a line. " + "; ".join(lines), lines)


def one_roof(gpu: str = "H200", heads: int = 128, new: int = 1, itemsize: int = 2, context: int = 16384) -> Plot:
    """`roofs` of one GPU, for sliders: from 8 heads in 4 B to 8 new tokens of 128 heads in 1 B, on the same axes."""
    return roofs((gpu,), heads, new, itemsize, context, span=(2**2, 2**12))


def measured_roof(here: Device, rates: Mapping[int, float], tokens: int, itemsize: int) -> Plot:
    """This machine's roof and the kernel `rows` under it, by the number of heads."""
    heads = tuple(rates)
    at = [absorbed_kernel(replace(V3, num_attention_heads=h), 1, tokens - 1, itemsize).intensity for h in heads]
    figure, ax = axes(3.6)
    x = np.geomspace(min(at[0], here.ridge) / 2, max(at[-1], here.ridge) * 2, 200)
    ax.plot(x, [here.attainable(i) / 1e9 for i in x], color=INK,
            label=f"roof: {here.flops / 1e9:.0f} GFLOP/s, {here.bandwidth / 1e9:.0f} GB/s")
    ax.plot(at, [rate / 1e9 for rate in rates.values()], **LOOKS[0].line, markersize=8, label="kernel rows")
    for h, i, rate in zip(heads, at, rates.values(), strict=True):
        ax.annotate(f"{h}", (i, rate / 1e9), (7, -14), textcoords="offset points")
    powers_of_two(ax, "x", "y")
    ax.set(xlabel="intensity in FLOP/B (log scale); numbers: heads", ylabel="GFLOP/s (log scale)")
    ax.margins(0.06, 0.12)
    above(ax)
    lines = [f"{tokens:,} cached tokens of 576 x {itemsize} B, one new token; {HERE}"]
    lines += [f"{h:>3} heads: {i:>6.2f} FLOP/B" for h, i in zip(heads, at, strict=True)]
    return finish(figure, "A measured roof, and points of one kernel under it. " + "; ".join(lines), lines)


def measured_crossover(times: Mapping[int, tuple[float, float]], cached: int) -> Plot:
    """Times of both orders of products, and the crossover that FLOP counts give."""
    figure, ax = axes(3.3)
    for look, values, name in zip(LOOKS, zip(*times.values(), strict=True), ("rebuilt", "absorbed"), strict=False):
        ax.plot(list(times), [1e3 * t for t in values], **look.line, markersize=8, label=f"{name}, measured")
    limit = counted_crossover(V3, cached)
    ax.axvline(limit, color=INK, linewidth=1)
    ax.annotate("equal FLOP", (limit, 0.02), (4, 0), xycoords=("data", "axes fraction"), textcoords="offset points")
    ax.set(xlabel="new tokens of the step", ylabel="ms", ylim=(0, None))
    above(ax)
    lines = [f"DeepSeek-V3's widths, {cached:,} cached tokens, {', '.join(map(str, times))} new ones; {HERE}",
             f"FLOP counts are equal at {limit:.1f} new tokens"]
    return finish(figure, "Two rising lines of time, and a line where FLOP are equal. " + "; ".join(lines), lines)


def measured_merge(times: Mapping[str, tuple[float, float]], config: MLAConfig = V3) -> Plot:
    """How many times more weights the merged matrices have, and how many times as long they take for one token."""
    w = premultiplied(config)
    counted = w.query_merged / w.query_factored, w.output_merged / w.output_factored
    measured = [merged / factored for factored, merged in times.values()]
    figure, ax = axes(2.8)
    for k, (look, values, name) in enumerate(zip(LOOKS, (counted, measured), ("weights, counted", "time, measured"),
                                                 strict=False)):
        at = np.arange(len(times)) + 0.4 * k
        ax.barh(at, values, height=0.36, color=tint(look.color, 0.6), edgecolor=look.color, hatch=look.hatch,
                label=name)
        for y, value in zip(at, values, strict=True):
            ax.annotate(f" {value:.1f}", (value, y), va="center")
    ax.set_yticks(np.arange(len(times)) + 0.2, list(times))
    ax.set(xlabel="merged over factored", xlim=(0, 1.2 * max(*counted, *measured)))
    ax.grid(False, axis="y")
    above(ax)
    lines = [f"{name}: {ratio:.2f} times the weights" for name, ratio in zip(times, counted, strict=True)]
    return finish(figure, "Pairs of bars, counted and measured. " + "; ".join(lines), [*lines, HERE])
