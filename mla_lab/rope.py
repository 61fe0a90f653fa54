"""Rotary position embedding on the decoupled channels, with YaRN, and the softmax scale that goes with it.

Shape alphabet: t tokens, p rope channels.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import Array, narrow, wide
from .config import MLAConfig, Yarn


@dataclass(frozen=True)
class Pairing:
    """Which channels turn together. Both conventions are right; mixing them is not."""

    name: str
    split: Callable[[Array], tuple[Array, Array]]
    join: Callable[[Array, Array], Array]


def _join_interleaved(a: Array, b: Array) -> Array:
    xp = array_namespace(a)
    return xp.reshape(xp.stack([a, b], axis=-1), (*a.shape[:-1], 2 * a.shape[-1]))


INTERLEAVED = Pairing("interleaved", lambda x: (x[..., 0::2], x[..., 1::2]), _join_interleaved)
"""DeepSeek's own: (0, 1), (2, 3), ..."""

HALF_SPLIT = Pairing(
    "half-split",
    lambda x: (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]),
    lambda a, b: array_namespace(a).concat([a, b], axis=-1),
)
"""The other one: (0, p/2), (1, p/2 + 1), ... as in Llama's and GPT-NeoX's code."""


def pairing_of(config: MLAConfig) -> Pairing:
    """The pairing under which the layer's weights were trained."""
    return INTERLEAVED if config.rope_interleave else HALF_SPLIT


def half_split_order(p: int) -> list[int]:
    """The permutation P with ``half_split(P x) == P interleaved(x)``: even channels first, then the odd ones."""
    return [*range(0, p, 2), *range(1, p, 2)]


def frequencies(config: MLAConfig, max_seq_len: int | None = None) -> np.ndarray:
    """Radians per token of each pair, ``[p/2]`` float64: theta^(-2i/p) (RoFormer eq. 15), bent by YaRN if present.

    YaRN (arXiv 2309.00071, section 3.2) keeps frequencies that turn more than ``beta_fast`` times in the original
    context, divides by ``factor`` those that turn less than ``beta_slow`` times, and blends linearly in between. The
    corners are rounded outwards, as DeepSeek does. Channels that turn by nothing are not rotated (``mla_use_nope``).
    ``max_seq_len`` means what it means for `softmax_scale`.
    """
    p, base, yarn = config.qk_rope_head_dim, config.rope_theta, config.rope_scaling
    if config.mla_use_nope:
        return np.zeros(p // 2)
    plain = base ** (-np.arange(0, p, 2) / p)
    if yarn is None or yarn.factor <= 1 or not extended(yarn, max_seq_len):
        return plain
    return blended(plain, yarn.factor, *yarn_corners(config))


def blended(plain: np.ndarray, factor: float, low: int, high: int) -> np.ndarray:
    """Frequencies kept up to pair ``low``, divided by ``factor`` from pair ``high`` on, and in between in between."""
    kept = 1 - np.clip((np.arange(len(plain)) - low) / max(high - low, 1e-3), 0, 1)
    return plain * kept + plain / factor * (1 - kept)


def yarn_corners(config: MLAConfig) -> tuple[int, int]:
    """First and last pair of YaRN's ramp; (10, 23) for DeepSeek-V3."""
    p, base, yarn = config.qk_rope_head_dim, config.rope_theta, config.rope_scaling

    def pair_with(turns: float) -> float:
        return p * math.log(yarn.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))

    return max(math.floor(pair_with(yarn.beta_fast)), 0), min(math.ceil(pair_with(yarn.beta_slow)), p - 1)


def extended(yarn: Yarn, max_seq_len: int | None) -> bool:
    """Whether YaRN acts: always, or by DeepSeek's rule beyond the original context only."""
    return max_seq_len is None or max_seq_len > yarn.original_max_position_embeddings


def mscale(factor: float, coefficient: float) -> float:
    """YaRN's temperature, ``0.1 k ln(factor) + 1``; 1 where the context is not extended."""
    return 0.1 * coefficient * math.log(factor) + 1 if factor > 1 else 1.0


def softmax_scale(config: MLAConfig, max_seq_len: int | None = None) -> float:
    """(n + p)^-1/2 times mscale squared; a Python float, so that it never widens an array.

    Absorption re-associates a product; it does not change the width the model was trained with, so r appears nowhere.

    Parameters
    ----------
    config : MLAConfig
    max_seq_len : int, optional
        DeepSeek's own inference code applies YaRN only to a ``max_seq_len`` beyond the original context, Hugging Face
        always does. None follows Hugging Face; a number follows DeepSeek's rule.
    """
    yarn, plain = config.rope_scaling, 1 / math.sqrt(config.qk_head_dim)
    if yarn is None or not extended(yarn, max_seq_len):
        return plain
    return plain * mscale(yarn.factor, yarn.mscale_all_dim) ** 2


def table_scale(config: MLAConfig) -> float:
    """What cos and sin are multiplied by: mscale over mscale_all_dim, 1 in every released DeepSeek model."""
    yarn = config.rope_scaling
    if yarn is None or yarn.attention_factor is not None:
        return 1.0 if yarn is None else yarn.attention_factor
    return mscale(yarn.factor, yarn.mscale) / mscale(yarn.factor, yarn.mscale_all_dim)


def query_scale(config: MLAConfig, positions: Array) -> Array | float:
    """What a query is multiplied by for its position: 1, but ``1 + beta ln(1 + floor(position / original))`` in
    Mistral 4 (as in Llama 4), which sharpens the softmax step by step beyond the original context."""
    yarn = config.rope_scaling
    if yarn is None or not yarn.llama_4_scaling_beta:
        return 1.0
    xp = array_namespace(positions)
    contexts = xp.astype(positions // yarn.original_max_position_embeddings, xp.float64)
    return 1 + yarn.llama_4_scaling_beta * xp.log(1 + contexts)


def rotate(
    x: Array, positions: Array, radians: np.ndarray, pairing: Pairing = INTERLEAVED, scale: float = 1.0
) -> Array:
    """Turn each pair of channels by its position times its frequency (RoFormer, arXiv 2104.09864, eq. 34).

    Parameters
    ----------
    x : array [..., t, p]
    positions : array of int or float, broadcastable to x's shape without its last axis
    radians : ndarray [p/2]
        From `frequencies`. Angles are formed in float64: in bfloat16, position 257 would already be 256.
    pairing : Pairing
        The result keeps the channel order of ``x``.
    scale : float
        From `table_scale`.

    Returns
    -------
    array [..., t, p] in the dtype of ``x``
    """
    xp = array_namespace(x)
    first, second = pairing.split(wide(x))
    exact = {"dtype": xp.float64, "device": device(x)}
    angle = xp.asarray(positions, **exact)[..., None] * xp.asarray(radians, **exact)  # [..., t, p/2]
    cos, sin = narrow(xp.cos(angle) * scale, first), narrow(xp.sin(angle) * scale, first)
    return narrow(pairing.join(first * cos - second * sin, second * cos + first * sin), x)
