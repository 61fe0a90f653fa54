"""The layer once more, straight from the paper: one token, one head, one number at a time.

Slow, and on purpose without a line in common with the rest of the package: what both sides of a check share, no
comparison of the two can see. Equations of DeepSeek-V2 (arXiv 2405.04434, section 2.1) and YaRN (arXiv 2309.00071).
"""
from __future__ import annotations

import cmath
import math
from collections.abc import Mapping

import numpy as np

from .config import MLAConfig


def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMSNorm: x over the root of its mean square, times the weight."""
    return x / math.sqrt(math.fsum(x * x) / len(x) + eps) * weight


def angle_per_token(pair: int, config: MLAConfig) -> float:
    """theta^(-2i/p), divided by YaRN's factor for slow pairs and blended between its two corners."""
    p, theta, yarn = config.qk_rope_head_dim, config.rope_theta, config.rope_scaling
    fast = theta ** (-2 * pair / p)
    if yarn is None:
        return fast
    def corner(turns):  # the pair that turns so often over the original context
        return p / 2 * math.log(yarn.original_max_position_embeddings / (2 * math.pi * turns)) / math.log(theta)
    low, high = max(0, math.floor(corner(yarn.beta_fast))), min(p - 1, math.ceil(corner(yarn.beta_slow)))
    slow_share = min(1, max(0, (pair - low) / (high - low)))
    return slow_share * fast / yarn.factor + (1 - slow_share) * fast


def turned(x: np.ndarray, position: int, config: MLAConfig) -> list[complex]:
    """The rope channels as complex numbers, pair i turned by position times its angle."""
    p, yarn = len(x), config.rope_scaling
    pairs = [(2 * i, 2 * i + 1) if config.rope_interleave else (i, i + p // 2) for i in range(p // 2)]
    size = 1.0
    if yarn is not None and yarn.factor > 1:
        size = (0.1 * yarn.mscale * math.log(yarn.factor) + 1) / (0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1)
    return [size * complex(x[a], x[b]) * cmath.exp(1j * position * angle_per_token(i, config))
            for i, (a, b) in enumerate(pairs)]


def layer(hidden: np.ndarray, state: Mapping[str, np.ndarray], config: MLAConfig) -> np.ndarray:
    """Output ``[t, d]`` of a DeepSeek layer for ``hidden [t, d]`` from position 0, weights under Hugging Face names."""
    n, p, v, r = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.kv_lora_rank
    yarn, eps, scale = config.rope_scaling, config.rms_norm_eps, (n + p) ** -0.5
    if yarn is not None and yarn.factor > 1:
        scale *= (0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1) ** 2
    w = {name.removesuffix(".weight"): np.asarray(x, np.float64) for name, x in state.items()}
    latents, rope_keys, outputs = [], [], []
    for t, x in enumerate(np.asarray(hidden, np.float64)):
        down = w["kv_a_proj_with_mqa"] @ x
        latents.append(normed(down[:r], w["kv_a_layernorm"], eps))  # eq. 9, normed before it is cached
        rope_keys.append(turned(down[r:], t, config))  # eq. 15, one for all heads, not normed
        if config.q_lora_rank is None:
            q = w["q_proj"] @ x
        else:
            q = w["q_b_proj"] @ normed(w["q_a_proj"] @ x, w["q_a_layernorm"], eps)  # eq. 12-13
        heads = []
        for i in range(config.num_attention_heads):
            q_nope, q_rope = q[i * (n + p) : i * (n + p) + n], turned(q[i * (n + p) + n : (i + 1) * (n + p)], t, config)
            w_uk = w["kv_b_proj"][i * (n + v) : i * (n + v) + n]
            w_uv = w["kv_b_proj"][i * (n + v) + n : (i + 1) * (n + v)]
            logits = []
            for c, key in zip(latents, rope_keys, strict=True):  # eq. 16-17: tokens 0 ... t
                rope = math.fsum((a * b.conjugate()).real for a, b in zip(q_rope, key, strict=True))
                logits.append(scale * (math.fsum(q_nope * (w_uk @ c)) + rope))
            shares = [math.exp(z - max(logits)) for z in logits]
            values = [w_uv @ c for c in latents]
            heads.append(sum(a * b for a, b in zip(shares, values, strict=True)) / math.fsum(shares))  # eq. 18
        outputs.append(w["o_proj"] @ np.concatenate(heads))  # eq. 19
    return np.array(outputs)
