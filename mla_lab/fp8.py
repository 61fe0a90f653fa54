"""Eight-bit floats: e4m3 as checkpoints store weights, with one scale for each block of a matrix.

e4m3 (the ``fn`` kind: no infinity, one NaN) has a sign, 4 bits of exponent and 3 of fraction; its largest is 448.
"""
from __future__ import annotations

import math

import numpy as np

LARGEST = 448.0
BLOCK = (128, 128)


def _table() -> np.ndarray:
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    value = np.where(exponent == 0, np.ldexp(fraction, -9), np.ldexp(8 + fraction, exponent - 10))
    value[127] = np.nan
    return np.concatenate([value, -value]).astype(np.float32)


E4M3 = _table()
"""The value of each of the 256 codes, float32."""

E8M0 = np.array([math.ldexp(1.0, code - 127) for code in range(255)] + [math.nan], np.float32)
"""The same for scales that are powers of two (no sign, no fraction)."""


def encode(x: np.ndarray) -> np.ndarray:
    """The nearest e4m3 codes (ties to even), everything beyond 448 clamped to it.

    The clamp is explicit because casts disagree: of 465, ml_dtypes 0.6 makes NaN and torch 2.13 makes 448.
    """
    x = np.asarray(x)
    size = np.fmin(np.abs(x), LARGEST)  # a number for NaN, too, whose code is set below
    exponent = np.frexp(np.maximum(size, 2.0**-6))[1] - 1  # of the leading bit; -6 for subnormal numbers and zero
    code = np.rint(np.ldexp(size, 3 - exponent)) + 8 * (exponent + 6)
    return np.where(np.isnan(x), 127, code).astype(np.uint8) | (np.signbit(x).astype(np.uint8) << 7)


def blocks(shape: tuple[int, int], block: tuple[int, int] = BLOCK) -> tuple[int, int]:
    """How many scales a matrix has; the last block of an axis may be a part of one (576 rows: 4.5 blocks, 5 scales)."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def spread(scales: np.ndarray, start: int, stop: int, columns: int, block: tuple[int, int] = BLOCK) -> np.ndarray:
    """The scale of every element in rows ``start`` to ``stop`` of a matrix with so many columns."""
    return np.repeat(scales[np.arange(start, stop) // block[0]], min(block[1], columns), axis=1)[:, :columns]


def quantize(weight: np.ndarray, block: tuple[int, int] = BLOCK) -> tuple[np.ndarray, np.ndarray]:
    """Codes ``[o, i]`` and the float32 scales of the blocks, so that each block's largest element becomes 448.

    A block of zeros gets the scale 1: 0/0 would make it NaN.
    """
    weight = np.asarray(weight, np.float32)
    (o, i), (down, across) = weight.shape, blocks(weight.shape, block)
    padded = np.zeros((down * block[0], across * block[1]), np.float32)
    padded[:o, :i] = np.abs(weight)
    scales = padded.reshape(down, block[0], across, block[1]).max(axis=(1, 3)) / np.float32(LARGEST)
    scales[scales == 0] = 1
    return encode(weight / spread(scales, 0, o, i, block)), scales


def dequantize(codes: np.ndarray, scales: np.ndarray, block: tuple[int, int] = BLOCK) -> np.ndarray:
    """Codes times scales in float32, rounded once."""
    return E4M3[codes] * spread(scales, 0, *codes.shape, block)
