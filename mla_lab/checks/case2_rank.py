"""Case 2: keys and values rebuilt from an r-wide latent have rank r at most, and RoPE on them would undo that."""
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .. import exact
from ..arrays import Array, fresh, to_numpy
from ..bounds import spectral_radii
from ..config import MLAConfig
from ..recipe import split_per_head
from ..rope import frequencies, rotate
from ..spectrum import require_falsifiable, rounding_radius, singular_values
from ..verdict import Check, Given, Setting, Verdict, exactly
from .common import BALLS, balls, under_test, up_projections

# The article's run: a latent of 128 rebuilt to 4 heads of 128, here with more tokens than the rank.
ARTICLE = MLAConfig(hidden_size=640, num_attention_heads=4, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=64,
                    v_head_dim=96)
TOKENS = 300


def rebuilt(
    setting: Setting, config: MLAConfig, tokens: int, seed: int, given: Given | None = None
) -> tuple[Array, Array, dict]:
    """Keys ``[t, h n]`` and values ``[t, h v]`` rebuilt from one latent, and the `spectral_radii` of their rounding."""
    backend, recipe, h = setting.backend, under_test(setting), config.num_attention_heads
    require_falsifiable(config.kv_lora_rank, tokens, h * config.qk_nope_head_dim)
    draw, r = fresh(seed), config.kv_lora_rank
    c_kv = backend.asarray(draw(1, tokens, r))
    w_uk = backend.asarray(draw(h, config.qk_nope_head_dim, r) / math.sqrt(r))
    w_uv = backend.asarray(draw(h, r, config.v_head_dim) / math.sqrt(r))
    if given is not None:
        w_uk, w_uv = split_per_head(backend.asarray(up_projections(given, config)), config)
    keys = recipe.expanded_keys(recipe.store(c_kv[:, None, :, :] @ w_uk.mT))
    values = recipe.store(c_kv[:, None, :, :] @ w_uv)
    c, uk, uv = balls(backend, c_kv, w_uk, w_uv)
    each = [spectral_radii(side_by_side(c.namespace, BALLS.store(c[:, None, :, :] @ w))) for w in (uk.mT, uv)]
    radii = {kind: math.hypot(*(e[kind] for e in each)) for kind in each[0]}
    return side_by_side(backend.xp, keys), side_by_side(backend.xp, values), radii


def side_by_side(xp, heads: Array) -> Array:
    """``[1, h, t, n]`` to ``[t, h n]``."""
    _, h, t, n = heads.shape
    return xp.reshape(xp.permute_dims(heads, (0, 2, 1, 3)), (t, h * n))


def rank_verdict(claim: str, setting: Setting, matrix: Array, radii: dict[str, float], rank: int) -> Verdict:
    """``rank`` singular values stand clear of the rounding and the next is inside it."""
    sigma = singular_values(matrix)
    own = rounding_radius(to_numpy(matrix).astype(np.float64))  # of the SVD itself, which runs in float64
    kind = "guarantee" if sigma[rank - 1] > 2 * (radii["guarantee"] + own) else "likely"
    radius = radii[kind] + own
    tolerance = setting.recipe.rank_tolerance(sigma, *matrix.shape, radius)
    seen = int(np.sum(sigma > tolerance))
    clear = bool(sigma[rank - 1] > 2 * radius)
    note = (f"singular value {rank} is {sigma[rank - 1] / max(sigma[rank], 1e-300):.0e} times the next; rounding moves "
            f"none by more than {radius:.1e} ({kind})")
    return Verdict(claim, seen, rank, None, seen == rank and clear, note)


def keys(setting: Setting) -> Verdict:
    k, _, radii = rebuilt(setting, ARTICLE, TOKENS, 20)
    return rank_verdict(KEYS, setting, k, radii, ARTICLE.kv_lora_rank)


def joint(setting: Setting) -> Verdict:
    k, v, radii = rebuilt(setting, ARTICLE, TOKENS, 21)
    return rank_verdict(JOINT, setting, setting.backend.xp.concat([k, v], axis=1), radii, ARTICLE.kv_lora_rank)


def with_rope_key(setting: Setting) -> Verdict:
    backend = setting.backend
    k, _, radii = rebuilt(setting, ARTICLE, TOKENS, 22)
    k_rope = rotate(
        backend.asarray(fresh(23)(TOKENS, ARTICLE.qk_rope_head_dim)), backend.xp.arange(TOKENS), frequencies(ARTICLE)
    )
    matrix = backend.xp.concat([k, k_rope], axis=1)
    return rank_verdict(ROPE_KEY, setting, matrix, radii, ARTICLE.cached_width)


def model(setting: Setting) -> Verdict:
    config = setting.config
    # Twice the rank in tokens and in width: singular value r then stands clear of bfloat16's rounding too.
    heads = min(config.num_attention_heads, math.ceil(2 * config.kv_lora_rank / config.qk_nope_head_dim))
    config = replace(config, num_attention_heads=heads)
    k, _, radii = rebuilt(setting, config, 2 * config.kv_lora_rank, 24, setting.state)
    return rank_verdict(MODEL, setting, k, radii, config.kv_lora_rank)


def exact_rank(setting: Setting) -> Verdict:
    config, backend = ARTICLE, setting.backend
    h, n, r = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
    latent, up = exact.residues(backend, 25, 1, 1, 2 * r, r), exact.residues(backend, 26, h, n, r)
    k = setting.recipe.expanded_keys(exact.exact_store(r)(latent @ up.mT))
    return exactly(EXACT, exact.rank_modulo(side_by_side(backend.xp, k)), r,
                   f"{2 * r} tokens x {h * n} dims, integers modulo {exact.PRIME}")


def rotated(setting: Setting) -> Verdict:
    backend, recipe = setting.backend, under_test(setting)
    k, _, radii = rebuilt(setting, ARTICLE, TOKENS, 27)
    turned = rotate(k, recipe.key_position(backend.xp.arange(TOKENS)), 1e4 ** (-np.arange(256) / 256))
    values = to_numpy(recipe.store(turned)).astype(np.float64)
    rounding = radii["likely"] + 2 * backend.unit * float(np.linalg.norm(values)) + rounding_radius(values)
    seen = int(np.sum(singular_values(values) > rounding))
    least = ARTICLE.cached_width
    return Verdict(ROTATED, seen, f"more than {least}", float(least), seen > least,
                   f"{TOKENS} tokens; without the rotation the rank is {ARTICLE.kv_lora_rank}")


def eckart_young(setting: Setting) -> Verdict:
    backend, kept = setting.backend.with_dtype("float64"), 100
    draw, r = fresh(28), ARTICLE.kv_lora_rank
    latents, up = backend.asarray(draw(TOKENS, r)), backend.asarray(draw(r, 512) / math.sqrt(r))
    whole = latents @ up
    lost = float(np.linalg.norm(to_numpy(whole - setting.recipe.truncate(latents, up, kept))))
    floor = float(np.linalg.norm(singular_values(whole)[kept:]))
    bound = max(whole.shape) * backend.unit * float(np.linalg.norm(to_numpy(whole)))
    return Verdict(ECKART_YOUNG, lost, floor, bound, abs(lost - floor) <= bound,
                   f"latent cut from {r} to {kept}; LAPACK's SVD is backward stable to max(m, n) u |K|")


KEYS = "512-wide keys rebuilt from a 128-wide latent have rank exactly 128"
JOINT = "keys and values together still have rank 128: they share one latent"
ROPE_KEY = "with the decoupled 64-wide rope key beside them the rank is 128 + 64"
MODEL = "keys rebuilt from this model's latent have rank exactly kv_lora_rank"
EXACT = "the same rank in exact arithmetic modulo a prime, with no tolerance at all"
ROTATED = "RoPE on the rebuilt keys themselves breaks the rank bound, which is why RoPE is decoupled"
ECKART_YOUNG = "cutting the latent further loses exactly the singular values that are cut, and nothing less is possible"

CHECKS = (
    Check("2.keys", KEYS, keys), Check("2.joint", JOINT, joint), Check("2.rope_key", ROPE_KEY, with_rope_key),
    Check("2.model", MODEL, model), Check("2.exact", EXACT, exact_rank), Check("2.rotated", ROTATED, rotated),
    Check("2.eckart_young", ECKART_YOUNG, eckart_young),
)
