"""Rotary channels, YaRN, and the softmax scale that goes with it."""
from __future__ import annotations

import math

import torch

from plain.parameters import wide


def yarn_get_mscale(factor, mscale):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def yarn_of(config, fault=None):
    return None if fault == "yarn_missing" else config.get("rope_scaling")


def frequencies(config, fault=None):
    """Radians a token [p/2], float64."""
    p, n, theta = config["qk_rope_head_dim"], config["qk_nope_head_dim"], config["rope_theta"]
    width = n if fault == "rotary_of_nope_width" else p
    plain = theta ** -(torch.arange(0, p, 2, dtype=torch.float64) / width)
    yarn = yarn_of(config, fault)
    if yarn is not None:
        dim = n + p if fault == "yarn_ramp_of_whole_head" else p
        base = 10000.0 if fault == "yarn_ramp_of_base_10000" else theta

        def pair_that_turns(times):
            context = yarn["original_max_position_embeddings"]
            return dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair_that_turns(yarn["beta_fast"])), 0)
        high = min(math.ceil(pair_that_turns(yarn["beta_slow"])), dim - 1)
        divided = ((torch.arange(p // 2, dtype=torch.float64) - low) / (high - low or 0.001)).clamp(0, 1)
        plain = plain / yarn["factor"] * divided + plain * (1 - divided)
    if fault == "no_rotation":
        plain = plain * 0
    if fault == "half_of_rope_rotated":
        plain[p // 4 :] = 0
    return plain


def table_scale(config, fault=None):
    """What cos and sin are multiplied by."""
    yarn = yarn_of(config, fault)
    if yarn is None:
        return 1.0
    scale = yarn_get_mscale(yarn["factor"], yarn["mscale"])
    return scale if fault == "rotary_table_scaled" else scale / yarn_get_mscale(yarn["factor"], yarn["mscale_all_dim"])


def rotate(x, positions, config, half_split=False, fault=None):
    """Turn x [b, t, h, p] by positions [t]; pairs (0, 1), (2, 3), ... as DeepSeek's weights have them."""
    y = wide(x)
    if fault == "positions_in_bfloat16":
        positions = positions.to(torch.bfloat16)
    angle = positions.to(y.dtype)[:, None] * frequencies(config, fault).to(x.device, y.dtype)  # [t, p/2]
    cos, sin = (f(angle)[:, None, :] * table_scale(config, fault) for f in (torch.cos, torch.sin))
    if half_split:
        first, second = y.chunk(2, -1)
        y = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    else:
        first, second = y[..., 0::2], y[..., 1::2]
        y = torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)
    return y.to(x.dtype)


def rotate_queries_and_keys(q_rope, k_rope, start, config, fault=None):
    """Queries [b, t, h, p] and the one key head [b, t, p] of the tokens from position ``start`` on."""
    at = (0 if fault == "positions_restart" else start) + torch.arange(q_rope.shape[1], device=q_rope.device)
    at_query = at * 0 if fault == "query_at_zero" else at + 1 if fault == "query_one_later" else at
    half_split = config.get("rope_interleave") is False
    other = half_split != (fault in ("half_split_pairing", "one_side_half_split"))
    q_rope = rotate(q_rope, at_query, config, other if fault == "half_split_pairing" else half_split, fault)
    if fault != "rope_key_cached_unrotated":
        k_rope = rotate(k_rope[:, :, None], at, config, other, fault)[:, :, 0]
    return q_rope, k_rope


def softmax_scale(config, fault=None):
    """(n + p)^-1/2 times mscale squared."""
    n, p, r = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
    if fault == "scale_by_cached_width":  # the default of an attention function, which knows nothing of YaRN
        return (r + p) ** -0.5
    width = {"scale_by_nope": n, "scale_by_hidden_size": config["hidden_size"]}.get(fault, n + p)
    scale = width**0.5 if fault == "scale_inverted" else width**-0.5
    yarn = yarn_of(config, fault)
    if yarn is not None and fault != "mscale_missing":
        mscale = yarn_get_mscale(yarn["factor"], yarn["mscale" if fault == "mscales_swapped" else "mscale_all_dim"])
        scale *= mscale if fault == "mscale_not_squared" else mscale * mscale
    return scale * scale if fault == "scale_twice" else scale
