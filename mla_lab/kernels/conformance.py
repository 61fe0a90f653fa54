"""What every kernel is held to: cases with traps in them, a reference, and a judge with bounds from the data.

The discipline is that of FlashMLA's tests (``tests/test_flash_mla_dense_decoding.py`` and ``tests/kernelkit``): unused
slots and the tails of pages hold NaN, pages lie in random order, unused page ids are garbage, lengths differ and may be
0, NaN and infinities must stand in the same places, and the LSE is judged apart. Where FlashMLA takes an absolute or a
relative tolerance for each element (8e-4 or 2.01/128, for bfloat16), here each element has a radius of its own.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from array_api_compat import array_namespace

from ..arrays import Array, fresh, to_numpy
from ..attention import softmax
from ..ball import Ball, Rounding, quietly
from ..bounds import Distance, ball, compare, store
from ..recipe import merge_by_lse

GARBAGE = 2147480000  # a page id that would be far outside any cache
PIECE = 16  # keys merged at a time in the radius; no kernel merges, and so rounds, more often


@dataclass(frozen=True)
class Case:
    """Shapes and traps. ``page`` None is a contiguous cache; logits grow with ``loud``, less so if fading."""

    name: str
    heads: int  # h
    lengths: tuple[int, ...]  # [b]
    tokens: int = 1  # t
    page: int | None = None
    latent: int = 40  # r
    rope: int = 16  # p
    loud: float = 1.0
    fading: bool = False
    nan_query: bool = False

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("one head, one key", 1, (1,)),
    Case("16 heads, edges of pages", 16, (32, 33, 31, 1), page=16),
    Case("16 heads, edges of blocks, contiguous", 16, (48, 47, 49)),
    Case("odd heads, several queries, some without a key", 3, (70, 0, 2, 1, 5), tokens=4, page=16),
    Case("9 heads, two queries, contiguous", 9, (19, 131), tokens=2),
    Case("63 heads", 63, (17, 64), page=16),
    Case("126 heads", 126, (37,), tokens=2, page=8),
    Case("last blocks that some queries do not see", 5, (34, 98, 18), tokens=4, page=16),
    Case("pages of one token", 5, (23, 7), tokens=3, page=1),
    Case("DeepSeek-V3's widths, pages of 64", 128, (70, 130), page=64, latent=512, rope=64),
    Case("large logits", 7, (150, 90), tokens=2, page=16, loud=25.0),
    Case("the largest logits first", 5, (140, 60), page=16, loud=100.0, fading=True),
    Case("no rope channels", 5, (33,), rope=0),
    Case("a query that holds NaN", 6, (40, 18), tokens=2, page=16, nan_query=True),
    Case("no keys at all", 4, (0, 0), tokens=2, page=16),
)


@dataclass(frozen=True)
class Problem:
    """The arguments of `mla_lab.kernels.decode`, in its order."""

    q: Array  # [b, t, h, r+p]
    kv_cache: Array  # [b, s, r+p] or [pages, page, r+p]
    lengths: Array  # [b]
    scale: float
    latent: int
    block_table: Array | None  # [b, pages a request may have]


def build(case: Case, convert: Callable[[np.ndarray], Array], seed: int = 0) -> Problem:
    """The case with numbers in it; ``convert`` makes a float64 array one of the library, dtype and device at hand."""
    draw, b, width = fresh(seed), len(case.lengths), case.latent + case.rope
    rng = np.random.default_rng(seed + 1)
    q = draw(b, case.tokens, case.heads, width) * case.loud
    if case.nan_query:
        q[0, 0, 1, 3] = np.nan
    room = max(case.lengths) + 5
    rows = draw(b, room, width) + draw(width)  # a common part, so that values do not average to nothing
    if case.fading:
        rows *= np.geomspace(1, 1 / 64, room)[:, None]
    for i, length in enumerate(case.lengths):
        rows[i, length:] = np.nan
    table = None
    if case.page is not None:
        each = -(-room // case.page) + 1  # a page at the end that nobody has
        pages = np.full((b * each + 3, case.page, width), np.nan)
        table = rng.permutation(len(pages))[: b * each].reshape(b, each)
        padded = np.full((b, each * case.page, width), np.nan)
        padded[:, :room] = rows
        pages[table] = padded.reshape(b, each, case.page, width)
        rows = pages
        for i, length in enumerate(case.lengths):
            table[i, -(-length // case.page) :] = GARBAGE
    q, rows = convert(q), convert(rows)
    xp = array_namespace(q)
    as_ints = lambda x: xp.asarray(x, dtype=xp.int32, device=q.device)
    return Problem(q, rows, as_ints(np.array(case.lengths)), 0.113, case.latent,
                   None if table is None else as_ints(table))


def seen_rows(problem: Problem, case: Case, i: int) -> np.ndarray:
    """The used rows of request i in float64, found without the code of any kernel."""
    rows, length = to_numpy(problem.kv_cache).astype(np.float64), case.lengths[i]
    if case.page is None:
        return rows[i, :length]
    return np.array([rows[to_numpy(problem.block_table)[i, n // case.page], n % case.page] for n in range(length)])


@quietly
def reference(problem: Problem, case: Case, rounded_weights: bool = False) -> tuple[Ball, Ball]:
    """Output ``[b, t, h, r]`` and LSE ``[b, t, h]``, with the radii that rounding may reach.

    Computed by `mla_lab.attention.softmax` on pieces of `PIECE` keys, merged one after the other by LSE. The radii
    therefore hold for any order of summation and for blocks of `PIECE` keys or more. (Weights that underflow in float16
    are not modelled; they are below 2^-24 of the largest.)

    ``rounded_weights``: the kernel may round its weights to 16 bits before it adds them up, not only before it
    multiplies values by them, so that the LSE is good to the stored dtype only.
    """
    unit = float(array_namespace(problem.q).finfo(problem.q.dtype).eps) / 2
    rounding = Rounding(min(unit, 2.0**-24) + 2.0**-53, unit if unit > 2.0**-24 else 0.0)
    q = to_numpy(problem.q).astype(np.float64)
    b, t, h, _ = q.shape
    nothing = ball(np.zeros((h, case.latent)), rounding), ball(np.full(h, -np.inf), rounding)
    found = []
    for i, length in enumerate(case.lengths):
        rows = seen_rows(problem, case, i)
        for j in range(t):
            keys = [ball(rows[low : min(low + PIECE, length - t + j + 1)], rounding)
                    for low in range(0, length - t + j + 1, PIECE)]
            pieces = [attend(ball(q[i, j], rounding), k, problem.scale, case.latent, rounded_weights) for k in keys]
            found.append(reduce(lambda one, two: merge_by_lse([one, two]), pieces, nothing))
    xp = nothing[0].namespace
    heads, lse = (xp.stack([part[n] for part in found], axis=0) for n in (0, 1))
    return store(xp.reshape(heads, (b, t, h, case.latent))), xp.reshape(lse, (b, t, h))


def attend(q: Ball, k: Ball, scale: float, latent: int, rounded_weights: bool) -> tuple[Ball, Ball]:
    """All rows of ``q [h, r+p]`` see all of ``k [n, r+p]``: output ``[h, r]`` and LSE ``[h]``."""
    logits = (q @ k.mT) * scale
    p, lse = softmax(logits, np.ones(logits.shape, dtype=bool))
    if rounded_weights:
        unit = q.rounding.stored
        p, lse = store(p), lse + Ball(np.zeros(lse.shape), q.rounding, unit, unit)
    return store(p) @ k[:, :latent], lse


@dataclass(frozen=True)
class Judgement:
    """Four measures of one result; ``ok`` only if all of them hold."""

    output: Distance
    lse: Distance
    cosine: float  # |a - b|^2 / (|a|^2 + |b|^2) = 1 - 2 <a, b> / (|a|^2 + |b|^2): many small errors add up here
    cosine_bound: float
    masks: bool  # NaN and infinities stand where they should
    kinds: bool  # shapes and dtypes are those promised
    worst: tuple[int, ...]  # b, t, h, r of the output element farthest outside its radius, or nearest to it

    @property
    def ok(self) -> bool:
        return self.output.ok and self.lse.ok and self.cosine <= self.cosine_bound and self.masks and self.kinds

    def __str__(self) -> str:
        if not self.kinds:
            return "shapes or dtypes are not those promised"
        return (f"output[{', '.join(map(str, self.worst))}] {self.output.note}; LSE {self.lse.note}; cosine "
                f"{self.cosine:.1e} of {self.cosine_bound:.1e}; NaN and inf {'match' if self.masks else 'DIFFER'}")


def judge(output: Array, lse: Array, problem: Problem, case: Case, rounded_weights: bool = False) -> Judgement:
    """Hold a kernel's results to the reference, which is computed only now: its memory cannot have been reused."""
    wanted = reference(problem, case, rounded_weights)
    (b, t, h, _), xp = problem.q.shape, array_namespace(problem.q)
    if not (tuple(output.shape) == (b, t, h, case.latent) and tuple(lse.shape) == (b, t, h)
            and output.dtype == problem.q.dtype and xp.finfo(lse.dtype).bits >= 32):
        return Judgement(NOWHERE, NOWHERE, np.inf, 0.0, False, False, ())
    seen = [to_numpy(x).astype(np.float64) for x in (output, lse)]
    masks = all(np.array_equal(which(a), which(w.value)) for a, w in zip(seen, wanted, strict=True)
                for which in (np.isnan, np.isposinf, np.isneginf))
    finite = [np.isfinite(w.value) for w in wanted]
    distances = [distance(a[ok], w.map(lambda x, ok=ok: x[ok])) for a, w, ok in zip(seen, wanted, finite, strict=True)]
    a, w = seen[0][finite[0]], wanted[0].map(lambda x: x[finite[0]])
    size = max(float(np.sum(a * a) + np.sum(w.value**2)), 5e-324)
    cosine, cosine_bound = float(np.sum((a - w.value) ** 2)) / size, float(np.sum(w.likely() ** 2)) / size
    share = np.zeros(seen[0].shape)
    share[finite[0]] = np.abs(a - w.value) / np.maximum(w.worst, 5e-324)
    worst = tuple(int(n) for n in np.unravel_index(np.argmax(share), share.shape))
    return Judgement(*distances, cosine, cosine_bound, masks, True, worst)


NOWHERE = Distance(np.inf, 0.0, np.inf, 0.0, "guarantee")


def distance(got: np.ndarray, want: Ball) -> Distance:
    """`mla_lab.bounds.compare`, but results that must be exactly 0, or of which there are none, have no size."""
    if not np.any(want.worst):
        off = float(np.max(np.abs(got - want.value), initial=0.0))
        return Distance(off, 0.0, 0.0 if off == 0 else np.inf, 0.0, "guarantee")
    return compare(got, want.value, want)
