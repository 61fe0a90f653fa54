"""Exercises of notebook 06: from a configuration to its numbers."""
from __future__ import annotations

from .registry import exercise

_REBUILT, _NAIVE, _ABSORBED = 512 * (128 + 128), 128 + 64 + 128, 2 * 512 + 64


@exercise("06", "compute", close=3e-3, right=_REBUILT / (_ABSORBED - _NAIVE), wrong={
    _REBUILT / (2 * (512 + 64) - _NAIVE):  # the same as with n + v for the naive pair
        "a pair costs 2r + p absorbed (the sum is r wide, not r + p) and n + p + v naive: p cancels",
    _REBUILT / (2 * 512 - _NAIVE): "the rope term costs the same on both sides, so count it on both or on neither",
    _REBUILT / (512 + 64 - _NAIVE): "the latent is used twice, as key and as value: 2r + p, not r + p",
    128 * _REBUILT / (_ABSORBED - _NAIVE): "both sides have the factor of the heads, so it cancels",
    _REBUILT / (_ABSORBED - _NAIVE) / 128: "both sides have the heads, so they cancel",
    512 * 128 / (_ABSORBED - _NAIVE): "values are rebuilt as well as keys: r (n + v)",
    2 * _REBUILT / (_ABSORBED - _NAIVE): "a multiplication and an addition are two FLOP on both sides",
    (_ABSORBED - _NAIVE) / _REBUILT:
        "that is the inverse: rebuilding is paid once a cached token, the difference once a pair",
})
def check_crossover(answer):
    """New tokens from which rebuilding takes fewer FLOP: r = 512, n = 128, p = 64, v = 128, 128 heads, long context.

    The fraction, its rounding and the first whole number above it are all right.
    """
    return answer
