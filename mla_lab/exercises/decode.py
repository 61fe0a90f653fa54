"""Exercises of notebook 05: positions, masks, merging."""
from __future__ import annotations

import math

import numpy as np

from .registry import exercise
from .symptoms import CULPRIT


@exercise("05", "recall", right="c", wrong={
    "a": "0 times NaN is NaN, and a sum with NaN in it is NaN",
    "b": "the sum runs over used slots as well, so it would not be 0 in any case; what is 0 times NaN?",
    "d": "both forms multiply the slot's latent by its weight; what is 0 times NaN?",
})
def check_nan_slot(answer):
    """What comes out if an unused slot holds NaN and its weight is exactly 0: a, b, c or d."""
    return answer


@exercise("05", "compute", right=((5, 6, 7), (0, 1, 2), (2, 3, 4)), wrong={
    ((0, 1, 2), (0, 1, 2), (0, 1, 2)):
        "every row starts at 0 there; a new token stands behind those that are cached",
    ((5, 6, 7), (5, 6, 7), (5, 6, 7)): "all rows are given the longest row's length",
    ((6, 7, 8), (1, 2, 3), (3, 4, 5)): "one too far: the first new token of an empty row has position 0",
})
def check_positions(answer):
    """Positions of 3 new tokens in rows that hold 5, 0 and 2 tokens: ``[3, 3]``."""
    return answer


def _tri(shift):
    return lambda cached, new: np.tri(new, cached + new, shift(cached), dtype=bool)


@exercise("05", "implement", right=_tri(lambda cached: cached), wrong={
    _tri(lambda cached: 0): "aligned top left: new token i also sees all that is cached",
    _tri(lambda cached: cached + 1): "a new token must not see the one after it",
    _tri(lambda cached: cached - 1): "a new token sees itself",
    lambda cached, new: ~np.tri(new, cached + new, cached, dtype=bool): "True is to stand where a token is seen",
    lambda cached, new: np.where(np.tri(new, cached + new, cached), 0.0, -np.inf):
        "that is what is added to the logits; asked is True or 1 where a token is seen",
    lambda cached, new: np.ones((new, cached + new), bool): "the first new token must not see the later ones",
    lambda cached, new: np.tri(new, dtype=bool): "the cached tokens are keys as well: cached + new columns",
    lambda cached, new: np.tri(new, cached + new, cached, dtype=bool).T:
        "one row for each new token, one column for each key",
})
def check_mask(answer):
    """A function (cached, new) -> which keys each new token sees, [new, cached + new], True or 1 where it does."""
    return [1 * np.asarray(answer(cached, new)) for cached, new in ((5, 3), (0, 4), (2, 1))]


def _merge(o_a, l_a, o_b, l_b):
    top = max(l_a, l_b)
    a, b = math.exp(l_a - top), math.exp(l_b - top)
    return (a * o_a + b * o_b) / (a + b), top + math.log(a + b)


def _overflowing(o_a, l_a, o_b, l_b):
    a, b = np.exp(l_a), np.exp(l_b)
    return (a * o_a + b * o_b) / (a + b), np.log(a + b)


@exercise("05", "implement", right=_merge, wrong={
    lambda o_a, l_a, o_b, l_b: ((o_a + o_b) / 2, _merge(o_a, l_a, o_b, l_b)[1]):
        "a plain average: the part with the larger log-sum-exp has more weight",
    lambda o_a, l_a, o_b, l_b: ((l_a * o_a + l_b * o_b) / (l_a + l_b), _merge(o_a, l_a, o_b, l_b)[1]):
        "the weights are the exponentials of the log-sum-exps, not these themselves",
    lambda o_a, l_a, o_b, l_b: (_merge(o_a, l_a, o_b, l_b)[0], l_a + l_b):
        "log-sum-exps do not add: it is the log of the sum of their exponentials",
    lambda o_a, l_a, o_b, l_b: (_merge(o_a, l_a, o_b, l_b)[0], max(l_a, l_b)):
        "the log-sum-exp of all keys is more than the larger of the two",
    _overflowing: "exp(1000) overflows: subtract the larger of the two first",
})
def check_merge(answer):
    """A function (o_a, l_a, o_b, l_b) -> (o, l): two parts of the keys merged by their log-sum-exps."""
    cases = (1.0, 0.5, 3.0, 1.5), (2.0, -1.0, -4.0, 0.25), (1.0, 1000.0, 2.0, 1001.0)
    return [answer(*case) for case in cases]


@exercise("05", "find the bug", right=CULPRIT, wrong={
    "mask_top_left": "under it five tokens at once come out right: with an empty cache top left is bottom right",
    "latent_normed_twice": "under it one token at position 0 would be wrong already",
    "scale_by_cached_width": "a wrong scale changes nothing when all positions move: only the distances count for it",
    "no_rotation": "without any rotation, moving all positions would change nothing",
    "query_at_zero": "under it the keys do turn, so five copies of one token would not get equal weights",
})
def check_culprit(answer):
    """Which fault an engine has, by its symptoms."""
    return answer
