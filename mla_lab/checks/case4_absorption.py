"""Case 4: absorbing W_UK into the query and W_UV into the output changes the order of products and nothing else."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from .. import exact
from ..arrays import Array, Backend, fresh, to_numpy
from ..attention import (
    Attended,
    Projected,
    attend,
    scores_absorb,
    scores_naive,
    values_absorb,
    values_naive,
    visible_keys,
)
from ..bounds import compare
from ..config import MLAConfig
from ..memory import peak_bytes
from ..recipe import RIGHT, split_per_head
from ..reference import grouped_query_attention
from ..rope import frequencies, rotate
from ..verdict import Check, Given, Setting, Verdict, exactly
from ..weights import exact_noise
from .common import BALLS, balls, judge, right, under_test, up_projections

TOKENS, CACHED, START = 3, 40, 5000  # positions beyond DeepSeek-V3's original context
SQUARES = (MLAConfig(hidden_size=20, num_attention_heads=3, kv_lora_rank=12, qk_nope_head_dim=12, qk_rope_head_dim=4,
                     v_head_dim=12),
           MLAConfig(hidden_size=20, num_attention_heads=3, kv_lora_rank=36, qk_nope_head_dim=5, qk_rope_head_dim=4,
                     v_head_dim=7))


@dataclass(frozen=True)
class Heads:
    """Inputs of attention at a model's own head dimensions, as one backend stores them."""

    q: Projected
    kv_b: Array  # [h (n+v), r]
    visible: Array

    def split(self, recipe, config: MLAConfig) -> tuple[Array, Array]:
        return recipe.split_kv_b(self.kv_b, config)


def head_arrays(
    config: MLAConfig, backend: Backend, tokens: int, cached: int, seed: int, given: Given | None = None
) -> Heads:
    """Standard normal queries and latents, up-projections of variance near 1/r; rope parts from position `START`.

    Of a layer that was read, the up-projections are its own, and so are the weights of the norm behind the latents.
    """
    draw, h, r = fresh(seed), config.num_attention_heads, config.kv_lora_rank
    q_nope, q_rope = draw(1, h, tokens, config.qk_nope_head_dim), draw(1, h, tokens, config.qk_rope_head_dim)
    c_kv, k_rope = draw(1, cached, r), draw(1, cached, config.qk_rope_head_dim)
    if given is None:
        kv_b = exact_noise(np.random.default_rng(seed), h * (config.qk_nope_head_dim + config.v_head_dim), r)
    else:
        kv_b = up_projections(given, config)
        c_kv = c_kv * given.arrays["kv_a_layernorm.weight"]
    at = np.arange(START, START + cached)
    turned = rotate(q_rope, at[-tokens:], frequencies(config)), rotate(k_rope, at, frequencies(config))
    seen = visible_keys((cached - tokens,), (cached,), tokens, cached, backend.full((1,), 0.0))
    q = Projected(*(backend.asarray(x) for x in (q_nope, turned[0], c_kv, turned[1])))
    return Heads(q, backend.asarray(kv_b), seen)


def run(heads: Heads, config: MLAConfig, mode: str, recipe) -> Attended:
    return attend(
        heads.q, heads.q.c_kv, heads.q.k_rope, *heads.split(recipe, config), config, heads.visible, mode, recipe
    )


@lru_cache(maxsize=2)
def oracle(
    config: MLAConfig, backend: Backend, given: Given | None = None
) -> tuple[Heads, Attended, Attended, Attended]:
    """Inputs, the naive result by the right conventions, and the balls of both modes."""
    heads = head_arrays(config, backend, TOKENS, CACHED, 40, given)
    spheres = Heads(Projected(*balls(backend, heads.q.q_nope, heads.q.q_rope, heads.q.c_kv, heads.q.k_rope)),
                    *balls(backend, heads.kv_b), to_numpy(heads.visible))
    return (
        heads,
        run(heads, config, "naive", right(backend)),
        *(run(spheres, config, m, BALLS) for m in ("naive", "absorb")),
    )


def agree(claim: str, part: str):
    """A check that one part of the absorbed result lies inside the rounding bound of the naive one."""
    def check(setting: Setting) -> Verdict:
        heads, naive, *radii = oracle(setting.config, setting.backend, setting.state)
        absorbed = run(heads, setting.config, "absorb", under_test(setting))
        distance = compare(getattr(absorbed, part), getattr(naive, part), *(getattr(r, part) for r in radii))
        return judge(claim, distance, f"{setting.config.num_attention_heads} heads, {CACHED} cached tokens")
    return check


def mqa(setting: Setting) -> Verdict:
    """One key-value head of width r + p whose first r channels are the value, then W_UV."""
    config, backend, recipe = setting.config, setting.backend, under_test(setting)
    heads, naive, radius, _ = oracle(config, backend, setting.state)

    def as_mqa(q: Projected, kv_b, visible, recipe, xp):
        w_uk, w_uv = recipe.split_kv_b(kv_b, config)
        query = xp.concat([recipe.store(q.q_nope @ w_uk), q.q_rope], axis=-1)  # [b, h, t, r+p]
        key = xp.concat([q.c_kv, q.k_rope], axis=-1)[:, None, :, :]  # [b, 1, s, r+p]
        z, _ = grouped_query_attention(query, key, q.c_kv[:, None, :, :], recipe.scale(config), visible, recipe.store)
        return recipe.store(z @ w_uv)

    saw = as_mqa(heads.q, heads.kv_b, heads.visible, recipe, backend.xp)
    spheres = balls(backend, heads.q.q_nope, heads.q.q_rope, heads.q.c_kv, heads.q.k_rope, heads.kv_b)
    own = as_mqa(Projected(*spheres[:4]), spheres[4], to_numpy(heads.visible), BALLS, spheres[0].namespace)
    return judge(MQA, compare(saw, naive.heads, own, radius.heads))


def differing(setting: Setting, config: MLAConfig) -> tuple[int, int]:
    """How many logits and outputs of the absorbed form, modulo a prime, are not the naive ones; and of how many."""
    backend = setting.backend
    h, n, p, r = (config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank)
    recipe = replace(setting.recipe, store=exact.exact_store(max(n, p, r)))
    shapes = ((1, h, 2, n), (1, h, 2, p), (1, 5, r), (1, 5, p), (h * (n + config.v_head_dim), r), (1, h, 2, 5))
    *parts, kv_b, shares = (exact.residues(backend, 41 + i, *shape) for i, shape in enumerate(shapes))
    q = Projected(*parts)
    w_uk, w_uv = recipe.split_kv_b(kv_b, config)
    uk, uv = split_per_head(kv_b, config)
    naive = replace(RIGHT, store=exact.modulo)
    pairs = (
        (scores_absorb(q, q.c_kv, q.k_rope, w_uk, recipe), scores_naive(q, q.c_kv, q.k_rope, uk, naive)),
        (values_absorb(shares, q.c_kv, w_uv, recipe), values_naive(shares, q.c_kv, uv, naive)),
    )
    differ = sum(int(np.sum(to_numpy(exact.modulo(a) != exact.modulo(b)))) for a, b in pairs)
    return differ, sum(math.prod(a.shape) for a, _ in pairs)


def to_the_bit(setting: Setting) -> Verdict:
    differ, total = differing(setting, setting.config)
    return exactly(BIT, differ, 0, f"of {total} logits and outputs, integers modulo {exact.PRIME}")


def square(setting: Setting) -> Verdict:
    """First n = r = v, then h (n + v) = r: what is transposed by mistake still has the right shape."""
    counts = [differing(setting, config) for config in SQUARES]
    return exactly(SQUARE, sum(c[0] for c in counts), 0, f"of {sum(c[1] for c in counts)} logits and outputs, "
                   f"integers modulo {exact.PRIME}")


def all_bits(setting: Setting) -> Verdict:
    """TF32 keeps 10 bits behind the leading one: 2049 would become 2048. In float32, whatever the chosen dtype."""
    backend, recipe = setting.backend.with_dtype("float32"), setting.recipe
    odd = np.arange(2049, 2049 + 2 * 5 * 7, 2, dtype=np.float64).reshape(1, 5, 7)  # exact in float32
    one = np.eye(7)[None, None, :3]  # each query picks one channel of the keys
    q = Projected(*(backend.asarray(x) for x in (one, one, odd, odd + 1024)))
    up, shares = backend.asarray(np.eye(7)[None]), backend.asarray(np.eye(5)[None, None, :3])
    logits, values = (2 * odd + 1024)[:, None, :, :3].mT, odd[:, None, :3, :]
    differ = sum(int(np.sum(to_numpy(saw) != expected)) for saw, expected in (
        (scores_naive(q, q.c_kv, q.k_rope, up, recipe), logits),
        (scores_absorb(q, q.c_kv, q.k_rope, up, recipe), logits),
        (values_naive(shares, q.c_kv, up, recipe), values), (values_absorb(shares, q.c_kv, up, recipe), values)))
    return exactly(ALL_BITS, differ, 0, f"of {2 * (logits.size + values.size)} logits and outputs, odd numbers of 12 "
                   "and 13 bits times 1, both modes")


def premultiplied(setting: Setting) -> Verdict:
    """Count at the model's own size; prove equality to the bit on its first heads."""
    config, backend, kept, d = setting.config, setting.backend, 2, 96
    h, r, v = config.num_attention_heads, config.kv_lora_rank, config.v_head_dim
    small = replace(config, num_attention_heads=kept)
    kv_b = exact.residues(backend, 50, kept * (config.qk_nope_head_dim + v), r)
    z, w_o = exact.residues(backend, 51, kept, 3, r), exact.residues(backend, 52, kept, v, d)
    mod = exact.exact_store(max(r, v))
    factored = mod(mod(z @ split_per_head(kv_b, small)[1]) @ w_o)  # [h, t, d], one summand a head
    merged = mod(z @ mod(setting.recipe.split_kv_b(kv_b, small)[1] @ w_o))
    same = not bool(np.any(to_numpy(factored != merged)))
    separate, product = h * r * v + h * v * config.hidden_size, h * r * config.hidden_size
    return Verdict(PREMULTIPLIED, same, True, None, same and product > separate,
                   f"{product:,} weights instead of {separate:,}: {product / separate:.2f} times as many")


def memory(setting: Setting) -> Verdict:
    config, backend, cached = setting.config, setting.backend, 160
    heads, recipe = head_arrays(config, backend, 1, cached, 53, setting.state), under_test(setting)
    peak = peak_bytes(backend, lambda: run(heads, config, recipe.decode_mode, recipe))
    width = backend.xp.finfo(backend.native).bits // 8
    expanded = cached * config.num_attention_heads * min(config.qk_nope_head_dim, config.v_head_dim) * width
    return Verdict(
        MEMORY,
        peak,
        "less than they would take",
        expanded,
        peak < expanded,
        f"peak bytes of a step over {cached} tokens; expanded keys or values alone: {expanded / 2**20:.1f} MiB",
    )


def ladder(setting: Setting) -> Verdict:
    """Distance over (unit roundoff x rms size), in each dtype. Between neighbouring dtypes a rounding error keeps this
    quotient and a wrong formula changes it by the ratio of the unit roundoffs; the bound is half way (log scale). Where
    a softmax is so sharp that nothing was rounded, the distance is 0 and says nothing."""
    rungs, worst = [], 0.0
    config = replace(setting.config, num_attention_heads=min(setting.config.num_attention_heads, 8))
    for dtype in ("float64", "float32", "bfloat16"):
        backend = setting.backend.with_dtype(dtype)
        heads = head_arrays(config, backend, TOKENS, CACHED, 54, setting.state)
        recipe = replace(setting.recipe, store=backend.store)
        a, b = (to_numpy(x.heads).astype(np.float64)
                for x in (run(heads, config, "naive", right(backend)), run(heads, config, "absorb", recipe)))
        rungs.append((float(np.sqrt(np.mean((a - b) ** 2)) / np.sqrt(np.mean(a**2)) / backend.unit), backend.unit))
    for (low, fine), (high, coarse) in pairwise(rungs):
        if not math.isfinite(low + high):
            worst = math.inf
        elif low and high:
            worst = max(worst, abs(math.log(low / high)) / (0.5 * math.log(coarse / fine)))
    return Verdict(
        LADDER,
        worst,
        0.0,
        1.0,
        worst <= 1,
        "distance / (unit roundoff x rms): " + ", ".join(f"{c:.1f}" for c, _ in rungs) + " from float64 to bfloat16",
    )


LOGITS = "absorbed logits equal the naive ones"
WEIGHTS = "absorbed attention weights equal the naive ones"
OUTPUT = "absorbed head outputs equal the naive ones"
LSE = "the absorbed log-sum-exp equals the naive one"
MQA = "absorbed MLA is MQA with one key of width r + p whose first r channels are the value, and then W_UV"
BIT = "absorbed logits and outputs equal the naive ones to the bit, modulo a prime"
SQUARE = "square W_UK, W_UV and kv_b_proj are read the right way round, to the bit"
ALL_BITS = "in float32 the products of attention keep every bit of their inputs"
PREMULTIPLIED = "W_UV W_O multiplied in advance gives the same output and needs more weights, not fewer"
MEMORY = "an absorbed decode step never holds the expanded keys or values"
LADDER = "the distance shrinks with the dtype's precision, as rounding does and a wrong formula does not"

CHECKS = (
    Check("4.logits", LOGITS, agree(LOGITS, "logits")), Check("4.weights", WEIGHTS, agree(WEIGHTS, "weights")),
    Check("4.output", OUTPUT, agree(OUTPUT, "heads")), Check("4.lse", LSE, agree(LSE, "lse")), Check("4.mqa", MQA, mqa),
    Check("4.to_the_bit", BIT, to_the_bit), Check("4.square", SQUARE, square), Check("4.all_bits", ALL_BITS, all_bits),
    Check("4.premultiplied", PREMULTIPLIED, premultiplied),
    Check("4.memory", MEMORY, memory), Check("4.ladder", LADDER, ladder),
)
