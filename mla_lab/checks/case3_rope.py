"""Case 3: position lives on a few decoupled channels, because a rotation does not pass through a projection."""
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .. import by_the_book
from ..arrays import UNIT_ROUNDOFF, Array, fresh, to_numpy
from ..attention import Projected, scores_naive
from ..ball import EXP_ULPS, Ball
from ..bounds import compare
from ..config import MLAConfig, Yarn
from ..recipe import Recipe
from ..rope import frequencies, rotate
from ..verdict import Check, Setting, Verdict, exactly
from .common import BALLS, SMALL, balls, judge, under_test, worst_of

V3 = MLAConfig(hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
               qk_rope_head_dim=64, v_head_dim=128, rope_scaling=Yarn(40))
V2 = replace(V3, rope_scaling=Yarn(40, mscale=0.707, mscale_all_dim=0.707))
KIMI = Yarn(32, beta_fast=1.0)  # Kimi-K2's
UNEQUAL = replace(V3, rope_scaling=Yarn(40, mscale=1.0, mscale_all_dim=0.707))


def rope_inputs(setting: Setting, p: int, tokens: int, seed: int) -> tuple[Array, Array]:
    """Unrotated rope parts of queries ``[5, t, p]`` and of one key ``[t, p]``."""
    draw = fresh(seed)
    return setting.backend.asarray(draw(5, tokens, p)), setting.backend.asarray(draw(tokens, p))


def rope_scores(q: Array, k: Array, at_q: Array, at_k: Array, config: MLAConfig, recipe: Recipe) -> Array:
    """Rope term ``[5, t, t]`` of every query at every key, unscaled."""
    radians, scale, pairing = recipe.frequencies(config), recipe.table_scale(config), recipe.pairing(config)
    q = recipe.store(rotate(q, recipe.query_position(at_q), radians, pairing, scale))
    k = recipe.store(
        rotate(k, recipe.key_position(at_k), radians, (recipe.key_pairing or recipe.pairing)(config), scale)
    )
    return recipe.store(q @ k.mT)


def two_terms(setting: Setting) -> Verdict:
    backend, recipe, draw = setting.backend, under_test(setting), fresh(30)
    config = replace(setting.config, num_attention_heads=5)
    h, n, p, r = 5, config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
    arrays = [backend.asarray(x) for x in (
        draw(1, h, 3, n), draw(1, h, 3, p), draw(1, 7, r), draw(1, 7, p), draw(h, n, r) / math.sqrt(r))]
    q_nope, q_rope, c_kv, k_rope, w_uk = arrays
    saw = scores_naive(Projected(q_nope, q_rope, c_kv, k_rope), c_kv, k_rope, w_uk, recipe)

    def one_product(q_nope, q_rope, c_kv, k_rope, w_uk, xp, store):
        keys = store(c_kv[:, None, :, :] @ w_uk.mT)
        shared = xp.concat([k_rope[:, None, :, :]] * h, axis=1)
        return store(xp.concat([q_nope, q_rope], axis=-1) @ xp.concat([keys, shared], axis=-1).mT)

    expected = one_product(*arrays, backend.xp, backend.store)
    spheres = balls(backend, *arrays)
    radius = one_product(*spheres, spheres[0].namespace, BALLS.store)
    inner = scores_naive(Projected(*spheres[:4]), *spheres[2:], BALLS)
    return judge(TWO_TERMS, compare(saw, expected, radius, inner), f"heads of {n} + {p} channels")


def relative(setting: Setting) -> Verdict:
    # A claim on RoPE: a model that never rotates its shared key channels lends their number.
    backend, recipe, config = setting.backend, under_test(setting), replace(setting.config, mla_use_nope=False)
    q, k = rope_inputs(setting, config.qk_rope_head_dim, 6, 31)
    at = backend.xp.arange(6)
    here, spheres, distances = rope_scores(q, k, at, at, config, recipe), balls(backend, q, k), []
    radius = rope_scores(*spheres, np.arange(6), np.arange(6), config, BALLS)
    for shift in (1, 37, 4096):
        there = rope_scores(q, k, at + shift, at + shift, config, recipe)
        far = rope_scores(*spheres, np.arange(6) + shift, np.arange(6) + shift, config, BALLS)
        distances.append(compare(there, here, radius, far))
    return judge(RELATIVE, worst_of(distances), "both positions moved by 1, 37 and 4096 tokens")


def norm_kept(setting: Setting) -> Verdict:
    # V3's YaRN, whose table is plain cosines and sines. Without YaRN a table scaled by mscale could not be told apart.
    backend, recipe = setting.backend, under_test(setting)
    config = replace(setting.config, mla_use_nope=False, rope_scaling=V3.rope_scaling)
    x, at = backend.asarray(fresh(32)(9, config.qk_rope_head_dim)), backend.xp.arange(9) * 411 + 1

    def square(x, at, recipe):
        y = recipe.store(rotate(x, at, recipe.frequencies(config), recipe.pairing(config), recipe.table_scale(config)))
        return (y[:, None, :] @ y[:, :, None])[:, 0, 0], (x[:, None, :] @ x[:, :, None])[:, 0, 0]

    turned, before = square(x, at, recipe)
    return judge(NORM, compare(turned, before, *square(balls(backend, x)[0], to_numpy(at), BALLS)))


def pairing(setting: Setting) -> Verdict:
    """The oracle is complex multiplication, which shares no code with `mla_lab.rope.rotate`."""
    backend, recipe, config = (
        setting.backend,
        under_test(setting),
        replace(SMALL, qk_rope_head_dim=8, rope_scaling=None),
    )
    q, k = rope_inputs(setting, 8, 6, 33)
    at = np.arange(6) + 3
    turn = np.exp(1j * np.outer(at, config.rope_theta ** (-np.arange(0, 8, 2) / 8)))
    zq, zk = (to_numpy(x).astype(np.float64) for x in (q, k))
    zq, zk = ((x[..., 0::2] + 1j * x[..., 1::2]) * turn for x in (zq, zk))
    expected = (zq @ np.conj(zk.T)).real
    here = backend.xp.asarray(at, device=backend.device)
    saw = rope_scores(q, k, here, here, config, recipe)
    radius = rope_scores(*balls(backend, q, k), at, at, config, BALLS)
    return judge(PAIRING, compare(saw, expected, radius, radius), "compared with complex multiplication")


def no_fixed_matrix(setting: Setting) -> Verdict:
    backend, recipe, config, spans = setting.backend, under_test(setting), V3, 64
    radians, one = recipe.frequencies(config), np.eye(config.qk_rope_head_dim)

    def turns(one, recipe) -> list:
        return [recipe.store(rotate(one, recipe.key_position(backend.xp.arange(1) + s), radians)) for s in range(spans)]

    matrices = np.stack([to_numpy(m).astype(np.float64) for m in turns(backend.asarray(one), recipe)])
    best = matrices.mean(axis=0)  # least squares over the distances
    residual = float(np.linalg.norm(matrices - best) / np.linalg.norm(matrices))
    half = frequencies(config) / 2
    kept = np.sin(spans * half) / (spans * np.sin(half))  # |mean of exp(i w s)| over s, a Dirichlet kernel
    expected = float(np.sqrt(1 - np.mean(kept**2)))
    spread = np.stack(
        [
            np.broadcast_to(rotate(balls(backend, one)[0], np.array([s]), frequencies(config)).worst, one.shape)
            for s in range(spans)
        ]
    )
    bound = 2 * float(np.linalg.norm(spread) / math.sqrt(spans * one.shape[0])) + backend.unit
    return Verdict(FIXED, residual, expected, bound, abs(residual - expected) <= bound < residual,
                   f"share of the rotation that the best fixed matrix misses over distances 0 to {spans - 1}")


def absorb_through(setting: Setting) -> Verdict:
    """Fold the rotation at distance 0 into the key projection and use it at every distance."""
    backend, recipe, draw = setting.backend, under_test(setting), fresh(34)
    n, r, config = 12, 20, replace(SMALL, qk_rope_head_dim=12, rope_scaling=None)
    arrays = [backend.asarray(x) for x in (draw(1, n), draw(6, r), draw(n, r) / math.sqrt(r))]

    def both(q, c, w, at, recipe):
        radians = recipe.frequencies(config)
        turned = recipe.store(rotate(recipe.store(c @ w.mT), recipe.key_position(at), radians))
        return recipe.store(q @ turned.mT), recipe.store(recipe.store(q @ w) @ c.mT)

    rotated, absorbed = both(*arrays, backend.xp.arange(6), recipe)
    radii: list[Ball] = list(both(*balls(backend, *arrays), np.arange(6), BALLS))
    shares = [compare(rotated[:, i], absorbed[:, i], *(b[:, i] for b in radii)) for i in range(6)]
    away = min(d.largest / d.bound for d in shares[1:])
    return Verdict(ABSORB, away, "outside the rounding bound at distances 1 to 5", 1.0, away > 1 >= shares[0].share,
                   "distance of the logits, as a multiple of what rounding explains")


def scale(setting: Setting) -> Verdict:
    """Published values: no YaRN, DeepSeek-V2, DeepSeek-V3 and unequal mscales, to 13 digits; the table's to 10."""
    published, table = (0.0721687836487, 0.1147213867929, 0.1352337788609, 0.1147213867929), (1, 1, 1.0857263993)
    saw = [setting.recipe.scale(c) for c in (replace(V3, rope_scaling=None), V2, V3, UNEQUAL)]
    tables = [setting.recipe.table_scale(c) for c in (V3, V2, UNEQUAL)]
    ok = all(abs(a - b) <= 5e-14 for a, b in zip(saw, published, strict=True))
    ok = ok and all(abs(a - b) <= 5e-11 for a, b in zip(tables, table, strict=True))
    note = "(128 + 64)^-1/2 mscale^2, half a unit of the last published digit; rotary table 1, 1 and 1.0857263993"
    return Verdict(SCALE, saw, list(published), 5e-14, ok, note)


def yarn(setting: Setting) -> Verdict:
    plain, bent = V3.rope_theta ** (-np.arange(0, 64, 2) / 64), setting.recipe.frequencies(V3)
    kept, divided = int(np.sum(bent == plain)), int(np.sum(bent == plain / 40))  # to the bit: weights 1 and 0 are exact
    return exactly(YARN, {"kept": kept, "divided": divided}, {"kept": 11, "divided": 9},
                   "pairs 0 to 10 kept, 23 to 31 divided by 40, the rest blended")


def yarn_base(setting: Setting) -> Verdict:
    """The two sides share no line. Each takes one power and at most 8 more roundings."""
    worst = 0.0
    for config in (replace(V3, rope_theta=1e6), replace(V3, rope_theta=50000.0, rope_scaling=KIMI)):
        saw = setting.recipe.frequencies(config)
        expected = np.array([by_the_book.angle_per_token(i, config) for i in range(config.qk_rope_head_dim // 2)])
        worst = max(worst, float(np.max(np.abs(saw - expected) / expected)))
    bound = 2 * (EXP_ULPS + 8) * UNIT_ROUNDOFF["float64"]
    return Verdict(YARN_BASE, worst, 0.0, bound, worst <= bound,
                   "largest relative distance of a frequency; theta 1,000,000 with V3's YaRN and Kimi-K2's 50,000")


TWO_TERMS = "a logit over concatenated heads is the content term plus the rope term"
RELATIVE = "a rope score depends on the distance of the two tokens alone"
NORM = "a rotation keeps the length of what it turns"
PAIRING = "rope scores pair the channels as the weights were trained: (0, 1), (2, 3), ..."
FIXED = "no fixed matrix replaces the rotation: the best one misses just what theory says"
ABSORB = "W_UK absorbed past a rotation gives wrong logits at every distance but 0"
SCALE = "the softmax scale is (n + p)^-1/2 times mscale squared, and mscale_all_dim is the one that counts"
YARN = "YaRN's ramp runs over DeepSeek-V3's rope pairs 10 to 23"
YARN_BASE = "with another rope_theta than 10,000, YaRN's ramp lies where its equations put it"

CHECKS = (
    Check("3.two_terms", TWO_TERMS, two_terms),
    Check("3.relative", RELATIVE, relative),
    Check("3.norm", NORM, norm_kept),
    Check("3.pairing", PAIRING, pairing),
    Check("3.no_fixed_matrix", FIXED, no_fixed_matrix),
    Check("3.absorb_through", ABSORB, absorb_through),
    Check("3.scale", SCALE, scale),
    Check("3.yarn", YARN, yarn),
    Check("3.yarn_base", YARN_BASE, yarn_base),
)
