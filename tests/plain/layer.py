"""One MLA layer with a latent cache: prefill, chunks of new tokens, decode steps."""
from __future__ import annotations

import torch

from plain.attention import MERGING, attend, attend_in_pieces, causal_mask
from plain.parameters import load, norm_latent, rms_norm, split_kv_b
from plain.rope import rotate, rotate_queries_and_keys, softmax_scale

LAYER_FAULTS = {
    "rotation": (
        "half_split_pairing", "one_side_half_split", "half_of_rope_rotated", "rotary_of_nope_width", "no_rotation",
        "rope_key_cached_unrotated", "rope_key_rotated_twice", "query_at_zero", "query_one_later", "positions_restart",
        "positions_in_bfloat16", "rotary_table_scaled", "yarn_ramp_of_whole_head", "yarn_ramp_of_base_10000",
        "yarn_missing", "rope_term_dropped", "rope_key_on_first_head"),
    "scale": (
        "scale_by_nope", "scale_by_cached_width", "scale_by_hidden_size", "scale_inverted", "scale_twice",
        "mscale_missing", "mscale_not_squared", "mscales_swapped"),
    "weights": (
        "all_k_then_all_v", "value_rows_first", "kv_b_transposed", "latent_not_normed", "latent_cached_before_norm",
        "latent_normed_twice", "norm_over_joint_vector", "query_not_normed", "norm_eps_wrong", "norm_gain_wrong",
        "fp8_scales_ignored", "fp8_scales_divided", "fp8_one_scale"),
    "attending": (
        "mask_top_left", "mask_sees_next", "mask_misses_itself", "mask_inverted", "no_mask", "sequences_see_each_other",
        "value_from_last_columns", "wrong_heads_of_padded", "heads_read_as_tokens", "softmax_sum_in_bfloat16", "tf32",
        "merged_without_lse", "lse_in_base_2", "lse_in_bfloat16", "lse_of_nothing_plus_infinity"),
}


def layer(hidden, weights, config, cache=None, *, mode="absorb", fault=None):
    """Output [b, t, d] of hidden [b, t, d], and the cache of latents [b, s, r] and rope keys [b, s, p] to go on with.

    ``mode`` "absorb" moves queries into the latent space; "naive" rebuilds keys and values from the latents.
    """
    b, t, _ = hidden.shape
    h, n, r = config["num_attention_heads"], config["qk_nope_head_dim"], config["kv_lora_rank"]
    p, eps = config["qk_rope_head_dim"], config["rms_norm_eps"]
    w = load(weights, hidden.dtype, fault)
    start = 0 if cache is None else cache["latent"].shape[1]

    if "q_proj.weight" in w:
        q = hidden @ w["q_proj.weight"].T
    else:
        c_q = hidden @ w["q_a_proj.weight"].T
        if fault != "query_not_normed":
            c_q = rms_norm(c_q, w["q_a_layernorm.weight"], eps, fault)
        q = c_q @ w["q_b_proj.weight"].T
    q_nope, q_rope = q.reshape(b, t, h, n + p).split([n, p], -1)

    raw, k_rope = (hidden @ w["kv_a_proj_with_mqa.weight"].T).split([r, p], -1)
    latent, k_rope = norm_latent(raw, k_rope, w["kv_a_layernorm.weight"], eps, fault)
    q_rope, k_rope = rotate_queries_and_keys(q_rope, k_rope, start, config, fault)

    written = {"latent": raw if fault == "latent_cached_before_norm" else latent, "k_rope": k_rope}
    if cache is not None:
        latent = torch.cat([cache["latent"], latent], 1)
        k_rope = torch.cat([cache["k_rope"], k_rope], 1)
        written = {name: torch.cat([cache[name], x], 1) for name, x in written.items()}
    s = latent.shape[1]
    if fault == "rope_key_rotated_twice":  # what is read from the cache was rotated when it was written
        k_rope = rotate(k_rope[:, :, None], torch.arange(s, device=hidden.device), config)[:, :, 0]

    w_uk, w_uv = split_kv_b(w["kv_b_proj.weight"], config, fault)
    values = latent
    if fault == "value_from_last_columns":
        values = torch.cat([latent, k_rope], -1)[..., -r:]
    visible = causal_mask(t, s, torch.full((b,), s, device=hidden.device), fault)
    if mode == "absorb":
        q = torch.einsum("bthn,hnr->bthr", q_nope, w_uk)
        k, values = latent[:, :, None], values[:, :, None]  # [b, s, 1, r]
    else:
        q = q_nope
        k = torch.einsum("bsr,hnr->bshn", latent, w_uk)
        values = torch.einsum("bsr,hrv->bshv", values, w_uv)
    inputs = (q, q_rope, k, k_rope[:, :, None], values, visible, softmax_scale(config, fault))
    if fault in MERGING and (start > 0 or fault == "lse_of_nothing_plus_infinity"):
        heads, _ = attend_in_pieces(*inputs, [0, start, s], fault)
    else:
        heads, _ = attend(*inputs, fault)
    if mode == "absorb":
        heads = torch.einsum("bthr,hrv->bthv", heads, w_uv)
    if fault == "heads_read_as_tokens":
        heads = heads.transpose(1, 2)  # as a kernel leaves them, and then viewed as if it were not so
    return heads.reshape(b, t, -1) @ w["o_proj.weight"].T, written
