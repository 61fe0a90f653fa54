"""Plain attention with separate keys and values, for the comparison: MHA, GQA and MQA are one function."""
from __future__ import annotations

from collections.abc import Callable

from array_api_compat import array_namespace

from .arrays import Array, narrow, wide
from .attention import softmax
from .errors import InputError
from .recipe import keep


def grouped_query_attention(
    q: Array, k: Array, v: Array, scale: float, visible: Array, store: Callable[[Array], Array] = keep
) -> tuple[Array, Array]:
    """Attention of h query heads over g key-value heads (Ainslie et al., arXiv 2305.13245).

    MHA is g = h (Vaswani et al., arXiv 1706.03762), MQA is g = 1 (Shazeer, arXiv 1911.02150). Query head i uses
    key-value head i // (h / g).

    Parameters
    ----------
    q : array [b, h, t, k]
    k : array [b, g, s, k]
    v : array [b, g, s, v]
    scale : float
        Said by the caller, never derived from the width of ``k``: an absorbed MLA query is wider than it was trained.
    visible : array of bool, broadcastable to [b, h, t, s]
    store : callable
        See `mla_lab.recipe.Recipe`.

    Returns
    -------
    heads : array [b, h, t, v]
    lse : array [b, h, t]
    """
    xp, (b, h, t, width), g = array_namespace(q), q.shape, k.shape[1]
    if h % g:
        raise InputError(f"the number of query heads ({h}) must be a multiple of the number of key-value heads ({g}).")
    folded = xp.reshape(q, (b, g, h // g * t, width))  # the heads of a group become rows of one product
    logits = xp.reshape(wide(store(folded @ k.mT)), (b, h, t, k.shape[2])) * scale
    p, lse = softmax(logits, visible)
    heads = store(xp.reshape(store(narrow(p, v)), (b, g, h // g * t, k.shape[2])) @ v)
    return xp.reshape(heads, (b, h, t, v.shape[-1])), lse
