"""Exercises of notebook 09: what a split must keep, a rescaling, a merge, tiles, and a factor that is upside down."""
from __future__ import annotations

import math

import numpy as np

from .registry import exercise


@exercise("09", "recall", right="lse", wrong={
    "maximum": "two splits with the same maximum may have one key or a thousand at it",
    "length": "softmax weighs keys by their logits, not by their number",
    "nothing": "an average would weigh a split of unimportant keys like any other",
    "weights": "all weights would be as many numbers as there are keys; one number a row is enough",
})
def check_kept_by_a_split(answer):
    """What must a split keep beside its output, to be merged: maximum, lse, length, weights or nothing?"""
    return answer


@exercise("09", "compute", close=2e-3, right=math.exp(-2.0), wrong={
    math.exp(2.0): "that is exp(new - old): what was summed is too large for the new maximum, so it must shrink",
    2.0: "the difference stands in an exponent",
    -2.0: "old minus new is right; its exponential is the factor",
    1.0: "the maximum has grown, so earlier sums must change",
    math.exp(-5.0): "not the maximum alone: the distance from the old one to the new one",
})
def check_shrink(answer):
    """Factor for what was summed so far when the running maximum grows from 3 to 5."""
    return answer


@exercise("09", "compute", right=3, wrong={
    2: "16 x 9 = 144 rows; 128 of them fill two tiles, and the rest needs one as well",
    9: "the tokens of one request are rows of the same tiles",
    2.25: "a tile that is partly filled takes as long as a full one",
    144: "those are the rows; how many tiles of 64 hold them?",
    1: "16 heads fit into one tile for one token; there are nine",
})
def check_tiles(answer):
    """Tiles of 64 rows for 16 heads and 9 new tokens."""
    return answer


def _merge(o1, l1, o2, l2):
    top = np.maximum(l1, l2)
    a, b = np.exp(l1 - top), np.exp(l2 - top)
    return (a * o1 + b * o2) / (a + b)


def _by_lse(o1, l1, o2, l2):
    return (l1 * o1 + l2 * o2) / (l1 + l2)


def _average(o1, l1, o2, l2):
    return (o1 + o2) / 2


def _not_divided(o1, l1, o2, l2):
    top = np.maximum(l1, l2)
    return np.exp(l1 - top) * o1 + np.exp(l2 - top) * o2


def _base_two(o1, l1, o2, l2):
    top = np.maximum(l1, l2)
    a, b = 2 ** (l1 - top), 2 ** (l2 - top)
    return (a * o1 + b * o2) / (a + b)


def _overflows(o1, l1, o2, l2):
    a, b = np.exp(np.float64(l1)), np.exp(np.float64(l2))
    return (a * o1 + b * o2) / (a + b)


@exercise("09", "implement", right=_merge, wrong={
    _by_lse: "the weight of a split is the exponential of its LSE",
    _average: "a split with larger logits weighs more",
    _not_divided: "the weights must add up to 1: divide by their sum",
    _base_two: "this LSE is a natural logarithm, so its exponential has base e",
    _overflows: "right for small LSE; exp(900) is infinite, so subtract the larger LSE first",
})
def check_merge_splits(answer):
    """A function (o1, l1, o2, l2) -> output over both splits, of two outputs and their natural-log LSE."""
    one, other = np.array([1.0, -2.0]), np.array([4.0, 0.5])
    return [answer(one, l1, other, l2) for l1, l2 in ((1.0, 2.0), (3.0, -1.0), (900.0, 901.0))]


@exercise("09", "find the bug", right=3, wrong={
    1: "the maximum over what was seen and what is new: right",
    2: "weights of the new block against the new maximum: right",
    4: "old sums shrunk, new weights added: right, if the factor is",
    5: "old sums shrunk, new values added: right, if the factor is",
})
def check_rescale_line(answer):
    """The number of the line that is wrong as soon as a later block has a larger logit."""
    return answer
