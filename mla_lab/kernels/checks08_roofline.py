"""Case 8: how much arithmetic and how many bytes a decode step is, and what follows for real GPUs.

The oracles do not share the formulas: products are counted while they run, bytes are those of arrays that exist, and
crossovers are searched for. No check here looks at a clock.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..arrays import fresh
from ..attention import Projected, attend
from ..ball import Rounding
from ..bounds import ball, compare
from ..checks.common import SMALL, judge
from ..config import MLAConfig
from ..faults import Fault
from ..models import get_model
from ..serving.gpus import get_gpu
from ..verdict import Check, Setting, Verdict, exactly
from . import decode
from .counts import Premultiplied, Work, absorbed_kernel, attention, crossover, premultiplied
from .roofline import DEVICES, Device, intensity_limit

PUBLISHED = ("H800", "H200", "H20", "B200")  # those of which `mla_lab.serving.gpus` has figures as well
CONTEXTS = tuple(2**i for i in range(8, 21, 3))


def all_flops(config: MLAConfig, new: int, cached: int, form: str, causal: bool = True) -> int:
    return attention(config, new, cached, form, causal=causal).flops


@dataclass(frozen=True)
class Rules:
    """What is counted how; a planted fault replaces a field."""

    flops: Callable[..., int] = all_flops  # (config, new, cached, form, causal)
    step: Callable[..., Work] = absorbed_kernel  # (config, new, cached, itemsize)
    devices: tuple[Device, ...] = tuple(DEVICES[name] for name in PUBLISHED)
    crossover: Callable[..., float] = crossover  # (config, cached)
    weights: Callable[[MLAConfig], Premultiplied] = premultiplied


RIGHT = Rules()
V3 = get_model("DeepSeek-V3").mla


class Counted(np.ndarray):
    """An array that counts the FLOPs of each matrix product it takes part in."""

    flops = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **how):
        plain = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
        if out is not None:
            how["out"] = tuple(x.view(np.ndarray) if isinstance(x, Counted) else x for x in out)
        result = getattr(ufunc, method)(*plain, **how)
        if ufunc is np.matmul:
            Counted.flops += 2 * result.size * plain[0].shape[-1]
        return result.view(Counted) if isinstance(result, np.ndarray) else result


def executed(config: MLAConfig, new: int, cached: int, mode: str) -> int:
    """FLOPs of the matrix products that attention really does, in NumPy, whatever the backend."""
    draw, c, s = fresh(80), config, cached + new
    h, n, r, p, v = (c.num_attention_heads, c.qk_nope_head_dim, c.kv_lora_rank, c.qk_rope_head_dim, c.v_head_dim)
    shapes = (1, h, new, n), (1, h, new, p), (1, s, r), (1, s, p), (h, n, r), (h, r, v)
    nope, rope, latents, keys, w_uk, w_uv = (draw(*shape).view(Counted) for shape in shapes)
    Counted.flops = 0
    attend(Projected(nope, rope, latents, keys), latents, keys, w_uk, w_uv, c, np.ones((new, s), bool), mode)
    return Counted.flops


# --- the checks -------------------------------------------------------------------------------------------------------

def flops(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    cases = [(new, cached, mode) for new, cached in ((1, 11), (5, 7)) for mode in ("absorb", "naive")]
    form = {"absorb": "absorbed", "naive": "naive"}
    return exactly(FLOPS, [rules.flops(SMALL, new, cached, form[mode], False) for new, cached, mode in cases],
                   [executed(SMALL, new, cached, mode) for new, cached, mode in cases],
                   "FLOP of all products, absorbed and naive, for 1 token behind 11 and 5 behind 7")


def bytes_moved(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    backend, saw, want = setting.backend, [], []
    r, width = SMALL.kv_lora_rank, SMALL.cached_width
    for new, cached in ((1, 11), (3, 20)):
        q, cache = (backend.asarray(fresh(81)(*shape)) for shape in (
            (1, new, SMALL.num_attention_heads, width), (1, cached + new, width)))
        out, _ = decode(q, cache, [cached + new], 0.25, r)
        saw.append(rules.step(SMALL, new, cached, q.itemsize).bytes)
        want.append(sum(math.prod(x.shape) * x.itemsize for x in (q, cache, out)))
    return exactly(BYTES, saw, want, "B of queries, cached rows and outputs, each once")


def intensity(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    h, r, p = V3.num_attention_heads, V3.kv_lora_rank, V3.qk_rope_head_dim
    works = [rules.step(V3, 1, s - 1, 2) for s in CONTEXTS]
    seen = [Fraction(work.flops, work.bytes) for work in works]
    limit = Fraction(2 * h * (2 * r + p), 2 * (r + p))
    left = limit * h * (2 * r + p) / ((r + p) * CONTEXTS[-1])  # queries and outputs, over the rows of the cache
    ok = (sorted(set(seen)) == seen and seen[-1] < limit <= seen[-1] + left and intensity_limit(V3) == float(limit)
          and all((128 * work).intensity == work.intensity for work in works))
    return Verdict(INTENSITY, [float(x) for x in seen], f"from below, and to {float(limit):.1f} FLOP/B", None, ok,
                   f"FLOP/B of contexts of {', '.join(map(str, CONTEXTS))} tokens, 16 bits")


def ridge(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Two tables of figures, and two ways: a ridge, and the times of one more cached token."""
    saw, want = {}, {}
    for device in rules.devices:
        gpu, pair, row = get_gpu(device.name), 2 * (2 * V3.kv_lora_rank + V3.qk_rope_head_dim), 2 * V3.cached_width
        slower = lambda rows, gpu=gpu, pair=pair, row=row: (  # arithmetic takes longer than reading
            rows * pair / gpu.bf16_tflops > row / gpu.bandwidth_tb)
        saw[device.name] = device.bound(intensity_limit(V3)), device.rows_at_ridge(V3) < 128
        want[device.name] = "compute" if slower(128) else "memory", slower(128)
    return exactly(RIDGE, saw, want, "which limit is nearer, and whether 128 query rows lie beyond the ridge")


def prefill(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    counts = range(1, 16)
    cheaper = lambda new, cached: "absorbed" if rules.flops(V3, new, cached, "absorbed") < rules.flops(
        V3, new, cached, "naive") else "naive"
    saw = [[cheaper(2**i, 0) for i in counts], [cheaper(1, 2**i) for i in counts]]
    return exactly(PREFILL, saw, [["naive"] * len(counts), ["absorbed"] * len(counts)], "prompts, then contexts")


def crossing(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """The formula against a search for the first number of tokens at which expanding is not dearer."""
    saw, want = [], []
    for config in (V3, SMALL, replace(V3, num_attention_heads=16, qk_rope_head_dim=32)):
        for cached in (128, 1024, 16384):
            saw.append(math.ceil(rules.crossover(config, cached)))
            want.append(next(new for new in range(1, 2 * cached + 1) if attention(config, new, cached, "naive").flops
                             <= attention(config, new, cached, "absorbed").flops))
    return exactly(CROSSOVER, saw, want, "new tokens; V3, a small layer, V3 with 16 heads and 32 rope channels")


def merged(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    c = SMALL
    h, q, n, r, v, d = (c.num_attention_heads, c.q_lora_rank, c.qk_nope_head_dim, c.kv_lora_rank, c.v_head_dim,
                        c.hidden_size)
    draw = fresh(82)
    uq, uk, uv, o = draw(h, q, n), draw(h, n, r), draw(h, r, v), draw(h, v, d)
    found = Premultiplied(uq.size + uk.size, (uq @ uk).size, uv.size + o.size, (uv @ o).size)
    return exactly(MERGED, rules.weights(c), found, "elements of the matrices themselves")


def same_query(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    c, draw, backend = SMALL, fresh(83), setting.backend
    arrays = draw(5, c.q_lora_rank), draw(c.q_lora_rank, c.qk_nope_head_dim), draw(c.qk_nope_head_dim, c.kv_lora_rank)
    x, uq, uk = (backend.asarray(a) for a in arrays)
    bx, bq, bk = (ball(a, Rounding.of(backend)) for a in (x, uq, uk))
    return judge(SAME, compare(x @ (uq @ uk), (x @ uq) @ uk, bx @ (bq @ bk), (bx @ bq) @ bk), "one head")


FLOPS = "the FLOPs that are counted are those of the matrix products that run, absorbed and naive"
BYTES = "the bytes that are counted are those of queries, cached rows and outputs"
INTENSITY = "the intensity of decode grows with the context to 241.8 FLOP/B, whatever the batch"
RIDGE = "128 heads are compute-bound on H200 and H20, and memory-bound on H800 and B200"
PREFILL = "a fresh prompt of any length is cheaper expanded, and one token behind any context absorbed"
CROSSOVER = "the formula for the crossover finds the number of new tokens that a search finds"
MERGED = "premultiplied matrices have the counted number of weights"
SAME = "a premultiplied matrix makes the same query as its two factors"

CHECKS = (
    Check("8.flops", FLOPS, flops), Check("8.bytes", BYTES, bytes_moved), Check("8.intensity", INTENSITY, intensity),
    Check("8.ridge", RIDGE, ridge), Check("8.prefill", PREFILL, prefill), Check("8.crossover", CROSSOVER, crossing),
    Check("8.merged", MERGED, merged), Check("8.same_query", SAME, same_query),
)


# --- ways to get it wrong ---------------------------------------------------------------------------------------------

def one_per_mac(config, new, cached, form, causal=True):
    return all_flops(config, new, cached, form, causal) // 2


def expands_new_only(config, new, cached, form, causal=True):
    return all_flops(config, new, cached, "mha" if form == "naive" else form, causal)


def keys_and_values_apart(config, new, cached, itemsize=2):
    return absorbed_kernel(config, new, cached, itemsize) + Work(0, (cached + new) * config.kv_lora_rank * itemsize)


def rows_for_each_head(config, new, cached, itemsize=2):
    again = (config.num_attention_heads - 1) * (cached + new) * config.cached_width * itemsize
    return absorbed_kernel(config, new, cached, itemsize) + Work(0, again)


def whole_pair(config, cached=None):
    r = config.kv_lora_rank
    return r * (config.qk_nope_head_dim + config.v_head_dim) / (2 * r + config.qk_rope_head_dim)


def one_matrix_for_all_heads(config):
    right, h = premultiplied(config), config.num_attention_heads
    return replace(right, query_merged=right.query_merged // h, output_merged=right.output_merged // h)


PLANTED = (
    Fault("one_flop_per_mac", "a multiplication with its addition is counted as one FLOP", "", {"flops": one_per_mac},
          ("8.flops",), "ratios of two forms come out right"),
    Fault("expands_new_only", "a latent cache is counted as expanded once, not in every step", "",
          {"flops": expands_new_only}, ("8.flops", "8.prefill"), "for a fresh prompt there is no difference"),
    Fault("keys_and_values_apart", "keys and values are counted as two streams, though they are the same bytes",
          "tenstorrent/tt-metal#55764", {"step": keys_and_values_apart}, ("8.bytes", "8.intensity"),
          "for MHA it is right"),
    Fault("rows_for_each_head", "cached rows are read again for every head", "", {"step": rows_for_each_head},
          ("8.bytes", "8.intensity"), "on one head nothing is wrong"),
    Fault("sparse_peak", "the peak of a data sheet is taken for 2:4 sparsity, which is twice the dense one", "",
          {"devices": tuple(replace(device, flops=2 * device.flops) for device in RIGHT.devices)}, ("8.ridge",),
          "the number stands first on the data sheet"),
    Fault("whole_pair", "an absorbed pair is compared with nothing, though a rebuilt pair is multiplied as well", "",
          {"crossover": whole_pair}, ("8.crossover",), "120 is as plausible as 171"),
    Fault("one_matrix_for_all_heads", "the merged matrix is counted as if heads could share it", "",
          {"weights": one_matrix_for_all_heads}, ("8.merged",), "on one head nothing is wrong"),
)

