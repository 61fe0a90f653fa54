"""The two collectives that attention needs, over threads of one process or over processes, each counting its bytes.

Code for many ranks is written once against `Comm`. With `in_threads` it can be tried anywhere, on any array library;
`mla_lab.serving.ranks` runs the same code on torch.distributed.
"""
from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from array_api_compat import array_namespace

from ..arrays import Array

PATIENCE = 60.0  # seconds that a rank waits for the others


class PeerLost(RuntimeError):
    """Another rank is gone, or gave no answer in time. What happened to it is for that rank to say."""


@dataclass
class Count:
    """Calls of one collective, and the bytes that each rank put into it."""

    calls: int = 0
    payload: int = 0


@dataclass
class Comm:
    """A rank's connection to the others. Subclasses say how arrays travel."""

    rank: int
    size: int
    counts: dict[str, Count] = field(default_factory=lambda: {"all_reduce": Count(), "all_gather": Count()})

    def all_reduce(self, x: Array) -> Array:
        """The sum of every rank's ``x``."""
        self._count("all_reduce", x)
        return self._sum(x)

    def all_gather(self, x: Array) -> list[Array]:
        """Every rank's ``x``, in the order of ranks; all must have one shape."""
        self._count("all_gather", x)
        return self._collect(x)

    def sent(self) -> int:
        """Bytes that this rank sends if both run on a ring, as `wire_bytes` counts."""
        return sum(wire_bytes(name, count.payload, self.size) for name, count in self.counts.items())

    def _count(self, name: str, x: Array) -> None:
        self.counts[name].calls += 1
        self.counts[name].payload += nbytes(x)

    def _collect(self, x: Array) -> list[Array]:
        raise NotImplementedError

    def _sum(self, x: Array) -> Array:
        return reduce(add, self._collect(x))


def nbytes(x: Array) -> int:
    """Bytes of an array's elements."""
    return math.prod(x.shape) * array_namespace(x).finfo(x.dtype).bits // 8


def wire_bytes(collective: str, payload: int, size: int) -> int:
    """Bytes that each of ``size`` ranks sends on a ring.

    An all-gather passes every other rank's part on once; an all-reduce is a reduce-scatter and an all-gather of 1/size
    of the array (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117).
    """
    return 2 * (size - 1) * payload // size if collective == "all_reduce" else (size - 1) * payload


@dataclass
class _Threads(Comm):
    meeting: Any = None
    slots: list = field(default_factory=list)

    def _collect(self, x: Array) -> list[Array]:
        self.slots[self.rank] = x
        try:
            self.meeting.wait(PATIENCE)
            every = list(self.slots)
            self.meeting.wait(PATIENCE)  # nobody writes again before everybody has read
        except threading.BrokenBarrierError:
            raise PeerLost(f"rank {self.rank} of {self.size}: another rank stopped") from None
        return every


def in_threads(size: int, work: Callable[[Comm], Any]) -> list[Any]:
    """What ``work(comm)`` returns on each of ``size`` ranks, all of them threads of this process.

    If a rank raises, the others stop waiting for it and its exception is raised here.
    """
    meeting, slots, results, failures = threading.Barrier(size), [None] * size, [None] * size, [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(_Threads(rank, size, meeting=meeting, slots=slots))
        except BaseException as error:
            failures[rank] = error
            meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [error for error in failures if error is not None]
    for error in sorted(raised, key=lambda e: isinstance(e, PeerLost)):  # the cause before its consequences
        raise error
    return results
