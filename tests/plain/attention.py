"""Masks, softmax with LSE, and merging: what the layer and the decode kernel have in common."""
from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch.nn.functional import pad

from plain.parameters import wide

MERGING = ("merged_without_lse", "lse_in_base_2", "lse_in_bfloat16", "lse_of_nothing_plus_infinity")


def causal_mask(t, s, lengths, fault=None):
    """Which of s keys the last t tokens of sequences of ``lengths`` [b] see: bool [b, t, s]."""
    query = torch.arange(t, device=lengths.device)[:, None]  # [t, 1]
    key = torch.arange(s, device=lengths.device)[None, :]  # [1, s]
    length = lengths[:, None, None]  # [b, 1, 1]
    position = query + (0 if fault == "mask_top_left" else length - t)  # of the query among the keys
    if fault == "mask_sees_next":
        seen = key <= position + 1
    elif fault == "mask_misses_itself":
        seen = key < position
    elif fault == "mask_inverted":
        seen = key >= position
    elif fault == "no_mask":
        seen = key >= 0
    else:
        seen = key <= position
    return seen & (key < length)


def to_tf32(x):
    """Ten bits after the leading one."""
    fraction, exponent = torch.frexp(wide(x))
    return torch.ldexp(torch.round(fraction * 2048) / 2048, exponent).to(x.dtype)


def product(formula, x, y, fault=None):
    if fault == "tf32":
        x, y = to_tf32(x), to_tf32(y)
    return torch.einsum(formula, x, y)


def softmax(logits, visible, fault=None):
    """Weights [b, t, h, s] and LSE [b, t, h]; NaN and -inf where a query sees no key."""
    logits = logits.masked_fill(~visible[:, :, None, :], -math.inf)
    if fault == "softmax_sum_in_bfloat16":
        top = logits.amax(-1, keepdim=True)
        top = top.masked_fill(top == -math.inf, 0.0)
        shares = torch.exp(logits - top)
        total = torch.zeros_like(top, dtype=torch.bfloat16)
        for share in shares.split(1, -1):
            total += share.to(torch.bfloat16)
        total = total.to(logits.dtype)
        return shares / total, (top + torch.log(total))[..., 0]
    return torch.softmax(logits, -1), torch.logsumexp(logits, -1)


def attend(q, q_rope, k, k_rope, values, visible, scale, fault=None):
    """Attention of q [b, t, h, i] and q_rope [b, t, h, p] over one shared head or one head each.

    ``k [b, s, 1 or h, i]``, ``k_rope [b, s, 1, p]``, ``values [b, s, 1 or h, o]``, ``visible [b, t, s]``.
    Returns ``[b, t, h, o]`` and the LSE ``[b, t, h]`` as it is handed on.
    """
    h = q.shape[2]
    if fault == "sequences_see_each_other":  # laid end to end, with one causal mask over all
        visible = see_sequences_before(visible)
        k, k_rope, values = (x.flatten(0, 1)[None] for x in (k, k_rope, values))
    if fault == "wrong_heads_of_padded":
        more = 2 ** math.ceil(math.log2(h)) - h
        q, q_rope, k, values = (pad(x, (0, 0, 0, more)) if x.shape[2] == h else x for x in (q, q_rope, k, values))
    logits = wide(product("bthi,bshi->bths", q, k, fault))
    if fault != "rope_term_dropped":
        rope = wide(product("bthp,bshp->bths", q_rope, k_rope, fault))
        if fault == "rope_key_on_first_head":
            rope[:, :, 1:] = 0
        logits = logits + rope
    weights, lse = softmax(logits * scale, visible, fault)
    out = product("bths,bsho->btho", weights.to(values.dtype), values, fault)
    if fault == "lse_in_base_2":
        lse = lse / math.log(2)
    elif fault == "lse_in_bfloat16":
        lse = lse.to(torch.bfloat16).to(lse.dtype)
    return out[:, :, -h:], lse[:, :, -h:]


def see_sequences_before(visible):
    """[b, t, s] to [b, t, b s]: besides its own keys, all that sequences before it have."""
    b, t, s = visible.shape
    filled = visible.any(1)  # [b, s]
    sequence = torch.arange(b, device=visible.device)
    before = sequence[None, :] < sequence[:, None]  # [b, b]
    own = sequence[None, :] == sequence[:, None]
    seen = before[:, None, :, None] & filled[None, None] | own[:, None, :, None] & visible[:, :, None, :]
    return seen.reshape(b, t, b * s)


def zero_where_nothing_is_seen(out, lse):
    return out.masked_fill((lse == -math.inf)[..., None], 0.0), lse


def attend_in_pieces(q, q_rope, k, k_rope, values, visible, scale, edges, fault=None):
    """The same, over pieces of the keys cut at ``edges``, merged by their LSE."""
    parts = []
    for low, high in pairwise(edges):
        seen = visible[:, :, low:high]
        keys = (x[:, low:high] for x in (k, k_rope, values))
        out, lse = zero_where_nothing_is_seen(*attend(q, q_rope, *keys, seen, scale, fault))
        if fault == "lse_of_nothing_plus_infinity":
            lse = lse.masked_fill(lse == -math.inf, math.inf)
        parts.append((out, lse))
    return parts[0] if len(parts) == 1 else merge(parts, fault)


def merge(parts, fault=None):
    """Each part's output counts as much as its exp(LSE)."""
    outs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    top = lses.amax(0)
    shares = torch.exp(lses - top.masked_fill(top == -math.inf, 0.0))
    lse = top + torch.log(shares.sum(0))
    if fault == "merged_without_lse":
        return outs.mean(0), lse
    merged = ((shares / shares.sum(0))[..., None] * outs).sum(0).to(outs.dtype)
    return zero_where_nothing_is_seen(merged, lse)
