"""Equalities with no tolerance at all: the same formulas on integers modulo a prime.

Naive and absorbed attention are the same polynomial in their inputs. Two different polynomials of degree k agree at a
random point of a field with q elements with probability at most k/q (Schwartz 1980, Zippel 1979), so one agreement to
the bit modulo `PRIME` leaves a chance of about 1e-5 that the formulas differ.

Integers are held in float64, whose matrix product is exact as long as no sum reaches 2^53.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace

from .arrays import Array, Backend
from .errors import InputError

PRIME = 1_048_573  # the largest below 2^20
LARGEST_SUM = (2**53 - 1) // (PRIME - 1) ** 2  # products that a sum may have: 8192


def residues(backend: Backend, seed: int, *shape: int) -> Array:
    """Uniform integers modulo `PRIME` as float64 on ``backend``."""
    return backend.with_dtype("float64").asarray(
        np.random.default_rng(seed).integers(0, PRIME, shape).astype(np.float64)
    )


def modulo(x: Array) -> Array:
    """``x`` modulo `PRIME`: `Recipe.store` for exact arithmetic."""
    return x % PRIME


def exact_store(longest_sum: int) -> Callable[[Array], Array]:
    """`modulo`, after making sure that sums of ``longest_sum`` products stay exact in float64."""
    if longest_sum > LARGEST_SUM:
        raise InputError(f"a sum of {longest_sum} products modulo {PRIME} would leave float64's integers; "
                         f"at most {LARGEST_SUM} are exact.")
    return modulo


def rank_modulo(matrix: Array) -> int:
    """Rank of an integer matrix ``[m, k]`` over the field of `PRIME` elements, by elimination.

    For random factors it equals the rank over the rationals unless a minor happens to be divisible by `PRIME`.
    """
    xp = array_namespace(matrix)
    rows, rank = matrix % PRIME, 0
    for column in range(rows.shape[1]):
        candidates = xp.nonzero(rows[rank:, column])[0]
        if candidates.shape[0] == 0:
            continue
        at = rank + int(candidates[0])
        pivot = rows[at, :] * pow(int(rows[at, column]), -1, PRIME) % PRIME
        keep, others = rows[at + 1 :, :], rows[rank:at, :]  # rows above `rank` are done; the pivot row leaves
        rest = xp.concat([others, keep], axis=0)
        rest = (rest - rest[:, column][:, None] * pivot[None, :]) % PRIME
        rows = xp.concat([rows[:rank, :], pivot[None, :], rest], axis=0)
        rank += 1
        if rank == rows.shape[0]:
            break
    return rank
