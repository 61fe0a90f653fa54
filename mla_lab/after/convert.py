"""A GQA layer as an MLA layer (TransMLA, arXiv 2502.07864): the latent is as wide as K and V have rank together.

Exactly, in integers modulo a prime. Keys that RoPE has turned are another matter: see notebook 03.
"""
from __future__ import annotations

from array_api_compat import array_namespace

from ..arrays import Array
from ..exact import PRIME
from .grouped import consecutive


def rank_factors(matrix: Array) -> tuple[Array, Array]:
    """``up [m, r]`` and ``down [r, k]`` with ``up @ down = matrix`` modulo `PRIME`, r being its rank.

    ``down`` holds the non-zero rows of the reduced echelon form, ``up`` the columns of ``matrix`` with a pivot.
    """
    xp = array_namespace(matrix)
    rows, done, pivots = matrix % PRIME, [], []
    for column in range(matrix.shape[1]):
        candidates = xp.nonzero(rows[:, column])[0]
        if candidates.shape[0] == 0:
            continue
        row = rows[int(candidates[0]), :]
        row = row * pow(int(row[column]), -1, PRIME) % PRIME
        rows = (rows - rows[:, column][:, None] * row[None, :]) % PRIME
        done = [(other - other[column] * row) % PRIME for other in done] + [row]
        pivots.append(column)
    if not done:  # a matrix of zeros has rank 0
        return matrix[:, :0], matrix[:0, :]
    return xp.stack([matrix[:, c] for c in pivots], axis=1), xp.stack(done, axis=0)


def jointly(w_k: Array, w_v: Array) -> tuple[Array, Array, Array]:
    """One latent for both: up-projections ``[g n, r]`` and ``[g v, r]``, and the down-projection ``[r, d]``."""
    up, down = rank_factors(array_namespace(w_k).concat([w_k, w_v], axis=0))
    return up[: w_k.shape[0], :], up[w_k.shape[0] :, :], down


def gqa_as_mla(w_k: Array, w_v: Array, heads: int, groups: int, factors=jointly, group_of=consecutive
               ) -> tuple[Array, Array, Array]:
    """``w_dkv [r, d]``, ``w_uk [h, n, r]`` and ``w_uv [h, r, v]`` of an MLA layer that is this GQA layer.

    Parameters
    ----------
    w_k, w_v : arrays [g n, d] and [g v, d]
        Key and value projections of all groups, one below the other.
    """
    xp = array_namespace(w_k)
    up_k, up_v, down = factors(w_k, w_v)
    per_group = [xp.reshape(up, (groups, up.shape[0] // groups, up.shape[1])) for up in (up_k, up_v)]
    w_uk, w_uv = (xp.stack([up[group_of(i, heads, groups), ...] for i in range(heads)], axis=0) for up in per_group)
    return down, w_uk, w_uv.mT
