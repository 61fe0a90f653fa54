"""A line-up: four layers and four decode kernels by eight authors, of which one is right. Reading on spoils it.

`layer` and `decode` are right, and written without the rest of this package. Each suspect calls one of them with a step
of its own, as its author would have written it. NumPy or torch. Shape alphabet: b batch, t query tokens, s cached
tokens, h heads, d hidden, q query latent, r latent, n nope, p rope, v value.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import Array, narrow, wide

# --- the right steps --------------------------------------------------------------------------------------------------

def after_the_cache(start: int, t: int) -> np.ndarray:
    """Positions ``[t]`` of the tokens of a call."""
    return start + np.arange(t)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    y = wide(x)
    mean_square = array_namespace(x).mean(y * y, axis=-1, keepdims=True)
    return narrow(y / (mean_square + eps) ** 0.5 * wide(weight), x)


def per_head(kv_b: Array, h: int, n: int, v: int) -> tuple[Array, Array]:
    """``kv_b_proj [h (n+v), r]`` to ``w_uk [h, n, r]`` and ``w_uv [h, r, v]``."""
    w = array_namespace(kv_b).reshape(kv_b, (h, n + v, -1))
    return w[:, :n, :], w[:, n:, :].mT


def normed(raw: Array, latent: Array) -> Array:
    """What is kept of a latent."""
    return latent


def first_columns(rows: Array, r: int) -> Array:
    """What of ``rows [b, s, r+p]`` is averaged."""
    return rows[..., :r]


def from_the_end(query: Array, t: int, length: Array) -> Array:
    """The place of each of t new queries among ``length`` keys."""
    return length - t + query


def mscale(factor: float, coefficient: float) -> float:
    return 0.1 * coefficient * math.log(factor) + 1 if factor > 1 else 1.0


def softmax_scale(config: Mapping) -> float:
    scale, yarn = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5, config["rope_scaling"]
    return scale if yarn is None else scale * mscale(yarn["factor"], yarn["mscale_all_dim"]) ** 2


def radians(config: Mapping) -> np.ndarray:
    """Of each pair, a token ``[p/2]``."""
    p, base, yarn = config["qk_rope_head_dim"], config["rope_theta"], config["rope_scaling"]
    plain = base ** (-np.arange(0, p, 2) / p)
    if yarn is None:
        return plain
    corners = [p * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * turns)) / (2 * math.log(base))
               for turns in (yarn["beta_fast"], yarn["beta_slow"])]
    low, high = max(math.floor(corners[0]), 0), min(math.ceil(corners[1]), p - 1)
    slow = np.clip((np.arange(p // 2) - low) / max(high - low, 1e-3), 0, 1)
    return plain * (1 - slow) + plain / yarn["factor"] * slow


def turn(x: Array, positions: np.ndarray, config: Mapping) -> Array:
    """Pairs (0, 1), (2, 3), ... of ``x [..., t, p]``, or with ``rope_interleave`` false (0, p/2), ..., by position."""
    xp, yarn, p = array_namespace(x), config["rope_scaling"], x.shape[-1]
    size = 1.0 if yarn is None else mscale(yarn["factor"], yarn["mscale"]) / mscale(yarn["factor"],
                                                                                  yarn["mscale_all_dim"])
    y, angle = wide(x), positions[:, None] * radians(config)  # [t, p/2]
    cos, sin = (xp.asarray(size * f(angle), dtype=y.dtype, device=device(x)) for f in (np.cos, np.sin))
    if config.get("rope_interleave", True):
        a, b = y[..., 0::2], y[..., 1::2]
        turned = xp.reshape(xp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1), x.shape)
    else:
        a, b = y[..., : p // 2], y[..., p // 2 :]
        turned = xp.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return narrow(turned, x)


def attend(q: Array, keys: Array, values: Array, seen: Array, scale: float) -> tuple[Array, Array]:
    """Absorbed queries ``[b, h, t, r+p]`` over rows ``[b, s, r+p]``: averages ``[b, h, t, r]`` and LSE ``[b, h, t]``.

    A query that sees no key gets 0 and -inf.
    """
    xp = array_namespace(q)
    logits = xp.where(seen, wide(q @ keys[:, None, :, :].mT) * scale, -math.inf)  # [b, h, t, s]
    top = xp.max(logits, axis=-1, keepdims=True)
    top = xp.where(top == -math.inf, 0.0, top)
    shares = xp.exp(logits - top)
    total = xp.sum(shares, axis=-1, keepdims=True)
    none = total == 0
    lse = xp.where(none, -math.inf, xp.log(xp.where(none, 1.0, total)) + top)
    return narrow(shares / xp.where(none, 1.0, total), q) @ values[:, None, :, :], lse[..., 0]


def layer(
    hidden: Array, weights: Mapping[str, Array], config: Mapping, cache: Array | None = None, *,
    positions: Callable = after_the_cache, norm: Callable = rms_norm, split: Callable = per_head,
    keep: Callable = normed,
) -> tuple[Array, Array]:
    """One MLA layer (DeepSeek-V2, arXiv 2405.04434, eq. 9-19), absorbed: output ``[b, t, d]`` and the cache.

    The cache holds rows ``[b, s, r+p]``: normed latent and rotated rope key.
    """
    xp, (b, t, _) = array_namespace(hidden), hidden.shape
    h, r, eps = config["num_attention_heads"], config["kv_lora_rank"], config["rms_norm_eps"]
    n, p, v = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    at = positions(0 if cache is None else cache.shape[1], t)

    if "q_proj.weight" in weights:
        q = hidden @ weights["q_proj.weight"].mT
    else:
        q = norm(hidden @ weights["q_a_proj.weight"].mT, weights["q_a_layernorm.weight"], eps)
        q = q @ weights["q_b_proj.weight"].mT
    q = xp.permute_dims(xp.reshape(q, (b, t, h, n + p)), (0, 2, 1, 3))  # [b, h, t, n+p]
    down = hidden @ weights["kv_a_proj_with_mqa.weight"].mT  # [b, t, r+p]
    raw, k_rope = down[..., :r], turn(down[..., r:], at, config)
    latent = norm(raw, weights["kv_a_layernorm.weight"], eps)
    w_uk, w_uv = split(weights["kv_b_proj.weight"], h, n, v)

    rows, kept = (xp.concat([x, k_rope], axis=-1) for x in (latent, keep(raw, latent)))
    if cache is not None:
        rows, kept = (xp.concat([cache, x], axis=1) for x in (rows, kept))
    s = rows.shape[1]
    query, key = xp.arange(t, device=device(hidden))[:, None], xp.arange(s, device=device(hidden))
    q = xp.concat([q[..., :n] @ w_uk, turn(q[..., n:], at, config)], axis=-1)
    mixed, _ = attend(q, rows, rows[..., :r], key <= from_the_end(query, t, s), softmax_scale(config))
    heads = xp.permute_dims(mixed @ w_uv, (0, 2, 1, 3))  # [b, t, h, v]
    return xp.reshape(heads, (b, t, h * v)) @ weights["o_proj.weight"].mT, kept


def decode(
    q_nope: Array, q_rope: Array, kv_cache: Array, w_uk: Array, w_uv: Array, lengths: Array, scale: float, *,
    place: Callable = from_the_end, values: Callable = first_columns, over: Callable = attend,
) -> tuple[Array, Array]:
    """Attention over cached rows whose queries are rotated: heads ``[b, t, h, v]`` and natural LSE ``[b, t, h]``."""
    xp, t, s, r = array_namespace(q_nope), q_nope.shape[1], kv_cache.shape[1], w_uk.shape[-1]
    query, key = (xp.arange(count, device=device(q_nope)) for count in (t, s))
    length = lengths[:, None, None, None]
    rows = xp.where(key[None, :, None] < lengths[:, None, None], kv_cache, 0.0)  # 0 times NaN would be NaN
    seen = (key <= place(query[:, None], t, length)) & (key < length)  # [b, 1, t, s]
    q = xp.concat([xp.permute_dims(q_nope, (0, 2, 1, 3)) @ w_uk, xp.permute_dims(q_rope, (0, 2, 1, 3))], axis=-1)
    mixed, lse = over(q, rows, values(rows, r), seen, scale)
    return xp.permute_dims(mixed @ w_uv, (0, 2, 1, 3)), xp.permute_dims(lse, (0, 2, 1))


# --- the suspects -----------------------------------------------------------------------------------------------------

def suspect_a(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
    def in_blocks(q, keys, values, seen, scale, block=64):  # long caches do not fit on chip
        parts = [attend(q, keys[:, i : i + block, :], values[:, i : i + block, :], seen[..., i : i + block], scale)
                 for i in range(0, keys.shape[1], block)]
        out = parts[0][0]
        for piece, _ in parts[1:]:
            out = out + piece
        return out / len(parts), parts[-1][1]
    return decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale, over=in_blocks)


def suspect_b(hidden, weights, config, cache=None):
    def positions(start, t):
        return np.arange(t)
    return layer(hidden, weights, config, cache, positions=positions)


def suspect_c(hidden, weights, config, cache=None):
    def split(kv_b, h, n, v):
        xp = array_namespace(kv_b)
        keys, values = kv_b[: h * n, :], kv_b[h * n :, :]
        return xp.reshape(keys, (h, n, -1)), xp.reshape(values, (h, v, -1)).mT
    return layer(hidden, weights, config, cache, split=split)


def suspect_d(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
    def in_blocks(q, keys, values, seen, scale, block=24):
        xp = array_namespace(q)
        out, lse = attend(q, keys[:, :block, :], values[:, :block, :], seen[..., :block], scale)
        out = wide(out)
        for i in range(block, keys.shape[1], block):
            more, more_lse = attend(q, keys[:, i : i + block, :], values[:, i : i + block, :],
                                    seen[..., i : i + block], scale)
            top = xp.maximum(lse, more_lse)
            top = xp.where(top == -math.inf, 0.0, top)
            old, new = xp.exp(lse - top), xp.exp(more_lse - top)
            total = xp.where(old + new == 0, 1.0, old + new)
            out = out * (old / total)[..., None] + wide(more) * (new / total)[..., None]
            lse = xp.where(old + new == 0, -math.inf, top + xp.log(total))
        return narrow(out, q), lse
    return decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale, over=in_blocks)


def suspect_e(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
    def attention(q, keys, values, seen, _):
        return attend(q, keys, values, seen, scale=q.shape[-1] ** -0.5)
    return decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale, over=attention)


def suspect_f(hidden, weights, config, cache=None):
    def norm(x, weight, _, eps=1e-6):
        return rms_norm(x, weight, eps)
    return layer(hidden, weights, config, cache, norm=norm)


def suspect_g(hidden, weights, config, cache=None):
    def keep(raw, latent):
        return raw
    return layer(hidden, weights, config, cache, keep=keep)


def suspect_h(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
    def place(query, t, length):
        return query

    def values(rows, r):
        return rows[..., -r:]
    return decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale, place=place, values=values)


PROTOCOL = {suspect_a: "decode", suspect_b: "layer", suspect_c: "layer", suspect_d: "decode", suspect_e: "decode",
            suspect_f: "layer", suspect_g: "layer", suspect_h: "decode"}
SUSPECTS = {suspect.__name__: suspect for suspect in PROTOCOL}
