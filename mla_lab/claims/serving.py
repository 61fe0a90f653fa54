"""Claims on serving: what fits, pages, formats, ranks, and what memory alone cannot decide."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .. import footprint as fp
from ..arrays import fresh, get_backend, to_numpy
from ..checks import CHECKS
from ..checks.common import SMALL
from ..recipe import RIGHT as RECIPE
from ..recipe import Recipe
from ..reference import grouped_query_attention
from ..serving import checks11_fp8, checks12_parallel
from ..serving import published_day as day
from ..serving.checks13_serving import MHA, RIGHT, V3, Rules, eight_h100
from ..serving.faults11 import toward_zero
from ..serving.page_size import KERNEL_PAGES, page_cost, prefixes_that_fit
from ..serving.parallel import RIGHT as RANKS
from ..serving.parallel import Rules as RankRules
from ..serving.planted13 import NoWeights
from ..serving.quantize import STORING, Storing, band
from ..serving.traces import Chat, synthetic
from ..verdict import Setting
from .ledger import Finding
from .size import GQA8, row

TEN = 10  # requests


def setting(recipe: Recipe = RECIPE) -> Setting:
    return Setting(get_backend(), SMALL, "small", recipe)


def batch_of_ten(rules: Rules = RIGHT) -> Finding:
    """Whether MHA's cache is what keeps the batch below ten: it is if MLA's, on the same GPUs, does not."""
    users = eight_h100(setting(), rules).saw
    because = {weights: users[f"V3 with MHA, {weights}"] <= TEN < users[f"DeepSeek-V3, {weights}"]
               for weights in ("fp8", "int4")}
    none = users["V3 with MHA, no weights, all memory"]
    return Finding(because["int4"], "users of 8,192 tokens with MHA's and MLA's cache: " + ", ".join(
        f"{users[f'V3 with MHA, {w}']} and {users[f'DeepSeek-V3, {w}']} with {w} weights" for w in because)
        + f"; {none} with MHA's cache and no weights", because["fp8"])


def pages(trace: Chat | None = None, sizes: tuple[int, ...] = (16, 32, 64, 128)) -> Finding:
    """On a synthetic trace: empty slots, table entries, and shared beginnings found, for each page size."""
    costs = {size: page_cost(synthetic(trace), size) for size in sizes}
    small, large = costs[sizes[0]], costs[sizes[-2]]
    required = {name for name, page in KERNEL_PAGES.items() if page in map(str, sizes[-2:])}
    text = "; ".join(f"{size}: {fp.percent(c.empty_share)} empty, {c.table_bytes / 1000:.0f} kB of tables, "
                     f"{fp.percent(c.hit_share, 1)} of prompts found" for size, c in costs.items())
    better = large.empty_share <= small.empty_share and large.hit_share >= small.hit_share
    return Finding("FlashMLA" in required and large.table_bytes < small.table_bytes,
                   f"required by {', '.join(sorted(required))}; {text}", better)


def outlier_scales(rules: Storing = STORING) -> Finding:
    with np.errstate(all="ignore"):
        saw = checks11_fp8.outliers(setting(), rules).saw
        normed = checks11_fp8.same_band(setting(), rules).saw
    low, high = band("e4m3")
    far, kept = (saw[f"e4m3, 2^18 times{tail}"] for tail in ("", ", other tiles"))
    return Finding(far > 0.5 > high >= kept, f"e4m3 on normed latents {fp.percent(min(normed.values()), 1)} to "
                   f"{fp.percent(max(normed.values()), 1)} at any granularity, with one channel 1,000 times larger "
                   f"{fp.percent(saw['tensor'], 1)} with one scale and {fp.percent(saw['tile'], 1)} with tiles; 2^18 "
                   f"times larger: {fp.percent(far, 0)} and {fp.percent(kept, 1)}", not low <= saw["tensor"] <= high)


def prefixes(said: int = 50, budget: int = 10**11, ours: int | None = None) -> Finding:
    """Prefixes of 2,048 tokens in 100 GB, against MHA and GQA-8 in as many layers and 16 bit."""
    mla, mha, gqa = (prefixes_that_fit(budget, 2048, 61 * n) for n in (ours or row(V3), row(MHA), row(GQA8)))
    more = {name: mla / n for name, n in (("MHA", mha), ("GQA-8", gqa))}
    exact = row(MHA) / (ours or row(V3))
    return Finding(more["MHA"] >= said, f"in 100 GB {mla:,} prefixes of 2,048 tokens against {mha:,} with MHA and "
                   f"{gqa:,} with GQA-8; {exact:.1f} times the tokens of MHA", more["GQA-8"] >= said)


def quality(heads: int = 6, groups: int = 2) -> Finding:
    """GQA made of MHA by averaging the keys and values of a group: nothing is lost if they agree, else something is."""
    draw, backend, each = fresh(7), get_backend(), heads // groups
    q, own = draw(1, heads, 5, 8), draw(2, 1, heads, 9, 8)
    alike = np.repeat(draw(2, 1, groups, 9, 8), each, axis=2)
    seen = backend.xp.asarray(np.ones((1, 1, 5, 9), bool))

    def lost(kv: np.ndarray) -> float:
        mean = kv.reshape(2, 1, groups, each, 9, 8).mean(axis=3)
        full, less = (to_numpy(grouped_query_attention(*map(backend.asarray, (q, *x)), 8**-0.5, seen)[0])
                      for x in (kv, mean))
        return float(np.max(np.abs(full - less)))
    nothing, something = lost(alike) < 1e-12, lost(own) > 1e-3
    both = nothing and something
    return Finding(None if both else something, f"grouping {heads} heads in {groups} loses "
                   f"{'nothing' if nothing else 'something'} for weights that agree within groups and "
                   f"{'something' if something else 'nothing'} for others: the trained weights decide")


def ranks(rules: RankRules = RANKS) -> Finding:
    """What needs no cluster: equality, what a rank keeps, what it sends, and the error of FP8 rows in attention."""
    checks = {check.id: check for check in checks12_parallel.CHECKS}
    equal, sent = (checks[id].run(setting(), rules) for id in ("12.tp", "12.communication"))
    kept = checks["12.replicated"].run(setting(), rules).saw["tp on 4"]
    carried = {check.id: check for check in checks11_fp8.CHECKS}["11.carried"].run(setting())
    settled = equal.ok and sent.ok and carried.ok
    whole = all(n == SMALL.cached_width for n in kept)
    return Finding(not settled,
                   f"2 and 4 ranks equal one process: {equal.ok}; each keeps the whole latent: {whole}; one all-reduce "
                   f"a call: {sent.ok}; FP8 moves outputs no more than its steps allow: {carried.ok}")


def outgrows(rules: Rules = RIGHT) -> Finding:
    """From how many tokens the cache is larger than the FP8 weights, and whether GPUs hold that many."""
    one, many = (rules.on("H200", n, kind) for n, kind in ((8, "tp"), (144, "dp")))
    at, mha = one.outgrown_at(), rules.on("H200", 8, model=MHA).outgrown_at()
    return Finding(many.tokens() > at, f"from {at:,} tokens of all users with MLA and {mha:,} with MHA, against FP8 "
                   f"weights of {float(one.weight_bytes()) / 1e9:.0f} GB; 8 H200 (TP) hold {one.tokens():,} tokens, "
                   f"144 (DP) {many.tokens() / 1e6:.0f} million", one.tokens() > at)


def room(rules: Rules = RIGHT, less: object = V3) -> Finding:
    """The same GPUs with MHA's and with MLA's cache: tokens, users of a context, and the longest context of 8 users."""
    pairs = []
    for model in (MHA, less):
        d = rules.on("H200", 16, model=model)
        pairs.append((d.tokens(), d.users(), d.tokens() // 8))
    better = all(a < b for a, b in zip(*pairs, strict=True))
    return Finding(better, "16 H200 (TP), MHA's cache and then MLA's: " + ", ".join(
        f"{name} {a:,} and {b:,}" for name, (a, b) in zip(
            ("tokens", "users of 8,192", "tokens for each of 8 users"), zip(*pairs, strict=True), strict=True)))


def kernels(recipe: Recipe = RECIPE, widest: int = 256) -> Finding:
    """The absorbed key is wider than general kernels take; an MQA of plain products gives the same all the same."""
    m, mqa = V3.mla, next(c for c in CHECKS if c.id == "4.mqa").run(setting(recipe))
    padded = 2 * m.cached_width / (m.cached_width + m.kv_lora_rank) - 1
    return Finding(m.cached_width > widest,
                   f"a key of {m.cached_width} against {widest} in FlashAttention-2; as plain MQA the same output: "
                   f"{mqa.ok}, with values padded to {m.cached_width} for {fp.percent(padded, 1)} more FLOPs",
                   not mqa.ok)


def price(published: Callable[[], day.Day] = day.Day) -> Finding:
    """Prices of equal cache bytes, and a price against its cost: whether memory alone gives a price."""
    d = published()
    apart = d.price_miss.value / d.price_hit.value
    low, high = day.recomputed(d)["margin in %"]
    return Finding(None if apart > 1 and low > 0 else False,
                   f"an input token costs {apart:.1f} times as much computed as found in the cache, at equal bytes; "
                   f"revenue lay {low:.0f} to {high:.0f} % above the cost of the GPUs")


def one_price() -> day.Day:
    """The published day, had every input token cost the same."""
    return replace(day.Day(), price_hit=day.Day().price_miss)


SETTLE = {
    "A04": (batch_of_ten, {"rules": replace(RIGHT, gpu=lambda gpu: replace(gpu, memory_gb=4 * gpu.memory_gb))}),
    "A27": (pages, {"sizes": (1, 2, 4, 8)}),
    "A29": (outlier_scales, {"rules": replace(STORING, rounding=toward_zero)}),
    "A30": (prefixes, {"ours": 4096}),
    "A31": (quality, {"groups": 6}),
    "A32": (ranks, {"rules": replace(RANKS, combine=lambda comm, partial: partial)}),
    "B01": (outgrows, {"rules": replace(RIGHT, deployment=NoWeights)}),
    "B04": (room, {"less": MHA}),
    "B06": (kernels, {"widest": 1024}),
    "B07": (price, {"published": one_price}),
}
