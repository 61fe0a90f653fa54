"""Case 5 at its edges: far positions, many keys, faint input, no key at all, weights in eight bits.

Tests of ordinary size stay away from all of these, and each shows faults that are invisible elsewhere.
"""
from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..arrays import Backend, fresh, to_numpy
from ..attention import Projected, attend, visible_keys
from ..bounds import Distance, compare
from ..decode import attend_in_chunks
from ..fp8 import encode, spread
from ..verdict import Check, Given, Setting, Verdict, exactly
from ..weights import MLAWeights, exact_noise, random_state, shapes
from .case5_decode import in_pieces, layer
from .common import BALLS, SMALL, ball_weights, balls, judge, under_test, worst_of

FAR = replace(SMALL, qk_rope_head_dim=16)
FAINT = replace(SMALL, rms_norm_eps=2e-6)
KEYS, CUTS = 400, (0, 1, 1, 6, 305, 400)  # pieces of 1, 0, 5, 299 and 95 keys
FP8_BLOCK = (16, 24)


def far(setting: Setting) -> Verdict:
    """From 257 on, not every whole number is a bfloat16."""
    backend, start = setting.backend, 296
    state, hidden, full, radius = layer(FAR, backend, 301, 1, 72)
    saw, _ = in_pieces(hidden, state, FAR, backend, [start, 3, 1, 1], under_test(setting))
    late = radius[:, start:, :]
    return judge(FAR_CLAIM, compare(saw[:, start:, :], full[:, start:, :], late, late), "positions 296 to 300")


def faint(setting: Setting) -> Verdict:
    state, hidden, full, radius = layer(FAINT, setting.backend, 6, 2, 73, size=2.0**-10)
    saw, _ = in_pieces(hidden, state, FAINT, setting.backend, [3, 1, 2], under_test(setting))
    return judge(FAINT_CLAIM, compare(saw, full, radius, radius), "mean square of the input 2^-20, epsilon 2e-6")


def equal_keys(backend: Backend) -> Projected:
    """Queries of zero, to which all keys are equal, and latents whose mean differs between early and late keys."""
    draw, early = fresh(74), np.arange(KEYS)[:, None] < CUTS[-2]
    widths = SMALL.qk_nope_head_dim, SMALL.qk_rope_head_dim
    queries = (backend.full((1, SMALL.num_attention_heads, 2, width), 0.0) for width in widths)
    keys = (np.where(early, 1, -1) + draw(1, KEYS, SMALL.kv_lora_rank) / 4, draw(1, KEYS, SMALL.qk_rope_head_dim))
    return Projected(*queries, *map(backend.asarray, keys))


def against_the_mean(setting: Setting, *cuts: tuple[int, ...] | None) -> Distance:
    """Heads and LSE over `KEYS` equal keys, in pieces or not, against the plain mean of the values and ln s."""
    backend, q, n = setting.backend, equal_keys(setting.backend), SMALL.qk_nope_head_dim
    state = random_state(SMALL, backend, 75)
    mean = np.mean(to_numpy(q.c_kv)[0].astype(np.float64), axis=0)
    w_uv = [head[n:] for head in np.split(to_numpy(state["kv_b_proj.weight"]), SMALL.num_attention_heads)]
    expected = np.stack([[w @ mean] * 2 for w in w_uv])[None], np.full((1, len(w_uv), 2), math.log(KEYS))

    def both(q, weights, seen, recipe, mode, edges):
        if edges:
            return attend_in_chunks(q, q.c_kv, q.k_rope, weights, SMALL, seen, edges, mode, recipe)
        done = attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, SMALL, seen, mode, recipe)
        return done.heads, done.lse

    weights, seen = MLAWeights.from_hugging_face(state, SMALL, setting.recipe), backend.full((1, 1, 2, KEYS), 1.0) > 0
    spheres = Projected(*balls(backend, q.q_nope, q.q_rope, q.c_kv, q.k_rope)), ball_weights(state, SMALL, backend)
    distances = []
    for mode in ("naive", "absorb"):
        for edges in cuts:
            saw = both(q, weights, seen, under_test(setting), mode, edges)
            radii = both(*spheres, to_numpy(seen), BALLS, mode, edges)
            distances += [compare(*three) for three in zip(saw, expected, radii, strict=True)]
    return worst_of(distances)


def many(setting: Setting) -> Verdict:
    """In bfloat16, 256 + 1 is 256."""
    return judge(MANY, against_the_mean(setting, None), f"{KEYS} keys, heads and LSE, both modes")


@np.errstate(invalid="ignore")  # a fault that subtracts infinities is meant to
def merge_many(setting: Setting) -> Verdict:
    return judge(MERGE_MANY, against_the_mean(setting, CUTS), "pieces of 1, 0, 5, 299 and 95 keys")


@np.errstate(invalid="ignore")
def no_keys(setting: Setting) -> Verdict:
    """Row 1 of a batch is empty; its weights, outputs and LSE are looked at before anything masks them."""
    backend, recipe, draw = setting.backend, under_test(setting), fresh(76)
    h, n, p, r = SMALL.num_attention_heads, SMALL.qk_nope_head_dim, SMALL.qk_rope_head_dim, SMALL.kv_lora_rank
    q = Projected(*(backend.asarray(draw(3, *shape)) for shape in ((h, 1, n), (h, 1, p), (5, r), (5, p))))
    weights = MLAWeights.from_hugging_face(random_state(SMALL, backend, 75), SMALL, recipe)
    seen, saw = visible_keys((4, 0, 1), (5, 0, 2), 1, 5, q.c_kv, recipe), {}
    for mode in ("naive", "absorb"):
        done = attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, SMALL, seen, mode, recipe)
        heads, lse = to_numpy(done.heads), to_numpy(done.lse)
        saw[mode] = {"not 0": int(np.sum(~(heads[1] == 0))), "LSE": float(np.max(lse[1])),
                     "finite elsewhere": bool(np.isfinite(heads[::2]).all() and np.isfinite(lse[::2]).all())}
    want = {"not 0": 0, "LSE": -math.inf, "finite elsewhere": True}
    return exactly(NO_KEYS, saw, dict.fromkeys(saw, want), "a batch of 5, 0 and 2 keys")


def e4m3(code: int) -> float:
    """One number from its sign, four bits of exponent and three of fraction."""
    exponent, fraction = code % 128 // 8, code % 8
    return (-1) ** (code // 128) * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else fraction / 2**9)


@lru_cache(maxsize=1)
def eight_bits() -> tuple[dict, dict, Given]:
    """Codes and scales of a layer's matrices, the norms' weights, and all weights multiplied out one by one.

    Scales are powers of two, so that every product is exact in bfloat16.
    """
    rng, (down, across) = np.random.default_rng(77), FP8_BLOCK
    codes, rest, expanded = {}, {}, {}
    for name, shape in shapes(SMALL).items():
        if len(shape) == 1:
            rest[name] = expanded[name] = 1 + rng.integers(-64, 64, shape) / 128
            continue
        scales = 2.0 ** -(9 + np.add.outer(np.arange(-(-shape[0] // down)), np.arange(-(-shape[1] // across))) % 3)
        scales = scales.astype(np.float32)
        c = encode(exact_noise(rng, *shape) / spread(scales, 0, *shape, FP8_BLOCK))
        codes[name] = c, scales
        expanded[name] = np.array([[e4m3(int(code)) * float(scales[i // down, j // across])
                                    for j, code in enumerate(row)] for i, row in enumerate(c)])
    return codes, rest, Given(expanded, "multiplied out")


def fp8_weights(setting: Setting) -> Verdict:
    backend, (codes, rest, expanded) = setting.backend, eight_bits()
    _, hidden, full, radius = layer(SMALL, backend, 6, 1, 78, expanded)
    read = {name: setting.recipe.dequantize(*pair, FP8_BLOCK) for name, pair in codes.items()}
    state = {name: backend.asarray(w) for name, w in (read | rest).items()}
    saw, _ = in_pieces(hidden, state, SMALL, backend, [3, 1, 2], under_test(setting))
    return judge(FP8, compare(saw, full, radius, radius), "blocks of 16 x 24, cut short at the edges of every matrix")


FAR_CLAIM = "beyond position 256 the layer decodes as it recomputes"
FAINT_CLAIM = "with an input so faint that rms_norm_eps counts, the layer decodes as it recomputes"
MANY = "over 400 equal keys the output is the plain mean of the values, and the LSE is ln 400"
MERGE_MANY = "merged from very unequal pieces, the output over 400 equal keys is still the mean and the LSE ln 400"
NO_KEYS = "a query that sees no key gives 0, and its LSE is minus infinity"
FP8 = "a layer of FP8 codes and block scales is the layer of the weights multiplied out one by one"

CHECKS = (
    Check("5.far", FAR_CLAIM, far), Check("5.many", MANY, many), Check("5.merge_many", MERGE_MANY, merge_many),
    Check("5.faint", FAINT_CLAIM, faint), Check("5.no_keys", NO_KEYS, no_keys),
    Check("5.fp8_weights", FP8, fp8_weights),
)
