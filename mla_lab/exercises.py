"""Self-checked exercises: a wrong answer gets the hint that fits the likely mistake.

Each function takes the learner's answer and returns one sentence. ``None`` (or ``...``) means not answered yet.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from .config import MLAConfig
from .example import KV_B, Q_NOPE
from .rope import rotate, softmax_scale

OPEN = "not answered yet"


def _outcome(answer: Any, right: Any, hints: dict[str, Any], close: float = 1e-6) -> str:
    """Compare with the right answer, then with each known mistake."""
    if answer is None or answer is ...:
        return OPEN
    try:
        got = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        return f"a number or an array of numbers is needed, not {type(answer).__name__}"
    def same(x: Any) -> bool:
        x = np.asarray(x, dtype=np.float64)
        return got.shape == x.shape and np.allclose(got, x, rtol=close, atol=close)
    if same(right):
        return "right"
    for hint, mistake in hints.items():
        if same(mistake):
            return f"not yet: {hint}"
    want = np.asarray(right).shape
    return f"not yet: the shape should be {want}, not {got.shape}" if got.shape != want else "not yet: look again"


def check_cache(answer: Any) -> str:
    """Bytes a token of MiniCPM3-4B's cache: 62 layers, 40 heads, r = 256, p = 32, n = v = 64, bf16."""
    return _outcome(answer, 62 * 288 * 2, {
        "the latent serves as key and value, so nothing is counted twice": 62 * 2 * 288 * 2,
        "the rope key is cached too": 62 * 256 * 2,
        "the rope key is one for all heads": 62 * (256 + 40 * 32) * 2,
        "that is one layer": 288 * 2,
        "those are values; bf16 takes 2 bytes each": 62 * 288,
        "the latent replaces keys and values of all heads: their widths do not enter": 62 * 40 * (96 + 64) * 2,
    })


def check_rank(answer: Any) -> str:
    """Largest rank of [K, V, rope key] for r = 512, p = 64 and 2,000 tokens."""
    return _outcome(answer, 576, {
        "K and V share one latent, so they do not add up": 1024 + 64,
        "K and V share one latent, and the rope key adds its own width": 1024,
        "the rope key is 64 wide; 128 is the nope width": 512 + 128,
        "the rope key does not come from the latent: it adds its own width": 512,
        "the number of tokens only matters if it is smaller than the rank": 2000,
    })


def check_rotation(function: Any) -> str:
    """A function (x [p], position) -> rotated x, pairs (0, 1), (2, 3), ..., theta 10000."""
    if function is None or function is ...:
        return OPEN
    x, at = np.array([1.0, 2.0, 3.0, 4.0, -1.0, 0.5]), 3
    radians = 10000.0 ** (-np.arange(0, 6, 2) / 6)
    halves = np.concatenate([x[:3] * np.cos(at * radians) - x[3:] * np.sin(at * radians),
                             x[3:] * np.cos(at * radians) + x[:3] * np.sin(at * radians)])
    try:
        answer = function(x.copy(), at)
    except Exception as error:
        return f"not yet: your function raised {type(error).__name__}: {error}"
    def turned(position: float) -> np.ndarray:
        return rotate(x[None, :], np.array([position]), radians)[0]
    return _outcome(answer, turned(at), {
        "that pairs channel i with i + p/2; the weights were trained on (0, 1), (2, 3), ...": halves,
        "the rotation runs the other way: the first of a pair gets minus the sine": turned(-at),
        "nothing has turned; is the position used?": x,
    })


def check_scale(answer: Any) -> str:
    """Softmax scale of an absorbed head with n = 128, p = 64, r = 512 and no YaRN."""
    config = MLAConfig(hidden_size=7168, num_attention_heads=128, kv_lora_rank=512, qk_nope_head_dim=128,
                       qk_rope_head_dim=64, v_head_dim=128)
    return _outcome(answer, softmax_scale(config), {
        "absorption does not change the width the model was trained with: r + p is the cache's": 576**-0.5,
        "the rope channels belong to the head as well": 128**-0.5,
        "the scale is one over the square root": 192**0.5,
        "with the square root of the width": 1 / 192,
    }, close=1e-3)  # a rounded answer is an answer


def check_absorbed_query(answer: Any) -> str:
    """Latent queries ``[2, 3]`` of the small example: q_nope times W_UK, head by head."""
    kv_b, q = np.array(KV_B, float), np.array(Q_NOPE, float)
    w_uk = np.stack([kv_b[0:2], kv_b[3:5]])
    return _outcome(
        answer,
        np.einsum("hn,hnr->hr", q, w_uk),
        {
            "kv_b_proj holds W_UK and W_UV head by head, not all W_UK first": np.einsum(
                "hn,hnr->hr", q, kv_b[:4].reshape(2, 2, 3)
            ),
            "the heads are independent: do not sum over them": np.einsum("hn,hnr->r", q, w_uk),
        },
    )


def check_positions(answer: Any) -> str:
    """Positions of 3 new tokens in rows that hold 5, 0 and 2 tokens: ``[3, 3]``."""
    starts = np.array([5, 0, 2])
    return _outcome(answer, starts[:, None] + np.arange(3), {
        "every row starts at 0 there; a new token stands behind those that are cached": np.tile(np.arange(3), (3, 1)),
        "all rows are given the longest row's length": np.tile(5 + np.arange(3), (3, 1)),
        "one too far: the first new token of an empty row has position 0": starts[:, None] + np.arange(1, 4),
    })


def check_crossover(answer: Any) -> str:
    """New tokens from which rebuilding takes fewer FLOP: r = 512, n = 128, p = 64, v = 128, 128 heads, long context.

    The fraction, its rounding and the first whole number above it are all right.
    """
    rebuilt, naive, absorbed = 512 * (128 + 128), 128 + 64 + 128, 2 * 512 + 64
    return _outcome(answer, rebuilt / (absorbed - naive), {
        "a pair costs 2r + p absorbed (the sum is r wide, not r + p) and n + p + v naive: p cancels":
            rebuilt / (2 * (512 + 64) - naive),  # the same as with n + v for the naive pair
        "the rope term costs the same on both sides, so count it on both or on neither":
            rebuilt / (2 * 512 - naive),
        "the latent is used twice, as key and as value: 2r + p, not r + p": rebuilt / (512 + 64 - naive),
        "both sides have the factor of the heads, so it cancels": 128 * rebuilt / (absorbed - naive),
        "both sides have the heads, so they cancel": rebuilt / (absorbed - naive) / 128,
        "values are rebuilt as well as keys: r (n + v)": 512 * 128 / (absorbed - naive),
        "a multiplication and an addition are two FLOP on both sides": 2 * rebuilt / (absorbed - naive),
        "that is the inverse: rebuilding is paid once a cached token, the difference once a pair":
            (absorbed - naive) / rebuilt,
    }, close=3e-3)
