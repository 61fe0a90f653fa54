"""Exercises of notebook 02: what a narrow latent can hold."""
from __future__ import annotations

from .registry import exercise


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
