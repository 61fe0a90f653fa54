"""The teaching form: heads are rows, and attention is two matrix products with a softmax between them.

There is one key head, so all t h queries of a request multiply the same rows. Folded, that is one product that reads
the cache once; as a broadcast over heads it is h small products that read it h times.
"""
from __future__ import annotations

from array_api_compat import array_namespace, device, is_torch_array

from ..arrays import Array, wide
from .keys import Keys, Scratch

EMPTY = -float("inf")


def decode(q: Array, keys: Keys, scale: float, scratch: Scratch) -> tuple[Array, Array]:
    """All keys of a request at once: t h s scores are held in memory. Called by `mla_lab.kernels.decode`."""
    xp, (_, t, h, _), r = array_namespace(q), q.shape, keys.latent
    out, lse = results(q, r)
    for i, length in enumerate(keys.counts):
        if length == 0:
            continue
        k = wide(keys.rows(i, 0, length))  # [s, r+p]
        logits = score(fold(q[i, ...], scale), k, scratch)  # [t h, s]
        hide(logits, t, h, length)
        top = finite(xp.max(logits, axis=-1, keepdims=True))  # [t h, 1]
        logits -= top
        p = xp.exp(logits, out=logits)  # in place: fresh memory would cost as much as the exponential
        total = xp.sum(p, axis=-1, keepdims=True)
        summed = xp.matmul(p, k[:, :r], out=scratch("summed", (t * h, r), k))
        finish(summed, total, top, out[i, ...], lse[i, ...])
    return out, lse


def results(q: Array, latent: int) -> tuple[Array, Array]:
    """What a query that sees no key gets: output 0 in the dtype of ``q``, LSE -inf."""
    xp, (b, t, h, _), at = array_namespace(q), q.shape, {"device": device(q)}
    return (xp.zeros((b, t, h, latent), dtype=q.dtype, **at),
            xp.full((b, t, h), EMPTY, dtype=wide(q[:0, ...]).dtype, **at))


def fold(q: Array, scale: float) -> Array:
    """``q [t, h, r+p]`` as rows ``[t h, r+p]``, scaled: once here instead of once per key."""
    t, h, width = q.shape
    return array_namespace(q).reshape(wide(q), (t * h, width)) * scale


def score(q: Array, k: Array, scratch: Scratch) -> Array:
    """Logits ``[t h, s]`` of ``q [t h, r+p]`` against ``k [s, r+p]``, in a buffer.

    In which order they lie in memory is up to the matrix library: MKL, behind torch, takes up to half the time where
    the long side comes first; NumPy's OpenBLAS does not mind.
    """
    xp, (rows, _), s = array_namespace(k), q.shape, k.shape[0]
    if is_torch_array(k):
        return xp.matmul(k, q.mT, out=scratch("scores", (s, rows), k)).mT
    return xp.matmul(q, k.mT, out=scratch("scores", (rows, s), k))


def hide(logits: Array, tokens: int, heads: int, length: int, low: int = 0) -> None:
    """Overwrite what a query must not see: query i of t sees the keys before ``length - t + i + 1``.

    The columns of ``logits`` are the keys from ``low`` on.
    """
    for i in range(tokens):
        seen = length - tokens + i + 1 - low
        if seen < logits.shape[1]:
            logits[i * heads : (i + 1) * heads, max(seen, 0) :] = EMPTY


def finite(top: Array) -> Array:
    """The maximum to subtract; 0 where a row sees nothing, since -inf minus -inf is NaN."""
    return array_namespace(top).where(top == EMPTY, 0.0, top)


def finish(summed: Array, total: Array, top: Array, out: Array, lse: Array) -> None:
    """Divide ``summed [t h, r]`` by ``total [t h, 1]`` into ``out [t, h, r]``; the LSE is log(total) + top."""
    xp, nothing = array_namespace(summed), total == 0
    safe = xp.where(nothing, 1.0, total)
    summed /= safe
    out[...] = xp.reshape(summed, out.shape)
    lse[...] = xp.reshape(xp.where(nothing, EMPTY, xp.log(safe) + top), lse.shape)
