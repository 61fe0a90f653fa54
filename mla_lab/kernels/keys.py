"""What every kernel reads: cached rows, contiguous or in pages; and buffers that outlive a step."""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from ..arrays import Array, expect_shape, to_numpy
from ..errors import InputError


@dataclass(frozen=True)
class Keys:
    """The cached rows of b requests, as they were given to `mla_lab.kernels.decode`.

    Kernels that loop in Python use ``counts``, ``pages`` and ``rows``; a kernel on a GPU reads ``lengths`` and
    ``table`` there, because fetching them would stall every step. For the same reason values that lie on a GPU are not
    checked.
    """

    cache: Array  # [b, s, r+p], or [pages, page size, r+p]
    lengths: Any  # [b]
    table: Array | None  # [b, pages a request may have]
    batch: int
    latent: int  # r

    def __post_init__(self):
        if self.table is not None:
            expect_shape("block_table", self.table, (self.batch, None), "these queries")
        if tuple(np.shape(self.lengths)) != (self.batch,):
            raise InputError(f"lengths must hold one number for each of {self.batch} requests, not {self.lengths!r}.")
        for values in (self.lengths, self.table):
            if is_torch_array(values) and values.device.type != "cpu":
                return
        _ = self.counts, self.pages

    @property
    def capacity(self) -> int:
        """The longest length there is room for."""
        return self.cache.shape[1] * (1 if self.table is None else self.table.shape[1])

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Lengths as plain integers."""
        host = np.asarray(to_numpy(self.lengths))
        if host.dtype.kind not in "iu" or not all(0 <= n <= self.capacity for n in host.tolist()):
            raise InputError(f"lengths must be whole numbers from 0 to {self.capacity}, the tokens there is room for, "
                             f"not {host.tolist()}.")
        return tuple(host.tolist())

    @cached_property
    def pages(self) -> tuple[tuple[int, ...], ...] | None:
        """The page ids that each request uses; those past its end may hold anything."""
        if self.table is None:
            return None
        ids, page, last = np.asarray(to_numpy(self.table)), self.cache.shape[1], self.cache.shape[0] - 1
        used = tuple(tuple(row[: -(-n // page)].tolist()) for row, n in zip(ids, self.counts, strict=True))
        for wrong in (p for row in used for p in row if not 0 <= p <= last):
            raise InputError(f"block_table names page {wrong}, but the cache has pages 0 to {last}.")
        return used

    def rows(self, i: int, low: int, high: int) -> Array:
        """Rows ``low`` to ``high`` of request i, ``[high - low, r+p]``: a view, or a gathered copy where pages are."""
        if self.pages is None:
            return self.cache[i, low:high, :]
        xp, page, width = array_namespace(self.cache), self.cache.shape[1], self.cache.shape[2]
        first = low // page
        ids = self.pages[i][first : -(-high // page)]
        found = xp.take(self.cache, xp.asarray(ids, dtype=xp.int64, device=self.cache.device), axis=0)
        return xp.reshape(found, (len(ids) * page, width))[low - first * page : high - first * page, :]


class Scratch:
    """Named buffers, kept from one step to the next.

    The first touch of a fresh page costs more than the numbers that are written to it, so an engine allocates its
    buffers once. One scratch must not serve two steps at the same time.
    """

    def __init__(self) -> None:
        self._flat: dict[str, Array] = {}

    def __call__(self, name: str, shape: tuple[int, ...], like: Array) -> Array:
        """An array of ``shape`` with the dtype and device of ``like``, holding whatever it held before."""
        size, flat = math.prod(shape), self._flat.get(name)
        if flat is None or flat.shape[0] < size or flat.dtype != like.dtype or flat.device != like.device:
            flat = self._flat[name] = array_namespace(like).empty(size, dtype=like.dtype, device=like.device)
        return flat[:size].reshape(shape)
