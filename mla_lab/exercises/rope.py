"""Exercises of notebook 03: rotation, pairing, scale."""
from __future__ import annotations

import math

import numpy as np

from ..rope import HALF_SPLIT, INTERLEAVED, half_split_order, mscale, rotate
from .registry import exercise


@exercise("03", "recall", right="c", wrong={
    "a": "at position 0 nothing turns, so both conventions give the same",
    "b": "with two channels there is one pair, (0, 1), under both conventions",
    "d": "every rotation keeps every length, whatever it pairs",
})
def check_telling_test(answer):
    """Which test tells interleaved from half-split pairing: a, b, c or d."""
    return answer


def _radians(x):
    return 10000.0 ** (-np.arange(0, len(x), 2) / len(x))


def _turn(sign=1, pairing=INTERLEAVED):
    def turn(x, position):
        return rotate(x[None, :], np.array([sign * position]), _radians(x), pairing)[0]
    return turn


@exercise("03", "implement", right=_turn(), wrong={
    _turn(pairing=HALF_SPLIT): "that pairs channel i with i + p/2; the weights were trained on (0, 1), (2, 3), ...",
    _turn(-1): "the rotation runs the other way: the first of a pair gets minus the sine",
    lambda x, position: x: "nothing has turned; is the position used?",
    lambda x, position: rotate(x[None, :], np.array([position]), np.ones(len(x) // 2))[0]:
        "every pair has turned by the same angle; pair i turns by theta^(-2i/p) a token",
})
def check_rotation(answer):
    """A function (x [p], position) -> rotated x, pairs (0, 1), (2, 3), ..., theta 10000."""
    six, four = np.array([1.0, 2.0, 3.0, 4.0, -1.0, 0.5]), np.array([-0.5, 2.0, 1.0, 3.0])
    return [answer(x, at) for x, at in ((six, 3), (four, 7), (six, 0))]


@exercise("03", "compute", close=1e-3, right=192**-0.5, wrong={
    576**-0.5: "absorption does not change the width the model was trained with: r + p is the cache's",
    128**-0.5: "the rope channels belong to the head as well",
    192**0.5: "the scale is one over the square root",
    1 / 192: "with the square root of the width",
})
def check_scale(answer):
    """Softmax scale of an absorbed head with n = 128, p = 64, r = 512 and no YaRN."""
    return answer


_M = mscale(64, 1.0)


@exercise("03", "compute", close=1e-3, right=192**-0.5 * _M**2, wrong={
    192**-0.5 * _M: "m comes squared",
    192**-0.5: "that is without YaRN's temperature m",
    _M**2: "that is m squared alone; the width of a head is missing",
    192**-0.5 * (1 + 0.1 * math.log10(64)) ** 2: "m has the natural logarithm",
    192**-0.5 * (0.1 * math.log(64)) ** 2: "m is 0.1 k ln f plus one",
    576**-0.5 * _M**2: "the width is that of a trained head, n + p, not of the cached row",
})
def check_yarn_scale(answer):
    """Softmax scale of Kimi-K2.5: n + p = 192, YaRN with factor 64 and mscale_all_dim 1."""
    return answer


def _inverse(x):
    p = x.shape[-1]
    return x[..., np.arange(p).reshape(2, p // 2).T.ravel()]


@exercise("03", "find the bug", right=lambda x: x[..., half_split_order(x.shape[-1])], wrong={
    _inverse: "that is the way back, from half-split to interleaved; with 4 channels it is the same, with 6 it is not",
    lambda x: x[..., [*range(1, x.shape[-1], 2), *range(0, x.shape[-1], 2)]]:
        "the first of each pair comes first: even channels",
    lambda x: x[..., ::-1]: "the order is turned round; even channels first, then odd ones",
    lambda x: x: "nothing has moved",
})
def check_reorder(answer):
    """Repair x [..., p] -> its channels in half-split order, so that half(P x) = P interleaved(x)."""
    return [answer(np.arange(1.0, p + 1) + np.array(row)) for p, row in ((4, 0), (6, 0), (8, [[0], [10]]))]
