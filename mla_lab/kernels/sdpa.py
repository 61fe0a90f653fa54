"""torch's own fused attention, called so that it is fast: heads folded into rows, and the key itself as the value.

``scaled_dot_product_attention`` takes its flash path on a CPU only where keys and values are equally wide. Values of
r = 512 beside keys of 576 send it to the unfused one, and ``enable_gqa`` then copies the cache for each of 128 heads.
So the value is the whole cached row and the last p channels of the result are cut off: 6 % more arithmetic, no copy.
"""
from __future__ import annotations

from ..arrays import Array
from ..errors import InputError
from .keys import Keys, Scratch
from .rows import results


def decode(q: Array, keys: Keys, scale: float, scratch: Scratch) -> tuple[Array, Array]:
    """One fused call for each request and query token. Called by `mla_lab.kernels.decode`.

    Each query token gets the keys that it sees as a slice, so that no mask is built. The scale is said, because the
    default would be that of a head of r + p channels.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError("kernel 'sdpa' needs torch, which is not installed.") from None
    if not isinstance(q, torch.Tensor):
        raise InputError("kernel 'sdpa' takes torch tensors; use 'rows' or 'tiled' on NumPy.")
    aten, r = torch.ops.aten, keys.latent
    out, lse = results(q, r)
    for i, length in enumerate(keys.counts):
        for j in range(q.shape[1]):
            seen = length - q.shape[1] + j + 1
            if seen <= 0:
                continue
            one, k = q[i, j][None, None], keys.rows(i, 0, seen)[None, None]  # [1, 1, h, r+p], [1, 1, s, r+p]
            # These operators are what the public function calls; it keeps the LSE to itself.
            if q.device.type == "cpu":
                found = aten._scaled_dot_product_flash_attention_for_cpu(one, k, k, 0.0, False, scale=scale)
            else:  # no GPU has run this line
                found = aten._scaled_dot_product_efficient_attention(one, k, k, None, True, 0.0, False, scale=scale)
            out[i, j], lse[i, j] = found[0][0, 0, :, :r], found[1].flatten()[: q.shape[2]]
    return out, lse
