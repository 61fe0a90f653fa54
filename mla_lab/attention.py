"""Attention over the latent cache: projections, the naive and the absorbed form, softmax with LSE.

Shape alphabet: b batch, t query tokens, s cached tokens, h heads, d hidden, q query latent, r latent, n nope, p rope,
v value.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from .arrays import Array, narrow, wide
from .config import MLAConfig
from .errors import InputError
from .recipe import RIGHT, Recipe
from .rope import rotate
from .weights import MLAWeights

MODES = ("naive", "absorb")


@dataclass(frozen=True)
class Projected:
    """What a layer makes of its input before it attends."""

    q_nope: Array  # [b, h, t, n]
    q_rope: Array  # [b, h, t, p]  rotated
    c_kv: Array  # [b, t, r]  normed
    k_rope: Array  # [b, t, p]  rotated


@dataclass(frozen=True)
class Attended:
    """What attention gives, with the steps on the way."""

    heads: Array  # [b, h, t, v]
    lse: Array  # [b, h, t]  natural logarithm; -inf where a query sees no key
    weights: Array  # [b, h, t, s]
    logits: Array  # [b, h, t, s]  scaled, unmasked


def project(
    hidden: Array, weights: MLAWeights, config: MLAConfig, positions: Array, recipe: Recipe = RIGHT
) -> Projected:
    """Queries, latents and rope keys of ``hidden [b, t, d]`` at ``positions [b, t]`` (DeepSeek-V2 eq. 9-15).

    The rope key is one head, not normed; the latent is normed before anything else sees it.
    """
    store, eps = recipe.store, config.rms_norm_eps
    q_latent_scale, latent_scale = recipe.latent_scales(config)
    c_q = hidden
    if weights.w_dq is not None:
        c_q = recipe.norm_query(linear(hidden, weights.w_dq, weights.b_dq, recipe), weights.norm_q, eps)
        c_q = store(times(c_q, q_latent_scale))  # [b, t, q]
    q_nope = store(per_head(c_q, weights.w_uq))  # [b, h, t, n]
    q_rope = store(per_head(c_q, weights.w_qr))  # [b, h, t, p]
    c_kv = linear(hidden, weights.w_dkv, weights.b_dkv, recipe)  # [b, t, r]
    k_rope = linear(hidden, weights.w_kr, weights.b_kr, recipe)  # [b, t, p]
    c_kv, k_rope = recipe.norm_kv(c_kv, k_rope, weights.norm_kv, eps)
    c_kv = store(times(c_kv, latent_scale))
    radians, scale = recipe.frequencies(config), recipe.table_scale(config)
    pairing = recipe.pairing(config)
    key_pairing = (recipe.key_pairing or recipe.pairing)(config)
    q_rope = store(rotate(q_rope, recipe.query_position(positions)[:, None, :], radians, pairing, scale))
    for _ in range(recipe.key_turns):
        k_rope = store(rotate(k_rope, recipe.key_position(positions), radians, key_pairing, scale))
    by_position = recipe.query_scale(config, positions)  # 1, or [b, t]
    if not isinstance(by_position, float):
        by_position = narrow(by_position[:, None, :, None], wide(hidden))
    return Projected(store(times(q_nope, by_position)), store(times(q_rope, by_position)), c_kv, k_rope)


def linear(x: Array, w: Array, b: Array | None, recipe: Recipe) -> Array:
    """``x @ w.mT`` as it is stored, plus the bias ``b`` if there is one."""
    product = recipe.store(x @ w.mT)
    return product if b is None else recipe.store(product + b)


def times(x: Array, factor: Array | float) -> Array:
    """``x`` times a factor that is 1 in most models, where it must not cost a rounding."""
    return x if isinstance(factor, float) and factor == 1 else narrow(wide(x) * factor, x)


def per_head(x: Array, w: Array) -> Array:
    """``x [b, t, i]`` times ``w [h, o, i]``: ``[b, h, t, o]``, as one matrix product."""
    xp = array_namespace(x)
    h, o, i = w.shape
    product = x @ xp.reshape(w, (h * o, i)).mT  # [b, t, h o]
    return xp.permute_dims(xp.reshape(product, (*x.shape[:-1], h, o)), (0, 2, 1, 3))


def merge_heads(heads: Array) -> Array:
    """``[b, h, t, v]`` to ``[b, t, h v]``."""
    xp, (b, h, t, v) = array_namespace(heads), heads.shape
    return xp.reshape(xp.permute_dims(heads, (0, 2, 1, 3)), (b, t, h * v))


def project_out(heads: Array, hidden: Array, weights: MLAWeights, recipe: Recipe = RIGHT) -> Array:
    """Heads ``[b, h, t, v]``, gated by the layer's input if the model does so, to its output ``[b, t, d]``."""
    if weights.w_gate is not None:
        gate = recipe.gate(wide(recipe.store(per_head(hidden, weights.w_gate))))  # [b, h, t, 1 or v]
        heads = recipe.store(times(heads, gate))
    return linear(merge_heads(heads), weights.w_o, weights.b_o, recipe)


def product(x: Array, y: Array, recipe: Recipe) -> Array:
    """``x @ y`` as it is stored."""
    return recipe.store(recipe.operand(x) @ recipe.operand(y))


def on_shared_keys(x: Array, shared: Array, recipe: Recipe = RIGHT) -> Array:
    """``x [b, h, t, i] @ shared [b, i, o]`` as it is stored; the heads are rows, so that ``shared`` is read once."""
    xp, (b, h, t, i) = array_namespace(x), x.shape
    return xp.reshape(product(xp.reshape(x, (b, h * t, i)), shared, recipe), (b, h, t, shared.shape[-1]))


def scores_naive(q: Projected, c_kv: Array, k_rope: Array, w_uk: Array, recipe: Recipe = RIGHT) -> Array:
    """Expand the keys, then score: unscaled logits ``[b, h, t, s]`` (DeepSeek-V2 eq. 13-18)."""
    store = recipe.store
    k_nope = recipe.expanded_keys(store(c_kv[:, None, :, :] @ w_uk.mT))  # [b, h, s, n]  what absorption avoids
    content = product(q.q_nope, k_nope.mT, recipe)
    return recipe.terms(wide(content), wide(on_shared_keys(q.q_rope, k_rope.mT, recipe)))


def scores_absorb(q: Projected, c_kv: Array, k_rope: Array, w_uk: Array, recipe: Recipe = RIGHT) -> Array:
    """Move the query into the latent space, then score against the cache as it is: ``[b, h, t, s]``."""
    q_latent = recipe.store(q.q_nope @ w_uk)  # [b, h, t, r]
    content = on_shared_keys(q_latent, c_kv.mT, recipe)
    return recipe.terms(wide(content), wide(on_shared_keys(q.q_rope, k_rope.mT, recipe)))


def values_naive(p: Array, c_kv: Array, w_uv: Array, recipe: Recipe = RIGHT) -> Array:
    """Expand the values, then average them: ``[b, h, t, v]``."""
    return product(p, recipe.store(c_kv[:, None, :, :] @ w_uv), recipe)


def values_absorb(p: Array, c_kv: Array, w_uv: Array, recipe: Recipe = RIGHT) -> Array:
    """Average the latents, then expand the one average: ``[b, h, t, v]``."""
    return recipe.store(recipe.latents(on_shared_keys(p, c_kv, recipe), p, c_kv) @ w_uv)


def softmax(logits: Array, visible: Array, recipe: Recipe = RIGHT) -> tuple[Array, Array]:
    """Weights ``[.., t, s]`` and natural-log LSE ``[.., t]`` over the visible keys.

    A query that sees no key gets weights 0 and LSE -inf. No infinity is ever subtracted from another.
    """
    xp = array_namespace(logits)
    top = xp.max(xp.where(visible, logits, -float("inf")), axis=-1, keepdims=True)
    top = xp.where(top == -float("inf"), 0.0, top)
    shares = xp.where(visible, xp.exp(xp.where(visible, logits, top) - top), 0.0)
    nothing, (weight, lse) = ~xp.any(visible, axis=-1, keepdims=True), recipe.nothing
    total = xp.where(nothing, 1.0, recipe.total(shares))
    p = shares / total
    if weight != 0:
        p = xp.where(nothing, weight, p)
    return p, recipe.lse(xp.where(nothing, lse, xp.log(total) + top))[..., 0]


def attend(
    q: Projected, c_kv: Array, k_rope: Array, w_uk: Array, w_uv: Array, config: MLAConfig, visible: Array,
    mode: str = "absorb", recipe: Recipe = RIGHT,
) -> Attended:
    """Attention of the queries in ``q`` over latents ``c_kv [b, s, r]`` and rope keys ``k_rope [b, s, p]``.

    Parameters
    ----------
    visible : array of bool, broadcastable to [b, h, t, s]
    mode : 'naive' or 'absorb'
        The same function of the same numbers, associated differently.
    """
    if mode not in MODES:
        raise InputError(f"mode must be one of {', '.join(MODES)}, not {mode!r}.")
    scores, values = (scores_naive, values_naive) if mode == "naive" else (scores_absorb, values_absorb)
    logits = scores(q, c_kv, k_rope, w_uk, recipe) * recipe.scale(config)
    p, lse = softmax(recipe.probabilities(logits), visible, recipe)
    heads = values(recipe.store(narrow(p, c_kv)), recipe.values(c_kv, k_rope), w_uv, recipe)
    return Attended(recipe.heads(heads), lse, p, logits)


def visible_keys(starts: Any, ends: Any, tokens: int, keys: int, like: Array, recipe: Recipe = RIGHT) -> Array:
    """Which of ``keys`` cached rows each of ``tokens`` new queries sees: bool ``[b, 1, t, s]``.

    ``starts`` and ``ends`` give, for each batch row, the length of its cache before and after the new tokens; a query
    beyond ``ends`` is padding and sees nothing.
    """
    xp = array_namespace(like)
    at = {"device": device(like)}
    start, end = (xp.asarray(list(recipe.lengths(x)), **at)[:, None, None] for x in (starts, ends))  # [b, 1, 1]
    query, key = xp.arange(tokens, **at)[:, None], xp.arange(keys, **at)[None, :]
    seen = recipe.visible(query, key, start) & (key < end) & (start + query < end)
    return seen[:, None, :, :]
