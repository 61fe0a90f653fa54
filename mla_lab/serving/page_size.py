"""What a page size costs, measured on a trace: empty slots, table entries, prefix hits; and how many prefixes fit."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..errors import InputError, positive_int
from .blocks import PAGING, BlockTables, CacheFull, Paging, rounded_up
from .traces import Request, Trace, lengths

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENTRY_BYTES = 4  # tables hold int32
# What MLA kernels ask for, in tokens: docs.sglang.io, "Attention Backend", table of MLA backends.
KERNEL_PAGES = {"FlashMLA": "64", "CUTLASS MLA": "128", "TRT-LLM MLA": "32 or 64", "FlashInfer MLA": "1"}


@dataclass(frozen=True)
class PageCost:
    """The books of one page size over all requests of a trace, each in a cache of its own.

    ``hit_tokens`` None: the trace says nothing of shared beginnings.
    """

    block_size: int
    tokens: int
    blocks: int
    input_tokens: int
    hit_tokens: int | None

    @property
    def empty_slots(self) -> int:
        """Internal fragmentation: slots of last pages that hold nothing."""
        return self.blocks * self.block_size - self.tokens

    @property
    def empty_share(self) -> Fraction:
        return Fraction(self.empty_slots, max(1, self.blocks * self.block_size))

    @property
    def table_bytes(self) -> int:
        """int32 entries of all tables together; one table serves all layers."""
        return self.blocks * ENTRY_BYTES

    @property
    def hit_share(self) -> Fraction | None:
        """Share of all prompt tokens that need not be computed, in an endless cache."""
        return None if self.hit_tokens is None else Fraction(self.hit_tokens, max(1, self.input_tokens))


def page_cost(trace: Trace, block_size: int, rules: Paging = PAGING) -> PageCost:
    """Count pages of ``block_size`` tokens over ``trace``.

    A request of L tokens takes ceil(L / B) pages, of which (B - 1) / 2 slots are empty on average where lengths fall
    evenly. Of a shared beginning of s tokens, floor(s / B) B are found. If the trace knows shared beginnings only to
    a coarser grain than B, what is found is a lower bound.
    """
    size, held = positive_int("block_size", block_size), lengths(trace)
    hits = None
    if trace.granularity is not None:
        hits = sum(shared // size * size for shared in trace.shared_tokens())
    return PageCost(size, sum(held), sum(rules.blocks_for(n, size) for n in held),
                    sum(r.input_tokens for r in trace.requests), hits)


# --- with an end to the memory --------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Replay:
    """What happened when a trace was run through a pool of blocks."""

    input_tokens: int
    hit_tokens: int
    evicted: int
    waited: int  # times that the oldest running request had to end before another could begin
    refused: int  # requests that no empty cache of this size could hold

    @property
    def hit_share(self) -> Fraction:
        return Fraction(self.hit_tokens, max(1, self.input_tokens))


def token_ids(request: Request, names: dict) -> tuple[list[int], list[int]]:
    """Ids of the tokens of a request's prompt and output: equal where the runs are."""
    def ids(runs: Iterator) -> list[int]:
        parts = [(names.setdefault(identity, len(names)) << 32) + np.arange(tokens) for identity, tokens in runs]
        return np.concatenate(parts).tolist() if parts else []
    reply = request.reply if request.reply is not None else ("no name", len(names))
    return ids(iter(request.prompt)), ids(iter([(reply, request.output_tokens)]))


def replay(trace: Trace, blocks: int, block_size: int, running: int = 8, rules: Paging = PAGING) -> Replay:
    """Run ``trace`` through `BlockTables`, the last ``running`` requests holding their blocks at any time.

    Every request looks its prompt up, takes blocks for the rest and for its output, and lets go of them when enough
    others have come, or sooner where room is needed.
    """
    if trace.granularity is None:
        raise InputError(f"{trace.what} says nothing of shared beginnings; a replay needs a trace that does.")
    tables, alive, names = BlockTables(blocks, block_size, rules), deque(), {}
    hit = refused = waited = 0
    for number, request in enumerate(trace.requests):
        prompt, output = token_ids(request, names)
        if rounded_up(len(prompt) + len(output), block_size) > blocks:
            refused += 1
            continue
        if len(alive) == positive_int("running", running):
            tables.drop(alive.popleft())
        found = tables.begin(number, prompt)
        while True:
            try:
                tables.extend(number, len(prompt) - found + len(output), prompt[found:] + output)
                break
            except CacheFull:
                tables.drop(alive.popleft())
                waited += 1
        hit += found
        alive.append(number)
    return Replay(sum(r.input_tokens for r in trace.requests), hit, tables.evicted, waited, refused)


def prefixes_that_fit(budget: int, tokens: int, token_bytes: int | Fraction, block_size: int = 1) -> int:
    """How many prefixes of ``tokens`` tokens ``budget`` bytes hold, in whole pages, at ``token_bytes`` a token."""
    page = positive_int("block_size", block_size) * token_bytes
    return int(Fraction(budget) / page) // rounded_up(positive_int("tokens", tokens), block_size)

