"""The teaching form: heads are rows, and attention is two matrix products with a softmax between them.

There is one key head, so all t h queries of a request multiply the same rows. Folded, that is one product that reads
the cache once; as a broadcast over heads it is h small products that read it h times.
"""
from __future__ import annotations

from array_api_compat import is_torch_array

from ..arrays import Array
from .keys import Keys, Scratch, namespace, widened

EMPTY = -float("inf")
PARTS, SHORT = 16, 1024  # more and shorter parts take more sums than they save


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
        summed = weigh(p, k[:, :r], scratch)
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

    The shape of the product is the library's affair. NumPy's OpenBLAS takes it as it is. MKL, behind torch, likes the
    long side first, and on a CPU the keys in `parts`: then each core multiplies keys of its own, which stay in its
    cache, instead of sharing every product with the others.
    """
    xp, rows, s = namespace(k), q.shape[0], k.shape[0]
    if not is_torch_array(k):
        return xp.matmul(q, k.mT, out=scratch("scores", (rows, s), k))
    tall, n = scratch("scores", (s, rows), k), parts(k)
    even = s - s % n  # keys that the parts share evenly
    if n > 1:
        xp.bmm(k[:even].reshape(n, even // n, -1), q.mT.expand(n, -1, -1), out=tall[:even].reshape(n, even // n, rows))
    if even < s or n == 1:
        xp.matmul(since(k, even % s), q.mT, out=since(tall, even % s))
    return tall.mT


def weigh(p: Array, values: Array, scratch: Scratch) -> Array:
    """``p [t h, s] @ values [s, r]``; the sums of the parts of `score` add up, because p has one maximum for all."""
    xp, (rows, s), n = namespace(values), p.shape, parts(values)
    if n == 1:
        return xp.matmul(p, values, out=scratch("summed", (rows, values.shape[1]), values))
    even, tall = s - s % n, p.mT
    summed = xp.bmm(tall[:even].reshape(n, even // n, rows).mT, values[:even].reshape(n, even // n, -1),
                    out=scratch("parts", (n, rows, values.shape[1]), values)).sum(0)
    return summed if even == s else xp.addmm(summed, p[:, even:], values[even:], out=summed)


def parts(k: Array) -> int:
    """Into how many batches the keys of a product are cut: on torch's CPU `PARTS` of at least `SHORT`, elsewhere 1."""
    return max(1, min(PARTS, k.shape[0] // SHORT)) if is_torch_array(k) and k.device.type == "cpu" else 1


def hide(logits: Array, heads: int, length: int, low: int = 0) -> None:
    """Overwrite what a query must not see: query i of the last t sees the keys before ``length - t + i + 1``.

    The rows of ``logits`` are t queries of ``heads`` heads, its columns the keys from ``low`` on.
    """
    t = logits.shape[0] // heads
    for i in range(t):
        seen = length - t + i + 1 - low
        if seen < logits.shape[1]:
            logits[i * heads : (i + 1) * heads, max(seen, 0) :] = EMPTY
