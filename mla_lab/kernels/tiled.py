"""Online softmax over blocks of keys, split-KV and the merge by LSE: memory that does not grow with the tokens.

Milakov and Gimelshein (arXiv 1805.02867) keep a running maximum and rescale the running sum whenever it grows;
FlashAttention (arXiv 2205.14135) does the same to the weighted values, so that a block of scores is used while it is in
fast memory and then forgotten. Splitting the keys among workers and merging what they found is Flash-Decoding.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..arrays import Array
from ..errors import positive_int
from ..recipe import merge_by_lse
from .keys import Keys, Scratch, namespace, widened
from .rows import EMPTY, folded, hide, score, weigh

TILE = 2**20  # bytes of scores held at a time: small enough for a core's own cache and what it shares
SHORTEST, LONGEST = 256, 4096  # keys in a block: shorter ones starve the products, longer ones gain nothing


def decode(
    q: Array, keys: Keys, scale: float, scratch: Scratch, block: int | None = None, splits: int = 1
) -> tuple[Array, Array]:
    """A block of keys at a time. Called by `mla_lab.kernels.decode`.

    Parameters
    ----------
    block : int, optional
        Keys a block; by default what fills `TILE`.
    splits : int
        Into how many parts the keys of a request are cut, each with a softmax of its own, merged at the end. On a GPU
        the parts run at the same time; here they show that the result does not depend on them.
    """
    b, t, h, _ = q.shape
    splits = min(positive_int("splits", splits), max(1, keys.capacity))  # more would be empty
    if block is None:
        block = min(LONGEST, max(SHORTEST, TILE // (t * h * max(4, q.dtype.itemsize))))
    positive_int("block", block)
    q, out, lse = folded(q, keys)
    for i, length in enumerate(keys.counts):
        if length == 0:
            continue
        rows = widened(q[i]) * scale  # [t h, r+p]
        parts = [attend(rows, keys, i, h, starts, scratch) for starts in dealt(range(0, length, block), splits)]
        heads, total = parts[0] if splits == 1 else merge_by_lse(parts)
        out[i], lse[i] = heads, total[:, None]
    return out.reshape((b, t, h, keys.latent)), lse.reshape((b, t, h))


def dealt(starts: range, splits: int) -> Iterator[range]:
    """Blocks in runs of equal length; the last runs may be empty."""
    each = -(-len(starts) // splits)
    return (starts[n * each : (n + 1) * each] for n in range(splits))


@dataclass
class Running:
    """Softmax over the keys so far, not yet divided: ``summed = sum_j exp(z_j - top) v_j``, ``total`` without v_j."""

    summed: Array  # [t h, r]
    total: Array  # [t h, 1]
    top: Array  # [t h, 1]  largest logit so far

    @classmethod
    def start(cls, rows: Array, latent: int, scratch: Scratch) -> Running:
        """No key yet."""
        xp, at, n = namespace(rows), {"dtype": rows.dtype, "device": rows.device}, rows.shape[0]
        summed = scratch("running", (n, latent), rows)
        summed[...] = 0.0
        return cls(summed, xp.zeros((n, 1), **at), xp.full((n, 1), EMPTY, **at))

    def take(self, logits: Array, values: Array, scratch: Scratch) -> None:
        """Add a block: ``logits [t h, n]``, which is overwritten, and ``values [n, r]``."""
        xp = namespace(logits)
        top = xp.maximum(self.top, xp.max(logits, axis=-1, keepdims=True))
        shift = finite(top)
        logits -= shift
        p = xp.exp(logits, out=logits)
        shrink = xp.exp(self.top - shift)  # exp(old - new), at most 1: what was summed is too large by 1 / shrink
        self.total *= shrink
        self.total += xp.sum(p, axis=-1, keepdims=True)
        self.summed *= shrink
        self.summed += weigh(p, values, scratch)
        self.top = top

    def finish(self) -> tuple[Array, Array]:
        """Output ``[t h, r]`` and LSE ``[t h]``; 0 and -inf for a row that saw none of these keys."""
        xp, nothing = namespace(self.total), self.total == 0
        safe = xp.where(nothing, 1.0, self.total)
        return self.summed / safe, xp.where(nothing, EMPTY, xp.log(safe) + self.top)[:, 0]


def finite(top: Array) -> Array:
    """The maximum to subtract; 0 where a row has seen nothing, since -inf minus -inf is NaN."""
    return namespace(top).where(top == EMPTY, 0.0, top)


def attend(rows: Array, keys: Keys, i: int, heads: int, starts: range, scratch: Scratch) -> tuple[Array, Array]:
    """Online softmax of ``rows [t h, r+p]``, scaled, over the blocks of request i that begin at ``starts``."""
    state, length = Running.start(rows, keys.latent, scratch), keys.counts[i]
    for low in starts:
        k = widened(keys.rows(i, low, min(low + starts.step, length)))  # [n, r+p]
        logits = score(rows, k, scratch)  # [t h, n]
        hide(logits, heads, length, low)
        state.take(logits, k[:, : keys.latent], scratch)
    return state.finish()
