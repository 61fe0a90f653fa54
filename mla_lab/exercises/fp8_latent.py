"""Exercises of notebook 11: bytes of a row, steps, scales, clamps."""
from __future__ import annotations

import numpy as np

from .registry import exercise


@exercise("11", "recall", right="exponent", wrong={
    "fraction": "its 3 bits say how large the share is, not that the error is a share of the value",
    "sign": "the sign costs a bit and changes no size",
    "scale": "a scale for all values moves them together; what adapts to each of them is stored with each of them",
    "clamp": "the clamp only concerns values beyond 448",
})
def check_relative(answer):
    """What makes an e4m3 number's error relative to its own size: sign, exponent, fraction, scale or clamp?"""
    return answer


@exercise("11", "compute", right=512 + 8 * 4 + 2 * 64, wrong={
    512 + 4 * 4 + 2 * 64: "those are tiles of 128 values: with 64 there are twice as many scales",
    512 + 8 + 2 * 64: "a float32 scale takes 4 bytes",
    512 + 8 * 4 + 64: "the rope key keeps its 16 bits: 2 bytes each",
    512 + 9 * 4 + 2 * 64: "the rope key is not quantised, so it needs no scale",
    2 * 512 + 8 * 4 + 2 * 64: "an e4m3 code takes one byte",
    512 + 8 * 4: "the rope key is part of the row",
})
def check_row_bytes(answer):
    """Bytes of a packed row: latent of 512 in e4m3, a float32 scale for every 64 values, rope key of 64 in bf16."""
    return answer


@exercise("11", "compute", close=1e-3, right=2.0**-4, wrong={
    2.0**-3: "that is the distance between neighbours; the nearest one is at most half of it away",
    2.0**-3 / 12**0.5: "that is the root mean square of the error near 1, not the largest",
    2.0**-5: "3 bits behind the leading one: neighbours of 1 are 1/8 apart",
    2.0**-9: "that is the distance between the smallest numbers, and not a share",
    16.0: "near 256 the largest error is 16; as a share of the value it is",
})
def check_largest_error(answer):
    """Largest error that rounding to e4m3 makes, as a share of the value (no clamp, no subnormal numbers)."""
    return answer


def _tiles(x):
    return np.abs(x).reshape(len(x), -1, 128).max(axis=2)


def _guarded(amax):
    return np.where(amax > 0, amax / 448, 1.0)


@exercise("11", "implement", right=lambda x: _guarded(_tiles(x)), wrong={
    lambda x: _tiles(x) / 448: "a tile of zeros gets the scale 0, and dividing by it makes NaN; take 1 there",
    lambda x: _guarded(x.reshape(len(x), -1, 128).max(axis=2)):
        "the largest absolute value decides: a tile may have its largest on the negative side",
    lambda x: np.where(_tiles(x) > 0, 448 / np.maximum(_tiles(x), 1e-30), 1.0):
        "that is the inverse: values are divided by the scale, so the largest must become 448",
    lambda x: _guarded(_tiles(x).max(axis=1, keepdims=True)): "that is one scale a token; a token has several tiles",
    lambda x: np.where(_tiles(x) > 0, _tiles(x), 1.0): "the largest value must become 448, not 1",
})
def check_tile_scales(answer):
    """A function (x [s, r]) -> the scales [s, r / 128] for e4m3 in tiles of 1 x 128, right for a tile of zeros too."""
    rows = np.random.default_rng(5).standard_normal((3, 256)).astype(np.float64)
    rows[1, :128] = 0
    rows[2, 200] = -9.5
    return [answer(rows), answer(-2 * rows[:, :128])]


@exercise("11", "find the bug", right=3, wrong={
    1: "a scale that was fixed in advance is a choice: it costs nothing to compute and is shared by all tokens",
    2: "dividing by the scale is right; what may the quotient be?",
    4: "reading is right: the value of the code times the scale",
    5: "the comparison is what found the NaN",
})
def check_missing_clamp(answer):
    """The number of the line in which a value beyond the largest turns into NaN."""
    return answer
