"""Exercises of notebook 01: what a token leaves in the cache."""
from __future__ import annotations

from .registry import exercise


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
