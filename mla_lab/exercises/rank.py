"""Exercises of notebook 02: what a narrow latent can hold."""
from __future__ import annotations

import numpy as np

from ..arrays import fresh, round_to_bfloat16
from .registry import exercise


@exercise("02", "recall", right=129, wrong={
    128: "a matrix of 128 rows has rank 128 at most, whatever is in it: the check could not fail",
    127: "with fewer rows than 128 the rank is below 129 whatever is in it",
    300: "300 tokens will do; which is the smallest number that does?",
    193: "that would be for keys with the rope key beside them, whose rank is 128 + 64",
    513: "the width of the keys limits nothing here; count rows",
    897: "the width of keys and values limits nothing here; count rows",
})
def check_tokens(answer):
    """The fewest tokens with which the claim "keys 512 wide have rank at most 128" can fail."""
    return answer


@exercise("02", "compute", right=576, wrong={
    1024 + 64: "K and V share one latent, so they do not add up",
    1024: "K and V share one latent, and the rope key adds its own width",
    512 + 128: "the rope key is 64 wide; 128 is the nope width",
    512: "the rope key does not come from the latent: it adds its own width",
    2000: "the number of tokens only matters if it is smaller than the rank",
})
def check_rank(answer):
    """Largest rank of [K, V, rope key] for r = 512, p = 64 and 2,000 tokens."""
    return answer


@exercise("02", "compute", close=1e-3, right=5.0, wrong={
    7.0: "squares are added, not the values",
    25.0: "take the square root of the sum of squares",
    4.0: "that is the loss in the spectral norm, the largest value cut; the Frobenius norm takes them all",
    (24**2 + 12**2) ** 0.5: "that is what is kept, not what is lost",
    (12**2 + 4**2 + 3**2) ** 0.5: "two directions are kept, number 1 and number 2",
})
def check_loss(answer):
    """Frobenius norm lost by the best cut to rank 2 of a matrix with singular values 24, 12, 4, 3."""
    return answer


def _sigma(matrix):
    return np.linalg.svd(matrix, compute_uv=False)


def _rank(matrix, u):
    return np.sum(_sigma(matrix) > u * np.linalg.norm(matrix))


def _rounded(seed, rows, r, columns):
    draw = fresh(seed)
    return round_to_bfloat16((draw(rows, r) @ draw(r, columns)).astype(np.float32)).astype(np.float64)


@exercise("02", "implement", right=_rank, wrong={
    lambda matrix, u: np.linalg.matrix_rank(matrix):
        "NumPy's default knows the array's dtype, not what the numbers went through: use u",
    lambda matrix, u: np.sum(_sigma(matrix) > 0): "rounding alone makes singular values above zero",
    lambda matrix, u: np.sum(_sigma(matrix) > u):
        "an absolute tolerance: rounding grows with the numbers, so multiply u by the matrix's Frobenius norm",
    lambda matrix, u: np.sum(_sigma(matrix) <= u * np.linalg.norm(matrix)): "those are the ones that are noise",
    lambda matrix, u: np.sum(_sigma(matrix) > u * _sigma(matrix)[0]):
        "that is u times the largest singular value; the Frobenius norm counts them all",
    lambda matrix, u: min(matrix.shape): "that is the most that its shape allows",
})
def check_own_rank(answer):
    """A function (matrix, u) -> number of singular values above u times the Frobenius norm."""
    whole = np.round(8 * fresh(3)(20, 4)) @ np.round(8 * fresh(4)(4, 12))
    cases = ((_rounded(1, 40, 5, 24), 2.0**-8), (1e-4 * _rounded(2, 30, 3, 12), 2.0**-8), (whole, 2.0**-24),
             (np.diag([8.0, 6.0, 0.75, 0.5625, 0.0]), 2.0**-4))
    return [answer(matrix, u) for matrix, u in cases]


def _by_svd(latents, up, k, kept=slice(None)):
    u, s, vh = np.linalg.svd(latents @ up, full_matrices=False)
    return (u[:, kept][:, :k] * s[kept][:k]) @ vh[kept][:k]


def _of_latents_alone(latents, up, k):
    u, s, vh = np.linalg.svd(latents, full_matrices=False)
    return (u[:, :k] * s[:k]) @ vh[:k] @ up


def _without_values(latents, up, k):
    u, _, vh = np.linalg.svd(latents @ up, full_matrices=False)
    return u[:, :k] @ vh[:k]


@exercise("02", "find the bug", right=lambda latents, up, k: _by_svd(latents, up, k), wrong={
    lambda latents, up, k: latents[:, :k] @ up[:k]:
        "still the first k channels, and they are no better than any others: take the k largest directions",
    lambda latents, up, k: _by_svd(latents, up, k, slice(None, None, -1)): "those are the smallest directions",
    _without_values: "the singular values themselves are missing between U and V",
    _of_latents_alone: "the best cut of the latents is not that of the product: decompose latents @ up",
    lambda latents, up, k: latents @ up: "nothing has been cut: the rank is still that of the latent",
})
def check_best_cut(answer):
    """Repair (latents, up, k) -> the rank-k matrix nearest to ``latents @ up``."""
    draw = fresh(7)
    return [answer(draw(*a) * np.linspace(1, 3, a[1]), draw(a[1], b) * np.linspace(1, 2, b), k)
            for a, b, k in (((12, 5), 9, 2), ((8, 6), 7, 3))]
