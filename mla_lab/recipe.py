"""What an MLA implementation has to get right, as values. A fault is the right recipe with a value replaced.

The functions below are the right conventions; the wrong ones live in `mla_lab.faults`. Every path (naive, absorbed,
cached, chunked) reads them from one `Recipe`, so that no path can follow a convention of its own.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from .arrays import Array, narrow, wide
from .config import MLAConfig
from .fp8 import dequantize
from .rope import Pairing, frequencies, pairing_of, query_scale, softmax_scale, table_scale


def keep(x: Any, *_: Any) -> Any:
    """Leave the first argument as it is."""
    return x


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis, in float32 or wider (arXiv 1910.07467, eq. 4).

    The product with ``weight`` is formed before the result is rounded to the dtype of ``x``, as in DeepSeek's code;
    the other order differs by up to one step of bfloat16.
    """
    xp, w = array_namespace(x), wide(x)
    mean_square = xp.sum(w * w, axis=-1, keepdims=True) * (1 / x.shape[-1])
    return narrow(w / xp.sqrt(mean_square + eps) * wide(weight), x)


def normed_latent(latent: Array, rope_key: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """The latent normed over its own r channels; the rope key beside it stays as it is."""
    return rms_norm(latent, weight, eps), rope_key


def consecutive(start: Array, index: Array) -> Array:
    """Absolute position of the token with number ``index`` in a call on a cache that holds ``start`` tokens."""
    return start + index


def what_was_projected(projected: Any, hidden: Array, weights: Any) -> tuple[Array, Array]:
    """Later steps read what this one used: the normed latent and the rotated rope key."""
    return projected.c_kv, projected.k_rope


def sum_of_shares(shares: Array) -> Array:
    """The denominator of the softmax ``[..., t, 1]``, in the dtype of the shares."""
    return array_namespace(shares).sum(shares, axis=-1, keepdims=True)


def own_rows(rows: Array, visible: Array) -> tuple[Array, Array]:
    """A sequence attends to its own cached rows and to nobody else's."""
    return rows, visible


def latent_scales(config: MLAConfig) -> tuple[float, float]:
    """What the normed latents of query and key are multiplied by: 1, but sqrt(d/q) and sqrt(d/r) in LongCat-Flash.

    The key's is part of what is cached.
    """
    return (math.sqrt(config.hidden_size / config.q_lora_rank) if config.mla_scale_q_lora else 1.0,
            math.sqrt(config.hidden_size / config.kv_lora_rank) if config.mla_scale_kv_lora else 1.0)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``: the softmax of x and 0, shifted by the larger one so that nothing overflows."""
    xp = array_namespace(x)
    top = xp.max(xp.stack([x, x * 0], axis=-1), axis=-1)
    share = xp.exp(x - top)
    return share / (share + xp.exp(-top))


def split_per_head(kv_b: Array, config: MLAConfig) -> tuple[Array, Array]:
    """``kv_b_proj [h (n+v), r]`` holds, for each head, its W_UK rows and then its W_UV rows.

    Returns ``w_uk [h, n, r]`` and ``w_uv [h, r, v]``.
    """
    n = config.qk_nope_head_dim
    per_head = array_namespace(kv_b).reshape(kv_b, (config.num_attention_heads, n + config.v_head_dim, kv_b.shape[-1]))
    return per_head[:, :n, :], per_head[:, n:, :].mT


def causal(query: Array, key: Array, start: Array) -> Array:
    """Query i of a chunk that begins at absolute position ``start`` sees keys 0 ... start + i (bottom-right)."""
    return key <= start + query


def zero_unused(rows: Array, used: Array) -> Array:
    """Cached rows ``[b, s, r+p]`` with unused ones set to zero, for 0 times NaN is NaN however small the weight."""
    return array_namespace(rows).where(used[..., None], rows, 0.0)


def truncated_by_svd(latents: Array, up: Array, k: int) -> Array:
    """The best rank-k stand-in for ``latents [t, r] @ up [r, o]`` (Eckart and Young, Psychometrika 1 (1936) 211)."""
    xp = array_namespace(latents)
    u, sigma, vh = xp.linalg.svd(latents @ up, full_matrices=False)
    return (u[:, :k] * sigma[:k]) @ vh[:k, :]


def radius_of_rounding(sigma: Array, rows: int, columns: int, radius: float) -> float:
    """Singular values up to ``radius``, the Frobenius norm of the rounding in the matrix, are noise (Weyl 1912).

    NumPy's default, ``max(rows, columns) * eps * sigma_1``, grows with the number of tokens instead.
    """
    return radius


def add_terms(content: Array, rope: Array) -> Array:
    """A logit is the content term plus the rope term."""
    return content + rope


def merge_by_lse(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Combine attention over disjoint sets of keys into attention over their union.

    Each part is ``(heads [..., t, v], lse [..., t])``; the weights are ``exp(lse_i - lse)``. A part with no visible key
    (lse = -inf) counts for nothing whatever its payload is, NaN included; if there is no key at all the result is
    (0, -inf).
    """
    xp = array_namespace(parts[0][1])
    lse = xp.stack([p[1] for p in parts], axis=0)
    empty = lse == -float("inf")
    top = xp.max(lse, axis=0, keepdims=True)
    top = xp.where(top == -float("inf"), 0.0, top)
    weight = xp.where(empty, 0.0, xp.exp(xp.where(empty, 0.0, lse - top)))
    total = xp.sum(weight, axis=0)
    safe = xp.where(total == 0, 1.0, total)
    heads = xp.stack([p[0] for p in parts], axis=0)
    mixed = xp.sum(xp.where(empty[..., None], 0.0, wide(heads)) * (weight / safe)[..., None], axis=0)
    return narrow(mixed, heads), xp.where(total == 0, -float("inf"), xp.log(safe) + top[0, ...])


@dataclass(frozen=True)
class Recipe:
    """The conventions of one implementation. The defaults are right.

    ``store`` is what happens to a tensor when it is written to memory: nothing (the dtype has rounded already),
    rounding to an emulated dtype, reduction modulo a prime, or the widening of an error radius.
    """

    pairing: Callable[[MLAConfig], Pairing] = pairing_of
    key_pairing: Callable[[MLAConfig], Pairing] | None = None  # None: the query's
    frequencies: Callable[[MLAConfig], np.ndarray] = frequencies
    table_scale: Callable[[MLAConfig], float] = table_scale
    position: Callable[[Array, Array], Array] = consecutive
    query_position: Callable[[Any], Any] = keep
    key_position: Callable[[Any], Any] = keep
    key_turns: int = 1  # how often a rope key is turned between its projection and its score
    scale: Callable[[MLAConfig], float] = softmax_scale
    query_scale: Callable[[MLAConfig, Array], Array | float] = query_scale
    latent_scales: Callable[[MLAConfig], tuple[float, float]] = latent_scales
    split_kv_b: Callable[[Array, MLAConfig], tuple[Array, Array]] = split_per_head
    norm_query: Callable[[Array, Array, float], Array] = rms_norm
    norm_kv: Callable[[Array, Array, Array, float], tuple[Array, Array]] = normed_latent
    cached: Callable[[Any, Array, Any], tuple[Array, Array]] = what_was_projected
    terms: Callable[[Array, Array], Array] = add_terms
    visible: Callable[[Array, Array, Array], Array] = causal
    unused: Callable[[Array, Array], Array] = zero_unused
    lengths: Callable[[Any], Any] = tuple  # of the sequences in a batch
    batch: Callable[[Array, Array], tuple[Array, Array]] = own_rows
    operand: Callable[[Array], Array] = keep  # what attention's products do to their inputs
    values: Callable[[Array, Array], Array] = keep  # which part of the rows [c_kv | k_rope] is averaged
    probabilities: Callable[[Array], Array] = wide  # dtype of the softmax
    total: Callable[[Array], Array] = sum_of_shares
    nothing: tuple[float, float] = (0.0, -math.inf)  # weight and LSE of a query that sees no key
    latents: Callable[[Array, Array, Array], Array] = keep  # averaged latents, their weights and rows, before W_UV
    heads: Callable[[Array], Array] = keep  # between attention and the output projection
    expanded_keys: Callable[[Array], Array] = keep  # what is done to the keys rebuilt from the latent
    gate: Callable[[Array], Array] = sigmoid
    edges: Callable[[int, int], list[int]] | None = None  # of pieces of keys that are merged; None: all at once
    lse: Callable[[Array], Array] = keep  # the form in which it is passed on
    merge: Callable[[list[tuple[Array, Array]]], tuple[Array, Array]] = merge_by_lse
    truncate: Callable[[Array, Array, int], Array] = truncated_by_svd
    rank_tolerance: Callable[[Array, int, int, float], float] = radius_of_rounding
    decode_mode: str = "absorb"  # how a step attends unless told otherwise
    elements: Callable[[MLAConfig], int] = lambda config: config.cached_width  # cached a token and layer
    dequantize: Callable[[np.ndarray, np.ndarray, tuple[int, int]], np.ndarray] = dequantize
    store: Callable[[Array], Array] = keep


RIGHT = Recipe()
