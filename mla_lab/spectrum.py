"""Singular values, and a rank whose tolerance is the rounding in the data rather than the size of the matrix."""
from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from .arrays import UNIT_ROUNDOFF, Array, to_numpy
from .errors import InputError


def singular_values(matrix: Array) -> np.ndarray:
    """Singular values of ``matrix [m, k]`` in float64, largest first: no library has an SVD for 16-bit dtypes."""
    values = to_numpy(matrix).astype(np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"a matrix with two non-empty axes is needed, not one of shape {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError("the matrix holds NaN or infinity, so it has no singular values.")
    return np.linalg.svd(values, compute_uv=False)


def rounding_radius(matrix: Array) -> float:
    """Frobenius norm of the rounding in ``matrix`` if it was stored once in its dtype, plus that of the SVD itself.

    By Weyl's inequality no singular value can have moved further. NumPy's and torch's default tolerance grows with the
    number of rows instead: for a float32 matrix of 1,000,000 x 2 it passes 0.1 of the largest singular value.
    """
    values = to_numpy(matrix).astype(np.float64)
    unit = float(array_namespace(matrix).finfo(matrix.dtype).eps) / 2
    return float(np.linalg.norm(values)) * (unit + min(values.shape) * UNIT_ROUNDOFF["float64"])


def numerical_rank(matrix: Array, radius: float | None = None) -> int:
    """The number of singular values above ``radius`` (by default `rounding_radius`)."""
    radius = rounding_radius(matrix) if radius is None else radius
    return int(np.sum(singular_values(matrix) > radius))


def require_falsifiable(rank: int, tokens: int, width: int) -> None:
    """Refuse a rank bound that no matrix of this shape could break."""
    if tokens <= rank or width <= rank:
        field, value = ("tokens", tokens) if tokens <= rank else ("width", width)
        raise InputError(
            f"{field} = {value} makes the check vacuous: a {tokens} x {width} matrix cannot have a rank above "
            f"{min(tokens, width)}, so use more than {rank}."
        )
