"""The latent cache in pages: rows lie in blocks anywhere in one pool, and a table says where.

`PagedCache.batch` hands `mla_lab.decode.forward` a view that it can use in place of a `LatentCache`: the same attention
then writes to the pages and reads from them.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from array_api_compat import array_namespace, device

from ..arrays import Array, Backend, expect_shape, same_kind
from ..cache import check_counts
from ..config import MLAConfig
from ..errors import InputError, positive_int
from .blocks import PAGING, BlockTables, CacheFull, Name, Paging


class PagedCache:
    """A pool ``rows [blocks, block_size, r+p]`` and the `BlockTables` over it.

    One pool holds one layer. The layers of a model have the same tables, so an engine keeps one set for all of them.
    """

    def __init__(self, rows: Array, latent: int, rules: Paging = PAGING):
        self.rows, self.latent = rows, latent
        self.tables = BlockTables(rows.shape[0], rows.shape[1], rules)

    @classmethod
    def allocate(cls, config: MLAConfig, blocks: int, block_size: int, backend: Backend, fill: float = 0.0,
                 rules: Paging = PAGING) -> PagedCache:
        """An empty pool; ``fill`` NaN shows up whoever reads a slot that nobody wrote."""
        shape = (positive_int("blocks", blocks), positive_int("block_size", block_size), config.cached_width)
        return cls(backend.full(shape, fill), config.kv_lora_rank, rules)

    def append(self, name: Name, c_kv: Array, k_rope: Array, tokens: Sequence[int] | None = None) -> None:
        """Write rows behind those of ``name``.

        Parameters
        ----------
        c_kv : array [t, r]
        k_rope : array [t, p]
        tokens : sequence of int, optional
            Ids of the t tokens; only blocks whose tokens are known can be found by content later.

        Raises
        ------
        CacheFull
            If too few blocks are available; nothing has been written then.
        """
        expect_shape("c_kv", c_kv, (None, self.latent), "this cache")
        expect_shape("k_rope", k_rope, (c_kv.shape[0], self.rows.shape[2] - self.latent), "this cache")
        same_kind(cache=self.rows, c_kv=c_kv, k_rope=k_rope)
        self.write(name, c_kv, k_rope, tokens)

    def write(self, name: Name, c_kv: Array, k_rope: Array, tokens: Sequence[int] | None = None) -> None:
        """`append` for rows that are known to fit."""
        table, r, size = self.tables[name], self.latent, self.tables.block_size
        position, count, done = table.length, c_kv.shape[0], 0
        copy = self.tables.extend(name, count, tokens)
        if copy is not None:
            source, target = copy
            self.rows[target, :, :] = self.rows[source, :, :]
        while done < count:  # a piece for each block
            block, offset = table.blocks[(position + done) // size], (position + done) % size
            piece = min(size - offset, count - done)
            self.rows[block, offset : offset + piece, :r] = c_kv[done : done + piece, :]
            self.rows[block, offset : offset + piece, r:] = k_rope[done : done + piece, :]
            done += piece

    def gather(self, names: Sequence[Name]) -> Array:
        """The rows of some sequences in the order of their tokens, ``[b, s, r+p]``.

        As in a contiguous cache, s is a capacity: what stands behind a sequence's length is whatever the slot holds.
        """
        xp, tables = array_namespace(self.rows), [self.tables[name] for name in names]
        longest = max([1, *(len(t.blocks) for t in tables)])  # a row without a block reads block 0, all of it masked
        order = self.tables.rules.read_order
        index = [block for t in tables for block in order(t.blocks) + [0] * (longest - len(t.blocks))]
        pages = xp.take(self.rows, xp.asarray(index, device=device(self.rows)), axis=0)
        return xp.reshape(pages, (len(tables), longest * self.tables.block_size, self.rows.shape[2]))

    def batch(self, *names: Name) -> Batch:
        """Sequences side by side, for `mla_lab.decode.forward`."""
        if len(set(names)) != len(names) or not names:
            raise InputError(f"a batch needs sequences, each once, not {', '.join(map(repr, names)) or 'none'}.")
        return Batch(self, names, tuple(self.tables[name].length for name in names))


@dataclass(frozen=True)
class Batch:
    """What `mla_lab.decode.forward` asks of a cache, kept in pages: rows, lengths, ``append``."""

    pages: PagedCache
    names: tuple[Name, ...]
    lengths: tuple[int, ...]

    @property
    def rows(self) -> Array:
        """``[b, s, r+p]``, gathered anew."""
        return self.pages.gather(self.names)

    @property
    def latent(self) -> int:
        return self.pages.latent

    def append(self, c_kv: Array, k_rope: Array, counts: Sequence[int] | None = None) -> Batch:
        """Write the first ``counts[i]`` of the new rows ``c_kv [b, t, r]``, ``k_rope [b, t, p]`` of each sequence i.

        Raises
        ------
        CacheFull
            If the blocks do not suffice for all of them; nothing has been written then.
        """
        b, t = len(self.names), c_kv.shape[1]
        expect_shape("c_kv", c_kv, (b, None, self.latent), "this batch")
        expect_shape("k_rope", k_rope, (b, t, self.pages.rows.shape[2] - self.latent), "this batch")
        same_kind(cache=self.pages.rows, c_kv=c_kv, k_rope=k_rope)
        counts, tables = check_counts(counts, b, t), self.pages.tables
        need = sum(tables.needs(name, count) for name, count in zip(self.names, counts, strict=True))
        if need > tables.available:
            raise CacheFull(f"{sum(counts)} tokens of {b} sequences need up to {need} more blocks of "
                            f"{tables.block_size}, but {tables.available} are free or can be evicted.")
        for i, (name, count) in enumerate(zip(self.names, counts, strict=True)):
            self.pages.write(name, c_kv[i, :count, :], k_rope[i, :count, :])
        return replace(self, lengths=tuple(have + new for have, new in zip(self.lengths, counts, strict=True)))
