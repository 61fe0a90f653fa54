"""Exercises of notebook 01: what a token leaves in the cache."""
from __future__ import annotations

import math

from .registry import exercise


@exercise("01", "recall", right="MQA", wrong={
    "MLA": "a latent and a rope key are 576 values; one of the four caches less",
    "GQA-8": "eight keys and eight values of 128 are 2,048 values; two of the four cache less",
    "MHA": "it caches a key and a value for every head and is the one to be beaten",
})
def check_smallest(answer):
    """Which of MHA, GQA-8, MQA and MLA caches the fewest values at DeepSeek-V3's shape."""
    return answer


@exercise("01", "compute", right=62 * 288 * 2, wrong={
    62 * 2 * 288 * 2: "the latent serves as key and value, so nothing is counted twice",
    62 * 256 * 2: "the rope key is cached too",
    62 * (256 + 40 * 32) * 2: "the rope key is one for all heads",
    288 * 2: "that is one layer",
    62 * 288: "those are values; bf16 takes 2 bytes each",
    62 * 40 * (96 + 64) * 2: "the latent replaces keys and values of all heads: their widths do not enter",
})
def check_cache(answer):
    """Bytes a token of MiniCPM3-4B's cache: 62 layers, 40 heads, r = 256, p = 32, n = v = 64, bf16."""
    return answer


@exercise("01", "compute", close=1e-4, right=100 * (1 - 288 / 5120), wrong={
    100 * 288 / 5120: "that is the share that is left; the saving is 100 % minus it",
    1 - 288 / 5120: "right as a fraction; asked is a number of percent",
    100 * (1 - 288 / 2560): "multi-head attention caches a key and a value for each head",
    100 * (1 - 576 / 5120): "the latent is key and value at once: no factor 2 on MLA's side",
    100 * (1 - 256 / 5120): "the rope key is cached too",
    100 * (1 - 288 / 6400):
        "that baseline is MiniCPM3's own expanded cache, with keys of 64 + 32; MHA's keys are 64 wide",
})
def check_saving(answer):
    """Percent that MiniCPM3-4B's layer saves against MHA with 40 heads of 64, to two decimals."""
    return answer


def _fit(capacity, layers, r, p, size):
    return capacity // (layers * (r + p) * size)


@exercise("01", "implement", right=_fit, wrong={
    lambda capacity, layers, r, p, size: capacity / (layers * (r + p) * size):
        "half a token does not fit: whole tokens, rounded down",
    lambda capacity, layers, r, p, size: math.ceil(capacity / (layers * (r + p) * size)):
        "rounded up, the last token lacks room: round down",
    lambda capacity, layers, r, p, size: round(capacity / (layers * (r + p) * size)):
        "rounded to the nearest, the last token may lack room: round down",
    lambda capacity, layers, r, p, size: _fit(capacity, 1, r, p, size): "a token leaves a row in every layer",
    lambda capacity, layers, r, p, size: _fit(capacity, layers, 2 * r, p, size):
        "the latent is key and value at once: no factor 2",
    lambda capacity, layers, r, p, size: _fit(capacity, layers, r, 0, size): "the rope key is in the row as well",
    lambda capacity, layers, r, p, size: _fit(capacity, layers, r, p, 1): "each value takes `size` bytes",
})
def check_fit(answer):
    """A function (capacity, layers, r, p, size) -> whole tokens whose cache fits into ``capacity`` bytes."""
    cases = (10**9, 61, 512, 64, 2), (10**6 - 1, 5, 80, 32, 2), (80 * 2**30, 27, 512, 64, 4)
    return [answer(*case) for case in cases]


@exercise("01", "find the bug", right=lambda tokens, layers, tp: tokens * layers * 576 * 2, wrong={
    lambda tokens, layers, tp: tokens * layers * (576 // tp) * 2:
        "the division is the bug: a latent has no head axis to cut, so each GPU keeps all of it",
    lambda tokens, layers, tp: tokens * layers * (512 + 64 // tp) * 2:
        "the rope key is shared by all heads: it is not cut",
    lambda tokens, layers, tp: tokens * layers * (512 // tp + 64) * 2: "the latent is not cut either",
    lambda tokens, layers, tp: tokens * layers * 576 * 2 * tp: "that is all GPUs together; asked is each of them",
})
def check_each_gpu(answer):
    """Repair (tokens, layers, tp) -> bytes of V3's cache on each of ``tp`` tensor-parallel GPUs."""
    return [answer(*case) for case in ((8192, 61, 8), (100, 61, 2), (1, 7, 16))]
