"""The teaching form: heads are rows, and attention is two matrix products with a softmax between them.

There is one key head, so all t h queries of a request multiply the same rows. Folded, that is one product that reads
the cache once; as a broadcast over heads it is h small products that read it h times.
"""
from __future__ import annotations

from array_api_compat import is_torch_array

from ..arrays import Array
from .keys import Keys, Scratch, namespace, widened

EMPTY = -float("inf")


def decode(q: Array, keys: Keys, scale: float, scratch: Scratch) -> tuple[Array, Array]:
    """All keys of a request at once: t h s scores are held in memory. Called by `mla_lab.kernels.decode`."""
    xp, (b, t, h, _), r = namespace(q), q.shape, keys.latent
    q, out, lse = folded(q, keys)
    for i, length in enumerate(keys.counts):
        if length == 0:
            continue
        blind = max(0, t - length) * h  # rows of the first queries, which see no key
        rows = widened(since(q[i], blind)) * scale  # [t h, r+p], scaled here once and not for every key
        k = widened(keys.rows(i, 0, length))  # [s, r+p]
        logits = score(rows, k, scratch)  # [t h, s]
        hide(logits, h, length)
        top = xp.max(logits, axis=-1, keepdims=True)  # [t h, 1]
        logits -= top
        p = xp.exp(logits, out=logits)  # in place: fresh memory would cost as much as the exponential
        total = xp.sum(p, axis=-1, keepdims=True)
        summed = xp.matmul(p, k[:, :r], out=scratch("summed", (rows.shape[0], r), k))
        xp.divide(summed, total, out=since(out[i], blind))  # r numbers a row; dividing p would be s
        since(lse[i], blind)[...] = xp.log(total) + top
    return out.reshape((b, t, h, r)), lse.reshape((b, t, h))


def folded(q: Array, keys: Keys) -> tuple[Array, Array, Array]:
    """Queries ``[b, t h, r+p]``, and where results go: output ``[b, t h, r]``, in the dtype of ``q``, and LSE.

    Rows that see no key, the first ``t - length`` queries of a request, hold their result already: 0 and -inf.
    """
    xp, (b, t, h, width), at = namespace(q), q.shape, q.device
    out = xp.empty((b, t * h, keys.latent), dtype=q.dtype, device=at)
    lse = xp.empty((b, t * h, 1), dtype=q.dtype if q.dtype.itemsize >= 4 else xp.float32, device=at)
    for i, length in enumerate(keys.counts):
        if length < t:
            out[i, : (t - length) * h], lse[i, : (t - length) * h] = 0.0, EMPTY
    return q.reshape((b, t * h, width)), out, lse


def since(x: Array, first: int) -> Array:
    """``x[first:]``, which is not asked for where it is all of x."""
    return x[first:] if first else x


def score(q: Array, k: Array, scratch: Scratch) -> Array:
    """Logits ``[t h, s]`` of ``q [t h, r+p]`` against ``k [s, r+p]``, in a buffer.

    In which order they lie in memory is up to the matrix library: MKL, behind torch, takes up to half the time where
    the long side comes first; NumPy's OpenBLAS does not mind.
    """
    xp, rows, s = namespace(k), q.shape[0], k.shape[0]
    if is_torch_array(k):
        return xp.matmul(k, q.mT, out=scratch("scores", (s, rows), k)).mT
    return xp.matmul(q, k.mT, out=scratch("scores", (rows, s), k))


def hide(logits: Array, heads: int, length: int, low: int = 0) -> None:
    """Overwrite what a query must not see: query i of the last t sees the keys before ``length - t + i + 1``.

    The rows of ``logits`` are t queries of ``heads`` heads, its columns the keys from ``low`` on.
    """
    t = logits.shape[0] // heads
    for i in range(t):
        seen = length - t + i + 1 - low
        if seen < logits.shape[1]:
            logits[i * heads : (i + 1) * heads, max(seen, 0) :] = EMPTY
