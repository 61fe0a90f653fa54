"""torch's own fused attention, called so that it is fast: heads folded into rows, and the key itself as the value.

``scaled_dot_product_attention`` takes its flash path on a CPU only where keys and values are equally wide. Values of
r = 512 beside keys of 576 send it to the unfused one, and ``enable_gqa`` then copies the cache for each of 128 heads.
So the value is the whole cached row and the last p channels of the result are cut off: 6 % more arithmetic, no copy.

Its threads share blocks of `ROWS` query rows. Few heads make fewer blocks than there are threads, and so the keys are
split, too: each part is one entry of a batch, and the parts are merged by LSE.
"""
from __future__ import annotations

from ..arrays import Array
from ..errors import InputError, positive_int
from .keys import Keys, Scratch
from .rows import EMPTY

ROWS = 32  # query rows that torch's CPU kernel gives to a thread, for fewer than 192 of them


def decode(q: Array, keys: Keys, scale: float, scratch: Scratch, splits: int | None = None) -> tuple[Array, Array]:
    """One fused call for each request and query token. Called by `mla_lab.kernels.decode`.

    Each query token gets the keys that it sees as a slice, so that no mask is built.

    Parameters
    ----------
    splits : int, optional
        Parts of the keys; by default as many as it takes to keep all threads busy.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError("kernel 'sdpa' needs torch, which is not installed.") from None
    if not isinstance(q, torch.Tensor):
        raise InputError("kernel 'sdpa' takes torch tensors; use 'rows' or 'tiled' on NumPy.")
    (b, t, h, _), r = q.shape, keys.latent
    if splits is None:
        splits = max(1, torch.get_num_threads() // -(-h // ROWS)) if q.device.type == "cpu" else 1
    positive_int("splits", splits)
    if q.stride(-1) != 1 or keys.cache.stride(-1) != 1:  # below the public function nobody checks, and reads amiss
        q, keys.cache = q.contiguous(), keys.cache.contiguous()
    found = [one_query(q[i, j], keys.rows(i, 0, max(0, length - t + j + 1)), splits, scale, r)
             for i, length in enumerate(keys.counts) for j in range(t)]
    out, lse = (x[0] if len(x) == 1 else torch.stack(x) for x in zip(*found, strict=True))
    return out.reshape(b, t, h, r), lse.reshape(b, t, h)


def one_query(q: Array, k: Array, splits: int, scale: float, latent: int) -> tuple[Array, Array]:
    """Output ``[h, r]`` and LSE ``[h]`` of ``q [h, r+p]`` over ``k [s, r+p]``; 0 and -inf without a key."""
    import torch
    h, s, each = q.shape[0], k.shape[0], k.shape[0] // splits
    parts = [attend(q, k[: each * splits], splits, scale)] if each else []
    if each * splits < s:  # what does not divide
        parts.append(attend(q, k[each * splits :], 1, scale))
    if parts:
        return merged(parts, latent)
    return q.new_zeros(h, latent), q.new_full((h,), EMPTY, dtype=q.dtype if q.itemsize >= 4 else torch.float32)


def attend(q: Array, k: Array, splits: int, scale: float) -> tuple[Array, Array]:
    """``q [h, r+p]`` on each of ``splits`` equal parts of ``k [s, r+p]``: outputs ``[n, h, r+p]``, LSE ``[n, h]``.

    The scale is said, because the default would be that of a head of r + p channels. The public function calls these
    operators and keeps the LSE to itself.
    """
    import torch
    many = q.expand(splits, 1, *q.shape)  # [n, 1, h, r+p], no copy
    k = k.reshape(splits, 1, -1, k.shape[-1])  # [n, 1, s/n, r+p], a view where rows are contiguous
    if q.device.type == "cpu":
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(many, k, k, 0.0, False, scale=scale)
    else:  # no GPU has run this line
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            many, k, k, None, True, 0.0, False, scale=scale)
    return out[:, 0], lse[:, 0, : q.shape[0]]


def merged(parts: list[tuple[Array, Array]], latent: int) -> tuple[Array, Array]:
    """Output ``[h, r]`` and LSE ``[h]`` of all parts; every part has keys, so there is no empty one to look out for."""
    import torch
    pairs = [pair for outs, lses in parts for pair in zip(outs[..., :latent].unbind(), lses.unbind(), strict=True)]
    out, lse = pairs[0]
    for other, other_lse in pairs[1:]:  # exp(b) / (exp(a) + exp(b)) is the sigmoid of b - a
        share = torch.sigmoid(other_lse - lse)[:, None].to(out.dtype)
        out, lse = torch.lerp(out, other, share), torch.logaddexp(lse, other_lse)
    return out, lse
