"""Exercises of notebook 04: the same products in another order."""
from __future__ import annotations

import numpy as np

from ..arrays import fresh
from .registry import Refused, exercise


@exercise("04", "recall", right="d", wrong={
    "a": "both paths read the same wrong scale, so they agree with each other",
    "b": "modulo a prime there is no softmax, so no scale either",
    "c": "over one key the softmax is 1 under every scale",
})
def check_revealing(answer):
    """Which comparison reveals a wrong softmax scale that both paths share: a, b, c or d."""
    return answer


@exercise("04", "compute", right=((1, 1, 0), (0, 0, 2)), wrong={
    ((1, 1, 0), (2, 4, 0)): "kv_b_proj holds W_UK and W_UV head by head, not all W_UK first",
    (1, 1, 2): "the heads are independent: do not sum over them",
    ((1, 1, 0), (0, 2, 0)): "an entry of q picks a row of W_UK, not a column",
})
def check_absorbed_query(answer):
    """Latent queries ``[2, 3]`` of the small example: q_nope times W_UK, head by head."""
    return answer


@exercise("04", "compute", close=1e-3, right=3.2, wrong={
    1 / 3.2: "that is the factors over the product; asked is the product over the factors",
    16.0: "both factors are replaced: add W_UV and W_O before you divide",
    4.0: "W_UV is replaced as well: its r v weights a head belong below the line",
    0.2: "there is a product of r x d for each of the 16 heads",
})
def check_in_advance(answer):
    """Weights of DeepSeek-V2-Lite's W_UV W_O in advance over those of its factors (h 16, r 512, v 128, d 2048)."""
    return answer


def _softmax(x):
    shares = np.exp(x - x.max())
    return shares / shares.sum()


def _head(q, c, w_uk, w_uv, scale):
    return _softmax(c @ (q @ w_uk) * scale) @ c @ w_uv


@exercise("04", "implement", right=_head, wrong={
    lambda q, c, w_uk, w_uv, scale: _head(q, c, w_uk, w_uv, 1.0): "the logits are not scaled",
    lambda q, c, w_uk, w_uv, scale: (c @ (q @ w_uk) * scale) @ c @ w_uv: "the softmax is missing",
    lambda q, c, w_uk, w_uv, scale: scale * _head(q, c, w_uk, w_uv, 1.0): "scale the logits, not the result",
    lambda q, c, w_uk, w_uv, scale: _softmax(c @ (q @ w_uk) * scale) @ c:
        "that is the average latent; W_UV turns it into the head's output",
    lambda q, c, w_uk, w_uv, scale: c.mean(axis=0) @ w_uv:
        "every token has the same weight there: the query is not used",
    lambda q, c, w_uk, w_uv, scale: _head(q, c, w_uk, w_uv, c.shape[1] ** -0.5):
        "use the scale you are given: the latent's width has no part in it",
})
def check_absorbed_head(answer):
    """A function (q [n], c [s, r], w_uk [n, r], w_uv [r, v], scale) -> a head's output [v], absorbed, no rope term."""
    def given(seed, s, r, n, v):
        draw = fresh(seed)
        return draw(n), draw(s, r), draw(n, r), draw(r, v), n**-0.5
    return [answer(*given(*sizes)) for sizes in ((1, 5, 6, 4, 3), (2, 7, 5, 3, 2))]


def _split(kv_b, heads, n, v):
    per_head = kv_b.reshape(heads, n + v, -1)
    return per_head[:, :n], per_head[:, n:]


def _all_keys_first(kv_b, heads, n, v):
    return kv_b[: heads * n].reshape(heads, n, -1), kv_b[heads * n :].reshape(heads, v, -1)


def _heads_inside(kv_b, heads, n, v):
    per_row = kv_b.reshape(n + v, heads, -1).transpose(1, 0, 2)
    return per_row[:, :n], per_row[:, n:]


@exercise("04", "find the bug", right=_split, wrong={
    _all_keys_first: "still all keys first: the rows come head by head, n of W_UK and then v of W_UV",
    lambda kv_b, heads, n, v: _split(kv_b, heads, v, n)[::-1]: "within a head the n rows of W_UK come first",
    _heads_inside: "the head is the outer index: n + v rows of head 0, then those of head 1",
    lambda kv_b, heads, n, v: _split(kv_b, heads, n, v)[::-1]: "W_UK first, then W_UV",
})
def check_split(answer):
    """Repair (kv_b [h (n + v), r], heads, n, v) -> w_uk [h, n, r] and w_uv [h, v, r]."""
    results = []
    for heads, n, v in ((2, 3, 1), (3, 2, 4)):
        both = answer(np.arange(heads * (n + v) * 2.0).reshape(-1, 2), heads, n, v)
        if not isinstance(both, (tuple, list)) or len(both) != 2:
            raise Refused("not yet: two arrays are to be returned, w_uk and w_uv")
        results += both
    return results
