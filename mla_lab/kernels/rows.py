"""The teaching form: heads are rows, and attention is two matrix products with a softmax between them.

There is one key head, so all t h queries of a request multiply the same rows. Folded, that is one product that reads
the cache once; as a broadcast over heads it is h small products that read it h times.
"""
from __future__ import annotations

from array_api_compat import array_namespace, is_torch_array

from ..arrays import Array, wide
from .keys import Keys, Scratch

EMPTY = -float("inf")


def decode(q: Array, keys: Keys, scale: float, scratch: Scratch) -> tuple[Array, Array]:
    """All keys of a request at once: t h s scores are held in memory. Called by `mla_lab.kernels.decode`."""
    xp, h, r = array_namespace(q), q.shape[2], keys.latent
    out, lse = results(q, r)
    for i, length in enumerate(keys.counts):
        rows = fold(q[i, ...], scale, length)  # [t h, r+p], without queries that see no key
        if rows.shape[0] == 0:
            continue
        k = wide(keys.rows(i, 0, length))  # [s, r+p]
        logits = score(rows, k, scratch)  # [t h, s]
        hide(logits, h, length)
        top = xp.max(logits, axis=-1, keepdims=True)  # [t h, 1]
        logits -= top
        p = xp.exp(logits, out=logits)  # in place: fresh memory would cost as much as the exponential
        total = xp.sum(p, axis=-1, keepdims=True)
        summed = xp.matmul(p, k[:, :r], out=scratch("summed", (p.shape[0], r), k))
        summed /= total  # r numbers a row; dividing p would be s
        put(summed, out[i, ...])
        put(xp.log(total) + top, lse[i, ...])
    return out, lse


def results(q: Array, latent: int) -> tuple[Array, Array]:
    """What a query that sees no key gets: output 0 in the dtype of ``q``, LSE -inf."""
    xp, shape = array_namespace(q), q.shape[:3]
    return (xp.zeros((*shape, latent), dtype=q.dtype, device=q.device),
            xp.full(shape, EMPTY, dtype=wide(q[:0, ...]).dtype, device=q.device))


def fold(q: Array, scale: float, length: int) -> Array:
    """``q [t, h, r+p]`` as rows ``[t h, r+p]``, scaled: once here instead of once per key.

    The first ``t - length`` queries see no key and are left out.
    """
    t, h, width = q.shape
    first = max(0, t - length)
    return array_namespace(q).reshape(wide(q[first:, ...]), ((t - first) * h, width)) * scale


def put(rows: Array, into: Array) -> None:
    """Write ``rows [t h, ..]`` into the last queries of ``into [t, h, ..]``."""
    t, h = rows.shape[0] // into.shape[1], into.shape[1]
    into[into.shape[0] - t :, ...] = array_namespace(rows).reshape(rows, (t, h, *into.shape[2:]))


def score(q: Array, k: Array, scratch: Scratch) -> Array:
    """Logits ``[t h, s]`` of ``q [t h, r+p]`` against ``k [s, r+p]``, in a buffer.

    In which order they lie in memory is up to the matrix library: MKL, behind torch, takes up to half the time where
    the long side comes first; NumPy's OpenBLAS does not mind.
    """
    xp, (rows, _), s = array_namespace(k), q.shape, k.shape[0]
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
