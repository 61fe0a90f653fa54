"""Absorbed attention over a latent cache, as a decode kernel does it."""
from __future__ import annotations

import torch

from plain.attention import MERGING, attend, attend_in_pieces, causal_mask, zero_where_nothing_is_seen

BLOCK = 64
DECODE_FAULTS = {
    "rotation": ("rope_term_dropped", "rope_key_on_first_head"),
    "scale": ("scale_by_nope", "scale_by_cached_width", "scale_inverted", "scale_twice", "mscale_missing"),
    "weights": ("kv_b_transposed",),
    "attending": (
        "mask_top_left", "mask_sees_next", "mask_misses_itself", "mask_inverted", "no_mask", "sequences_see_each_other",
        "unused_slots_read", "lengths_of_the_next_sequence", "value_from_last_columns", "wrong_heads_of_padded",
        "heads_read_as_tokens", "softmax_sum_in_bfloat16", "tf32", "merged_without_lse", "lse_in_base_2",
        "lse_in_bfloat16", "lse_of_nothing_plus_infinity", "empty_row_is_nan"),
}


def decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale, *, pieces="blocks", fault=None):
    """Heads [b, t, h, v] and natural LSE [b, t, h]; the last t of each sequence's ``lengths`` tokens ask.

    ``pieces`` "blocks" (of 64 keys) or "halves": what a merging fault merges.
    """
    (b, t, h, n), p, r = q_nope.shape, q_rope.shape[-1], w_uk.shape[-1]
    s = kv_cache.shape[1]
    if fault == "lengths_of_the_next_sequence":
        lengths = lengths.roll(-1)
    rows = kv_cache
    if fault != "unused_slots_read":  # 0 times NaN is NaN
        used = torch.arange(s, device=rows.device) < lengths[:, None]  # [b, s]
        rows = rows.masked_fill(~used[..., None], 0.0)
    latent, k_rope = rows[:, :, None].split([r, p], -1)  # [b, s, 1, r], [b, s, 1, p]
    values = rows[:, :, None, -r:] if fault == "value_from_last_columns" else latent

    if fault == "kv_b_transposed" and w_uv.shape[1] == w_uv.shape[2]:
        w_uv = w_uv.transpose(1, 2)
    scale = {"scale_by_nope": n**-0.5, "scale_by_cached_width": (r + p) ** -0.5, "mscale_missing": (n + p) ** -0.5,
             "scale_inverted": 1 / scale, "scale_twice": scale * scale}.get(fault, scale)

    q = torch.einsum("bthn,hnr->bthr", q_nope, w_uk)
    inputs = (q, q_rope, latent, k_rope, values, causal_mask(t, s, lengths, fault), scale)
    if fault in MERGING:
        longest = int(lengths.max())
        edges = [*range(0, longest, BLOCK), s] if pieces == "blocks" else [0, longest // 2, s]
        out, lse = attend_in_pieces(*inputs, edges, fault)
    else:
        out, lse = attend(*inputs, fault)
    if fault not in ("empty_row_is_nan", "unused_slots_read"):  # in the latter, weights of 0 met rows of NaN
        out, lse = zero_where_nothing_is_seen(out, lse)
    out = torch.einsum("bthr,hrv->bthv", out, w_uv)
    if fault == "heads_read_as_tokens":
        out = out.transpose(1, 2).reshape(b, t, h, -1)
    return out, lse
