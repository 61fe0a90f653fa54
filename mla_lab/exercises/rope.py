"""Exercises of notebook 03: rotation, pairing, scale."""
from __future__ import annotations

import numpy as np

from ..rope import HALF_SPLIT, INTERLEAVED, rotate
from .registry import exercise


def _radians(x):
    return 10000.0 ** (-np.arange(0, len(x), 2) / len(x))


def _turned(sign=1, pairing=INTERLEAVED):
    return lambda x, position: rotate(x[None, :], np.array([sign * position]), _radians(x), pairing)[0]


@exercise("03", "implement", right=lambda x, position: _turned()(x, position), wrong={
    _turned(pairing=HALF_SPLIT): "that pairs channel i with i + p/2; the weights were trained on (0, 1), (2, 3), ...",
    _turned(-1): "the rotation runs the other way: the first of a pair gets minus the sine",
    lambda x, position: x: "nothing has turned; is the position used?",
})
def check_rotation(answer):
    """A function (x [p], position) -> rotated x, pairs (0, 1), (2, 3), ..., theta 10000."""
    six, four = np.array([1.0, 2.0, 3.0, 4.0, -1.0, 0.5]), np.array([-0.5, 2.0, 1.0, 3.0])
    return [answer(x.copy(), at) for x, at in ((six, 3), (four, 7), (six, 0))]


@exercise("03", "compute", close=1e-3, right=192**-0.5, wrong={
    576**-0.5: "absorption does not change the width the model was trained with: r + p is the cache's",
    128**-0.5: "the rope channels belong to the head as well",
    192**0.5: "the scale is one over the square root",
    1 / 192: "with the square root of the width",
})
def check_scale(answer):
    """Softmax scale of an absorbed head with n = 128, p = 64, r = 512 and no YaRN."""
    return answer
