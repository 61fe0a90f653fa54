"""Exercises of notebook 08: which limit is nearer, intensities, the crossover, and bytes that are counted twice."""
from __future__ import annotations

from .registry import exercise


@exercise("08", "recall", right="memory", wrong={
    "compute": "241.8 FLOP/B lie below that GPU's ridge of 295.5: which of the two is still busy when the other waits?",
    "capacity": "how much fits says how many requests, not how long a step takes",
    "launch": "that counts where kernels are short; the roofline has two limits only",
})
def check_nearer_limit(answer):
    """Decode with 128 heads on an H800 (ridge 295.5 FLOP/B) waits for: memory, compute, capacity or launch?"""
    return answer


@exercise("08", "compute", close=2e-3, right=2 * 16 * 1088 / 1152, wrong={
    2 * 128 * 1088 / 1152: "that is with all 128 heads; 16 are left on each of 8 GPUs",
    16 * 1088 / 1152: "a multiplication with its addition is two FLOPs",
    2 * 16 * 1088 / 576: "bf16 takes 2 B a value",
    16.0: "keys and values are the same bytes: a row is 576 values, not 1,088",
})
def check_sixteen_heads(answer):
    """FLOP/B of decode over a long cache with 16 heads of DeepSeek-V3 on a GPU, bf16."""
    return answer


@exercise("08", "compute", close=2e-3, right=256 * 128 / (512 - 128), wrong={
    256 * 128 / 544: "a rebuilt pair costs n + p + v: what counts is how much more an absorbed one costs",
    256 * 128 / (544 - 128): "the rope channels are multiplied in both forms, so they cancel",
    256 * 64 / (512 - 128): "keys and values are both rebuilt: n + v",
    131072 / 768: "that is DeepSeek-V3; here r = 256 and n = v = 64",
})
def check_small_crossover(answer):
    """New tokens behind a long cache at which both forms need as many FLOPs, for r = 256, p = 32, n = v = 64."""
    return answer


def _roof(intensity, flops, bandwidth):
    return min(flops, intensity * bandwidth)


def _product_only(intensity, flops, bandwidth):
    return intensity * bandwidth


def _larger(intensity, flops, bandwidth):
    return max(flops, intensity * bandwidth)


def _one_after_the_other(intensity, flops, bandwidth):
    return 1 / (1 / flops + 1 / (intensity * bandwidth))


def _peak(intensity, flops, bandwidth):
    return flops


@exercise("08", "implement", right=_roof, wrong={
    _product_only: "beyond the ridge arithmetic is the limit, however fast memory is",
    _larger: "the nearer limit counts: the smaller rate",
    _one_after_the_other: "a GPU reads while it multiplies; the roofline is the time of the slower one, not of both",
    _peak: "below the ridge the units wait for memory",
})
def check_roof(answer):
    """A function (intensity in FLOP/B, flops in FLOP/s, bandwidth in B/s) -> FLOP/s that can be reached."""
    inputs = ((30.0, 990e12, 4.8e12), (241.8, 990e12, 4.8e12), (241.8, 990e12, 3.35e12))
    return [answer(*x) for x in inputs]


@exercise("08", "find the bug", right=2, wrong={
    1: "each pair is multiplied over 576 channels, and its weight with 512: right",
    3: "queries of 576 and outputs of 512 for each head: right",
    4: "bytes over seconds, in GB/s: right; look at what goes into it",
})
def check_bytes_line(answer):
    """The number of the line that makes a kernel look faster than memory is."""
    return answer
