"""What every kernel reads: cached rows, contiguous or in pages; and buffers that outlive a step.

A step of few heads takes a millisecond or two, and Python that runs between two large products finds its own data no
longer in any cache: each small call costs tens of microseconds there. So checks and helpers ask as little as they can.
"""
from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, is_torch_array

from ..arrays import Array, expect_shape, to_numpy, wide
from ..errors import InputError

KNOWN: dict[type, Any] = {}


def namespace(x: Array) -> Any:
    """`array_namespace`, remembered for each type of array."""
    found = KNOWN.get(type(x))
    if found is None:
        found = KNOWN[type(x)] = array_namespace(x)
    return found


def widened(x: Array) -> Array:
    """`mla_lab.arrays.wide`, which is not asked where there is nothing to do."""
    return x if x.dtype.itemsize >= 4 else wide(x)


class Keys:
    """The cached rows of b requests, as they were given to `mla_lab.kernels.decode`.

    Kernels that loop in Python use ``counts``, ``pages`` and ``rows``; a kernel on a GPU reads ``lengths`` and
    ``table`` there, because fetching them would stall every step. For the same reason values that lie on a GPU are not
    checked until something asks for them.
    """

    def __init__(self, cache: Array, lengths: Any, table: Array | None, batch: int, latent: int):
        self.cache = cache  # [b, s, r+p], or [pages, page size, r+p]
        self.lengths, self.table = lengths, table  # [b], [b, pages a request may have]
        self.batch, self.latent = batch, latent  # b, r
        self._counts: tuple[int, ...] | None = None
        self._pages: tuple[tuple[int, ...], ...] | None = None
        if table is not None:
            if not hasattr(table, "shape") or not namespace(table).isdtype(table.dtype, "integral"):
                raise InputError("block_table must be an array of whole numbers, "
                                 f"not {getattr(table, 'dtype', type(table).__name__)}.")
            expect_shape("block_table", table, (batch, None), "these queries")
        if not (on_gpu(lengths) or on_gpu(table)):
            _ = self.counts, self.pages

    @property
    def capacity(self) -> int:
        """The longest length there is room for."""
        return self.cache.shape[1] * (1 if self.table is None else self.table.shape[1])

    @property
    def counts(self) -> tuple[int, ...]:
        """Lengths as plain integers."""
        if self._counts is None:
            room, found = self.capacity, self.lengths
            found = found if isinstance(found, (list, tuple)) else to_numpy(found).tolist()
            if not isinstance(found, (list, tuple)) or len(found) != self.batch or not all(
                    hasattr(n, "__index__") and 0 <= n <= room for n in found):
                raise InputError(f"lengths must be whole numbers, one for each of {self.batch} requests, from 0 to "
                                 f"{room} (the tokens there is room for), not {found!r}.")
            self._counts = tuple(map(int, found))
        return self._counts

    @property
    def pages(self) -> tuple[tuple[int, ...], ...] | None:
        """The page ids that each request uses; those past its end may hold anything."""
        if self._pages is None and self.table is not None:
            ids, page, last = to_numpy(self.table), self.cache.shape[1], self.cache.shape[0] - 1
            used = tuple(tuple(row[: -(-n // page)].tolist()) for row, n in zip(ids, self.counts, strict=True))
            for wrong in (p for row in used for p in row if not 0 <= p <= last):
                raise InputError(f"block_table names page {wrong}, but the cache has pages 0 to {last}.")
            self._pages = used
        return self._pages

    def rows(self, i: int, low: int, high: int) -> Array:
        """Rows ``low`` to ``high`` of request i, ``[high - low, r+p]``: a view, or a gathered copy where pages are."""
        if self.pages is None:
            return self.cache[i, low:high, :]
        xp, page, width = namespace(self.cache), self.cache.shape[1], self.cache.shape[2]
        first = low // page
        ids = self.pages[i][first : -(-high // page)]
        found = xp.take(self.cache, xp.asarray(ids, dtype=xp.int64, device=self.cache.device), axis=0)
        return xp.reshape(found, (len(ids) * page, width))[low - first * page : high - first * page, :]


def on_gpu(x: Any) -> bool:
    return is_torch_array(x) and x.device.type != "cpu"


class Scratch:
    """Named buffers, kept from one step to the next.

    The first touch of a fresh page costs more than the numbers that are written to it, so an engine allocates its
    buffers once. One scratch must not serve two steps at the same time.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Array, Array]] = {}  # the whole buffer, and the shape that was asked for last

    def __call__(self, name: str, shape: tuple[int, ...], like: Array) -> Array:
        """An array of ``shape`` with the dtype and device of ``like``, holding whatever it held before."""
        flat, last = self._kept.get(name, (None, None))
        if flat is not None and flat.dtype == like.dtype and flat.device == like.device:
            if last.shape == shape:
                return last
        else:
            flat = None
        size = math.prod(shape)
        if flat is None or flat.shape[0] < size:
            flat = namespace(like).empty(size, dtype=like.dtype, device=like.device)
        self._kept[name] = flat, flat[:size].reshape(shape)
        return self._kept[name][1]
