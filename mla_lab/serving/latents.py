"""Latents to be quantised: normed ones, the same with an outlier, and rows that were never normed."""
from __future__ import annotations

import numpy as np

from ..arrays import fresh
from ..recipe import rms_norm

OUTLIER_CHANNEL = 3


def normed(tokens: int, width: int = 512, seed: int = 0) -> np.ndarray:
    """Standard normal rows after an RMSNorm whose weights are spread over [0.5, 1.5): ``[s, r]``."""
    return normed_by(1 + np.clip(fresh(seed)(width) / 4, -0.5, 0.499), tokens, seed + 1)


def normed_by(weight: np.ndarray, tokens: int, seed: int = 0) -> np.ndarray:
    """Standard normal rows after an RMSNorm with these weights ``[r]``: those of a real model, for example."""
    return rms_norm(fresh(seed)(tokens, len(weight)), np.asarray(weight, np.float64), 1e-6)


def with_outlier(tokens: int, times: float, width: int = 512, seed: int = 0) -> np.ndarray:
    """The same rows with one channel ``times`` as large, as a norm's weight can make it."""
    rows = normed(tokens, width, seed)
    rows[:, OUTLIER_CHANNEL] *= times
    return rows


def not_normed(tokens: int, octaves: float, width: int = 512, seed: int = 0) -> np.ndarray:
    """The same rows, their sizes spread evenly (in the logarithm) over so many powers of two."""
    return normed(tokens, width, seed) * 2.0 ** np.linspace(-octaves / 2, octaves / 2, tokens)[:, None]
