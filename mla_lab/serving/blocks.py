"""Who holds which block of a paged cache: tables, reference counts, and released blocks that can be found again.

Only numbers here, no arrays: `mla_lab.serving.paging` adds the rows. Every sequence has a table, the list of its blocks
in the order of its tokens. Sequences with a common beginning share blocks; each block counts the tables it stands in.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError, positive_int
from .ids import whole_ids

Name = Hashable


class CacheFull(InputError):
    """Too few blocks are free or could be evicted. Nothing has been changed."""


# --- the rules ------------------------------------------------------------------------------------------------------

def chained(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block's content: its tokens and, through ``parent``, everything before them.

    A row depends on all tokens before it (by attention, in the layers below) and on its position (by RoPE), so the
    block's own tokens do not identify it.
    """
    return hashlib.sha256(parent + np.asarray(tokens, "<i8").tobytes()).digest()


def rounded_up(tokens: int, block_size: int) -> int:
    """Blocks that ``tokens`` tokens occupy."""
    return -(-tokens // block_size)


def held_once(references: int) -> bool:
    """A block may be written to by its only holder; before that, others get a copy (copy on write)."""
    return references == 1


def one_more(references: int) -> int:
    return references + 1


def one_less(references: int) -> int:
    return references - 1


def last_first(blocks: Sequence[int]) -> list[int]:
    """The order in which a sequence lets go of its blocks: without its head, the tail of a prefix is of no use."""
    return list(reversed(blocks))


def oldest(released: Sequence[int]) -> int:
    """Evict the block that was released longest ago (LRU)."""
    return next(iter(released))


@dataclass(frozen=True)
class Paging:
    """What a paged cache has to get right, as values; the defaults are right. A fault replaces one of them."""

    key: Callable[[bytes, Sequence[int]], bytes] = chained
    blocks_for: Callable[[int, int], int] = rounded_up
    writable: Callable[[int], bool] = held_once
    shared: Callable[[int], int] = one_more  # references of a block after one more table lists it
    released: Callable[[int], int] = one_less
    release_order: Callable[[Sequence[int]], list[int]] = last_first
    victim: Callable[[Sequence[int]], int] = oldest
    forgets_evicted: bool = True  # an evicted block must not be found under its old content
    read_order: Callable[[Sequence[int]], list[int]] = list


PAGING = Paging()


@dataclass
class Table:
    """The blocks of one sequence, and the ids of its tokens as far as they are known from the beginning on."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    tokens: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of the full blocks, as far as the token ids are known


class BlockTables:
    """Tables of all sequences over one pool of blocks.

    Parameters
    ----------
    blocks, block_size : int
        How many blocks there are, and how many tokens each holds.
    rules : Paging
    """

    def __init__(self, blocks: int, block_size: int, rules: Paging = PAGING):
        self.block_size, self.rules = positive_int("block_size", block_size), rules
        self.references = [0] * positive_int("blocks", blocks)
        self.free = list(range(blocks))[::-1]  # never used, or nothing in them worth finding; taken from the end
        self.idle: dict[int, None] = {}  # in no table, but known by content; longest released first
        self.known: dict[bytes, int] = {}  # block by content
        self.content: dict[int, bytes] = {}  # content by block
        self.tables: dict[Name, Table] = {}
        self.evicted = 0

    @property
    def available(self) -> int:
        """Blocks that can be taken: free ones, and idle ones that would be evicted."""
        return len(self.free) + len(self.idle)

    def __getitem__(self, name: Name) -> Table:
        if name not in self.tables:
            raise InputError(f"sequence {name!r} is not in the cache; it holds {', '.join(map(repr, self.tables))}.")
        return self.tables[name]

    def begin(self, name: Name, tokens: Sequence[int] = ()) -> int:
        """Open a sequence whose first tokens will be ``tokens``; return how many of them are cached already.

        The cached ones, always whole blocks, stand in its table from now on. (An engine computes at least the last
        token of a prompt all the same: it needs that token's output, not its row.)
        """
        tokens, parent, size = whole_ids(tokens), b"", self.block_size
        self._new_name(name)
        table = self.tables[name] = Table()
        for at in range(0, len(tokens) - size + 1, size):
            parent = self.rules.key(parent, tokens[at : at + size])
            block = self.known.get(parent)
            if block is None:  # what stands behind a gap is of no use, even if it is known
                break
            self.idle.pop(block, None)
            self.references[block] = self.rules.shared(self.references[block])
            table.blocks.append(block)
            table.keys.append(parent)
        table.length = len(table.blocks) * size
        table.tokens = tokens[: table.length]
        return table.length

    def fork(self, name: Name, child: Name) -> None:
        """Open ``child`` with the tokens of ``name``: it shares every block, the last and unfinished one too."""
        parent = self[name]
        self._new_name(child)
        for block in parent.blocks:
            self.references[block] = self.rules.shared(self.references[block])
        self.tables[child] = Table(list(parent.blocks), parent.length, list(parent.tokens), list(parent.keys))

    def needs(self, name: Name, count: int) -> int:
        """Blocks that ``count`` more tokens of ``name`` take from the pool, a copy of a shared last block included."""
        table = self[name]
        copy = count > 0 and table.length % self.block_size > 0 and not self.rules.writable(
            self.references[table.blocks[-1]])
        return self.rules.blocks_for(table.length + count, self.block_size) - len(table.blocks) + copy

    def extend(self, name: Name, count: int, tokens: Sequence[int] | None = None) -> tuple[int, int] | None:
        """Make room for ``count`` more tokens, whose ids are ``tokens`` if they are known.

        Returns
        -------
        (source, copy) or None
            Block to be copied before anything is written, because the last one is shared.

        Raises
        ------
        CacheFull
            If too few blocks are available; nothing has been changed then.
        """
        table, need = self[name], self.needs(name, positive_int("count", count, least=0))
        tokens = tokens if tokens is None else whole_ids(tokens)
        if tokens is not None and len(tokens) != count:
            raise InputError(f"tokens must name the {count} new tokens of sequence {name!r}, not {len(tokens)}.")
        if need > self.available:
            raise CacheFull(f"{count} tokens of sequence {name!r} need {need} more blocks of {self.block_size}, but "
                            f"{len(self.free)} are free and {len(self.idle)} can be evicted.")
        copy = None
        if count and table.length % self.block_size and not self.rules.writable(self.references[table.blocks[-1]]):
            copy = table.blocks[-1], self._take()
            self._release([copy[0]])
            table.blocks[-1] = copy[1]
        while len(table.blocks) < self.rules.blocks_for(table.length + count, self.block_size):
            table.blocks.append(self._take())
        if tokens is not None and len(table.tokens) == table.length:
            table.tokens += tokens
        table.length += count
        self._publish(table)
        return copy

    def drop(self, name: Name) -> None:
        """Close a sequence. Blocks that nobody else holds stay findable until they are evicted."""
        self._release(self.rules.release_order(self[name].blocks))
        del self.tables[name]

    def audit(self) -> list[str]:
        """What is wrong with the books, in words: nothing, if the rules are right."""
        found, listed = [], [block for table in self.tables.values() for block in table.blocks]
        states = (set(self.free), set(self.idle), set(listed))
        if len(self.free) != len(states[0]):
            found.append("a block is free twice")
        if sum(map(len, states)) != len(set().union(*states)):
            found.append("a block is in a table and to be given away")
        if len(set().union(*states)) != len(self.references):
            found.append("a block is lost: in no table, and not to be had")
        if any(n != listed.count(block) for block, n in enumerate(self.references)):
            found.append("a reference count is not the number of tables that list the block")
        if any(len(t.blocks) != rounded_up(t.length, self.block_size) for t in self.tables.values()):
            found.append("a table is longer or shorter than its tokens need")
        if any(self.known.get(key) != block for block, key in self.content.items()) or len(self.known) != len(
                self.content):
            found.append("a block is known under content that it does not hold")
        return found

    def _new_name(self, name: Name) -> None:
        if name in self.tables:
            raise InputError(f"sequence {name!r} is in the cache already; drop it first or take another name.")

    def _take(self) -> int:
        if self.free:
            block = self.free.pop()
        else:
            block = self.rules.victim(self.idle)
            del self.idle[block]
            key = self.content.pop(block)
            if self.rules.forgets_evicted:
                del self.known[key]
            self.evicted += 1
        self.references[block] = 1
        return block

    def _release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.references[block] = self.rules.released(self.references[block])
            if self.references[block] > 0:
                continue
            if block in self.content:
                self.idle[block] = None
            else:
                self.free.append(block)

    def _publish(self, table: Table) -> None:
        """Make the full blocks of ``table`` whose token ids are known findable by content."""
        size = self.block_size
        while (n := len(table.keys)) < len(table.tokens) // size:
            key = self.rules.key(table.keys[-1] if n else b"", table.tokens[n * size : (n + 1) * size])
            table.keys.append(key)
            if key not in self.known and table.blocks[n] not in self.content:
                self.known[key] = table.blocks[n]
                self.content[table.blocks[n]] = key
