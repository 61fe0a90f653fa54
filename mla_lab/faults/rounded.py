"""Rounding to fewer bits than a dtype has, for faults of precision."""
from __future__ import annotations

from array_api_compat import array_namespace

from ..arrays import Array

BFLOAT16, TF32, FLOAT32, FLOAT64 = 8, 11, 24, 53  # bits of the significand, the leading one included


def to_bits(x: Array, bits: int) -> Array:
    """``x`` rounded to nearest at ``bits`` significant bits, in the dtype of ``x``.

    Veltkamp's splitting (Dekker, Numer. Math. 18 (1971) 224): it needs no access to the bits. Infinities stay.
    """
    xp = array_namespace(x)
    held = {16: BFLOAT16, 32: FLOAT32, 64: FLOAT64}[xp.finfo(x.dtype).bits]
    if held <= bits:
        return x
    large = x * (2.0 ** (held - bits) + 1)
    return xp.where(xp.isfinite(large), large - (large - x), x)


def running_sum(shares: Array) -> Array:
    """``shares [..., t, s]`` added up key by key in bfloat16: from 256 on, adding 1 changes nothing."""
    total = 0 * shares[..., :1]
    for key in range(shares.shape[-1]):
        total = to_bits(total + to_bits(shares[..., key : key + 1], BFLOAT16), BFLOAT16)
    return total
