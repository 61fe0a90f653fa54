"""DeepSeek's sparse attention (DSA) on top of MLA: an indexer scores cached tokens, attention sees the best of them.

deepseek-ai/DeepSeek-V3.2-Exp@3b99a53:inference/model.py. Letters: j index heads, i width of an index key.
"""
from __future__ import annotations

from array_api_compat import array_namespace

from ..arrays import Array


def relu(x: Array) -> Array:
    return array_namespace(x).where(x > 0, x, 0.0)


def index_scores(q: Array, k: Array, w: Array, activation=relu) -> Array:
    """``sum_j w_j relu(q_j . k)``: scores ``[b, t, s]`` of index queries ``[b, t, j, i]`` with weights ``[b, t, j]``.

    The cached index key ``k [b, s, i]`` is one for all index heads.
    """
    xp, (b, t, j, i) = array_namespace(q), q.shape
    products = xp.reshape(xp.reshape(q, (b, t * j, i)) @ k.mT, (b, t, j, k.shape[1]))
    return xp.sum(activation(products) * w[..., None], axis=2)


def best_visible(scores: Array, visible: Array, k: int) -> Array:
    """Which keys each query attends to: the ``k`` largest scores among the visible ones, the earlier of two equals.

    Bool ``[b, t, s]``; a query that sees fewer than ``k`` keys keeps all of them.
    """
    xp = array_namespace(scores)
    open_ = xp.where(visible, scores, -float("inf"))
    order = xp.argsort(open_, axis=-1, descending=True, stable=True)
    return (xp.argsort(order, axis=-1) < k) & visible  # the second argsort gives each key its place
