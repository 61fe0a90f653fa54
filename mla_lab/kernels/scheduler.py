"""The tile scheduler of FlashMLA, simulated: which part of a GPU reads which keys of which request.

Requests have different lengths, and a step is over when the slowest part is. FlashMLA fills the parts one after
the other, each with the same number of key blocks, and cuts a request wherever a part is full; what a cut costs is a
fixed overhead, counted in blocks (``csrc/smxx/decode/get_decoding_sched_meta``). Times here are in blocks, too.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import positive_int

BLOCK = 64  # keys, FlashMLA's page
TILE = 64  # query rows a matrix instruction of a Hopper GPU takes at once
OVERHEAD = 5  # blocks: start, writing out and merging of a piece


@dataclass(frozen=True)
class Piece:
    """Consecutive key blocks of one request; ``split`` counts its pieces."""

    request: int
    first: int
    blocks: int
    split: int


Schedule = tuple[tuple[Piece, ...], ...]  # for each part, what it does one after the other


def parts_of(processors: int, heads: int, tokens: int = 1) -> int:
    """Parts that share the work: all processors that take one tile of rows, at least one part."""
    return max(1, processors // tiles(heads * tokens))


def tiles(rows: int) -> int:
    """Tiles of `TILE` rows. Time goes in these steps: 16 rows take as long as 64, and 65 as long as 128."""
    return -(-positive_int("rows", rows) // TILE)


def blocks_of(length: int, block: int = BLOCK) -> int:
    """Key blocks of a request; an empty one still takes a look."""
    return max(1, -(-positive_int("length", length, least=0) // block))


def greedy(lengths: Sequence[int], parts: int, block: int = BLOCK, overhead: int = OVERHEAD) -> Schedule:
    """FlashMLA's rule: every part gets ``ceil(sum(blocks + overhead) / parts) + overhead`` and is filled in turn."""
    positive_int("parts", parts)
    need = [blocks_of(length, block) for length in lengths]
    payload = -(-sum(n + overhead for n in need) // parts) + overhead
    plan, request, done, split = [], 0, 0, 0
    for _ in range(parts):
        left, pieces = payload, []
        while request < len(need):
            rest = need[request] - done
            if left >= rest + overhead:  # the rest of this request fits
                pieces.append(Piece(request, done, rest, split))
                left -= rest + overhead
                request, done, split = request + 1, 0, 0
                continue
            if left > overhead:  # cut it here; the next part goes on
                pieces.append(Piece(request, done, left - overhead, split))
                done, split = done + left - overhead, split + 1
            break
        plan.append(tuple(pieces))
    return tuple(plan)


def fixed_splits(lengths: Sequence[int], parts: int, splits: int, block: int = BLOCK) -> Schedule:
    """The plain alternative: every request is cut into ``splits`` pieces, dealt out to the parts in turn.

    This is a grid of programs, one for each request and split, of which ``parts`` run at a time.
    """
    plan, n = [[] for _ in range(positive_int("parts", parts))], 0
    for request, length in enumerate(lengths):
        need = blocks_of(length, block)
        each = -(-need // positive_int("splits", splits))
        for split, first in enumerate(range(0, need, each)):
            plan[n % parts].append(Piece(request, first, min(each, need - first), split))
            n += 1
    return tuple(map(tuple, plan))


def loads(plan: Schedule, overhead: int = OVERHEAD) -> tuple[int, ...]:
    """Time of each part, in blocks."""
    return tuple(sum(piece.blocks + overhead for piece in part) for part in plan)


def utilisation(plan: Schedule, overhead: int = OVERHEAD) -> float:
    """Useful blocks over the time of the slowest part times the number of parts: 1 is perfect."""
    useful = sum(piece.blocks for part in plan for piece in part)
    return useful / (max(loads(plan, overhead)) * len(plan))
