"""Timing that survives a shared machine: interleaved rounds, medians with their spread, ratios round by round."""
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .counts import Work

PAUSE = 0.05  # s: threads of a library that has just run spin for a while, on the cores the next one needs
LOOKS = 5  # in a row, over a pause, that must find nothing else running
SHORTEST = 0.1  # s: faster calls are repeated until they take as long together
SLOW = 1.0  # s: slower calls are not warmed up
QUIET = 0.02  # share of a measurement in which something may wait for a core
BUDGET = 6.0  # s that one contender may take in all rounds; it runs at least once


@dataclass
class Contender:
    """Something to time, and what it has to do at least.

    ``package`` is whose threads it uses; contenders of one library run without a pause between them.
    """

    name: str
    package: str
    run: Callable[[], Any] = field(repr=False)
    work: Work
    kind: str = "kernel"  # or 'stock' (what a user would call today), 'step', 'limit' (what the machine can do)
    same_inputs: bool = True  # or it has inputs, FLOPs and bytes of its own
    seconds: list[float | None] = field(default_factory=list)  # by round; None where it sat out
    calls: int = 0  # in a measurement
    result: Any = field(default=None, repr=False)  # of the first call
    disturbed: int = 0  # measurements in which something had to wait for a core

    @property
    def label(self) -> str:
        return f"{self.name} ({self.package})"

    @property
    def measured(self) -> list[float]:
        return [s for s in self.seconds if s is not None]

    @property
    def median(self) -> float:
        return statistics.median(self.measured)

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile."""
        return quartiles(self.measured)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; both the value itself where there is one only."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def waited() -> float:
    """Seconds in which something that could run had no core, since the machine was started (Linux' pressure stall
    information); 0 where the system does not say."""
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as lines:
            return int(lines.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0


class CPUClock:
    """Wall time of one of ``calls`` calls, and what the last of them returned.

    ``disturbed`` is the share of the last measurement in which a thread, ours or another program's, had to wait for a
    core. For ``patience`` seconds in all, `wait` waits for a moment in which nothing else runs.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self.patience, self.disturbed = patience, 0.0

    def settle(self) -> None:
        time.sleep(PAUSE)

    def wait(self) -> bool:
        """Wait until nothing else has run for a while; False where patience ends before."""
        start, looks = time.perf_counter(), 0
        while looks < LOOKS and time.perf_counter() - start < self.patience:
            time.sleep(PAUSE / LOOKS)
            looks = 0 if others_run() else looks + 1
        self.patience -= time.perf_counter() - start
        return looks == LOOKS

    def __call__(self, run: Callable[[], Any], calls: int) -> tuple[float, Any]:
        before, start = waited(), time.perf_counter()
        for _ in range(calls):
            result = run()
        seconds = time.perf_counter() - start
        self.disturbed = (waited() - before) / max(seconds, 1e-9)
        return seconds / calls, result


def others_run() -> bool:
    """Whether any thread but this one runs or waits for a core; False where the system does not say."""
    try:
        with open("/proc/loadavg", encoding="ascii") as line:
            return int(line.read().split()[3].partition("/")[0]) > 1
    except (OSError, ValueError):
        return False


class CUDAClock:
    """Time between two events on the GPU, each call with a cold second-level cache. No GPU has run this yet."""

    def __init__(self) -> None:
        import torch
        self.torch, self.flush = torch, torch.empty(2**28, dtype=torch.int8, device="cuda")

    disturbed = 0.0

    def settle(self) -> None:
        self.torch.cuda.synchronize()

    def wait(self) -> bool:
        return False

    def __call__(self, run: Callable[[], Any], calls: int) -> tuple[float, Any]:
        pairs = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in pairs:
            self.flush.zero_()
            start.record()
            result = run()
            end.record()
        self.torch.cuda.synchronize()
        return sum(start.elapsed_time(end) for start, end in pairs) / calls / 1e3, result


def measure(contenders: Iterable[Contender], rounds: int, clock: Callable | None = None) -> Iterator[Contender]:
    """Time every contender once a round, one after the other, so that a busy minute hits all; yields after each."""
    clock, last = clock or CPUClock(), None
    contenders = list(contenders)
    for _ in range(rounds):
        for c in contenders:
            if c.calls and sum(c.measured) * c.calls > BUDGET:
                c.seconds.append(None)
                yield c
                continue
            if c.package != last:
                clock.settle()
            last = c.package
            if c.calls == 0:
                first, c.result = clock(c.run, 1)  # allocates and compiles as well; counted only where it is long
                if first > SLOW:
                    c.calls, c.disturbed = 1, int(clock.disturbed > QUIET)
                    c.seconds.append(first)
                    yield c
                    continue
                c.calls = max(1, math.ceil(SHORTEST / max(clock(c.run, 1)[0], 1e-9)))
            c.seconds.append(undisturbed(c, clock))
            yield c


def undisturbed(c: Contender, clock: Callable) -> float:
    """Time of a call; measured again while others were in the way and there is patience left."""
    tries = []
    while not tries or (clock.disturbed > QUIET and clock.wait()):
        if c.median < SLOW if c.measured else tries:
            clock(c.run, 1)  # wakes the library's threads
        seconds, _ = clock(c.run, c.calls)
        tries.append((clock.disturbed, seconds))
    share, seconds = min(tries)
    c.disturbed += share > QUIET
    return seconds


def ratio(slower: Contender, faster: Contender) -> tuple[float, tuple[float, float]]:
    """How many times as long the first takes: median and quartiles over the rounds in which both ran.

    Within a round the two ran seconds apart, so what slows the machine down slows both.
    """
    each = [a / b for a, b in zip(slower.seconds, faster.seconds, strict=True) if a is not None and b is not None]
    return statistics.median(each), quartiles(each)
