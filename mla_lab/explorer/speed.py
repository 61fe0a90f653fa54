"""The two sections about time: arithmetic intensity under the roofline, and naive against absorbed."""
from __future__ import annotations

import math

from ..config import MLAConfig
from ..errors import positive_int
from ..kernels import counts
from . import numbers as nb
from . import svg
from .section import Section, each, table
from .setup import Setup

MODES = {"naive": "8 4", "absorbed": ""}  # how each is dashed


def roofline(setup: Setup) -> Section:
    """Intensity of the attention of a decode call, under the roof of the chosen GPU."""
    on, title = nb.gpu(setup), "Arithmetic intensity and the roofline"
    made = each(setup, lambda a: (a, nb.step(setup, a), nb.step(setup, a, endless=True)))
    peak, ridge = on.bf16_tflops, on.ridge

    def reached(finite):
        return min(peak, finite.intensity * on.bandwidth_tb)

    def cells(a, finite, endless):
        return (a.name, "memory" if finite.intensity < ridge else "arithmetic", f"{finite.intensity:.1f}",
                f"{endless.intensity:.1f}", f"{reached(finite):,.0f}",
                f"{setup.layers * 1e3 * finite.seconds(on):,.3g}")

    rows = table(setup, made, cells)
    marks = [(kind, found[0].name, found[1].intensity, reached(found[1])) for kind, found, _ in made if found]
    says = [f"{on.name}: {peak:,.0f} TFLOP/s dense bf16, {on.bandwidth_tb:g} TB/s, ridge {ridge:.1f} FLOP/B (peaks of "
            "the data sheet). Left of the ridge reading the cache takes longest, right of it the arithmetic.",
            "FLOPs: 2 x heads of one GPU x new tokens x context x values looked at (MLA absorbed: 2r + p; others: 2v). "
            "Bytes: the cache once, queries and outputs in 16 bit. The number of requests cancels."]
    if made[3][1]:
        here, needed = setup.num_attention_heads // setup.tp * setup.new_tokens, nb.rows_at_ridge(setup, made[3][1][0])
        says.append(f"MLA reaches the ridge at {needed:.1f} heads x new tokens on one GPU; here there are {here:,}.")
    if setup.index_layers:
        says.append("Sparse attention multiplies and reads the rows that its indexer chose; counted here are all rows.")
    if setup.new_tokens >= setup.context:
        says.append("With as many new tokens as cached ones this is prefill, of which the causal mask leaves out up to "
                    "half; the counts are for decoding.")
    words = "; ".join(f"{row[0]}: {row[2]} FLOP/B, bound by {row[1]}" for row in rows if len(row) > 2)
    drawn = _roof(on.bandwidth_tb, peak, marks)
    return Section(title, ("", "bound by", "FLOP/B", "endless context", "TFLOP/s at most", "ms/call at least"),
                   rows, tuple(says),
                   svg.picture(title, f"Ridge at {ridge:.1f} FLOP/B. {words}", drawn.height, drawn.parts))


def _roof(bandwidth: float, peak: float, marks: list[tuple[str, str, float, float]]) -> svg.Log:
    """The two limits and the marks under them; marks that coincide share their words."""
    ridge, seen = peak / bandwidth, [x for _, _, x, _ in marks]
    low, high = min(1.0, ridge / 10, *seen), max(10 * ridge, *(2 * x for x in seen), 10)
    plot = svg.Log((low, high), (bandwidth * low, 2 * peak), "FLOP per byte", "TFLOP/s at most")
    left, corner, right = (plot.at(x, min(peak, x * bandwidth)) for x in (low, ridge, high))
    plot.parts += [svg.curve((left, corner, right), "currentColor"),
                   svg.line(corner[0], 16, corner[0], plot.bottom, 0.6, "4 4"),
                   svg.text(corner[0] - 6, plot.bottom - 8, f"ridge {ridge:.1f}", "end")]
    words: dict[tuple[int, int], list[str]] = {}
    for kind, name, x, y in marks:
        at = plot.at(x, y)
        plot.parts.append(svg.mark(kind, *at))
        words.setdefault((round(at[0] / 30), round(at[1] / 15)), [*map(str, at)]).append(name)
    for x, y, *names in words.values():
        end = "end" if float(x) > svg.WIDTH - 120 else "start"
        plot.parts.append(svg.text(float(x) + (-4 if end == "end" else 10), float(y) + 20, ", ".join(names), end))
    return plot


def crossover(setup: Setup) -> Section:
    """FLOPs of a call in naive and in absorbed mode, and where they cross."""
    title = "Naive or absorbed"
    config, why = nb.reason(setup.config)
    tokens, why_not = nb.reason(lambda: (positive_int("new_tokens", setup.new_tokens),
                                         positive_int("context", setup.context)))
    if config is None or tokens is None:
        return Section(title, (), (), (why or why_not,))
    t, cached = tokens
    naive, absorbed = (_attention(mode, config, t, cached) for mode in MODES)
    endless, here, least = counts.crossover(config), counts.crossover(config, cached), min(naive, absorbed)
    crosses = endless < math.inf
    rows = (("naive", _flops(naive), f"{naive / least:.3g}"), ("absorbed", _flops(absorbed), f"{absorbed / least:.3g}"))
    n, r, v = config.qk_nope_head_dim, config.kv_lora_rank, config.v_head_dim
    shared = _flops(counts.projections(config, t).flops)
    says = [f"FLOPs of one layer and request, all heads; new tokens: {t:,}, cached: {cached:,}. Naive rebuilds keys "
            f"and values from the latents. Both also spend {shared} on projections.",
            "Absorbed needs fewer here." if absorbed < naive else "Naive needs fewer here."]
    if not crosses:
        says.append(f"There is no crossover: 2r = {2 * r:,} is not above n + v = {n + v:,}, so absorbed attention is "
                    "never the dearer one, however many tokens are new.")
    else:
        says.append(f"They cross at T* = r(n + v) / (2r - n - v) = {r * (n + v):,} / {2 * r - n - v:,} = {endless:.1f} "
                    f"new tokens over an endless cache, and at {here:.1f} over {cached:,} cached tokens.")
    most = 10 ** math.ceil(math.log10(max(10 * endless if crosses else 1000, 2 * t, 1000)))
    ends = [_attention(mode, config, new, cached) for mode in MODES for new in (1, most)]
    plot = svg.Log((1, most), (min(ends), max(ends)), "new tokens in one call", "FLOPs")
    for i, (name, dash) in enumerate(MODES.items()):
        points = [plot.at(new, _attention(name, config, new, cached)) for new in _steps(most)]
        key = [(svg.LEFT + 12, 30 + 20 * i), (svg.LEFT + 44, 30 + 20 * i)]
        plot.parts += [svg.curve(line, svg.COLORS[name], dash) for line in (points, key)]
        plot.parts += [svg.text(svg.LEFT + 50, 35 + 20 * i, name),
                       svg.mark(name, *plot.at(t, _attention(name, config, t, cached)))]
    if crosses and here >= 1:
        x = plot.at(here, max(ends))[0]
        plot.parts += [svg.line(x, 16, x, plot.bottom, 0.6, "4 4"), svg.text(x + 6, plot.bottom - 8, f"{here:.1f}")]
    words = f"Two rising curves. At {t:,} new tokens naive {rows[0][1]}, absorbed {rows[1][1]}. {says[-1]}"
    return Section(title, ("", "FLOPs", "times the lesser"), rows, tuple(says),
                   svg.picture(title, words, plot.height, plot.parts))


def _attention(mode: str, config: MLAConfig, new: int, cached: int) -> int:
    return counts.attention(config, new, cached, mode).flops


def _steps(most: int) -> list[int]:
    """About eight whole numbers to a decade, from 1 to ``most``."""
    return sorted({round(10 ** (i / 8)) for i in range(8 * round(math.log10(most)) + 1)})


def _flops(count: int) -> str:
    """A count of FLOPs with a prefix."""
    for unit, size in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:,.4g} {unit}FLOP"
    return f"{count:,} FLOP"
