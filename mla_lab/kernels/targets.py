"""The ratios that the kernels must reach, computed from one run; each says what it compares and what is demanded."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .bench import SIZES, Group
from .timing import Contender, quartiles, ratio

EXTRA = 2**24  # bytes that 'tiled' may allocate


@dataclass(frozen=True)
class Target:
    """``value`` must be at least, or at most, ``wanted``."""

    claim: str
    value: float
    spread: tuple[float, float]  # quartiles over the rounds
    wanted: float
    at_most: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def __str__(self) -> str:
        low, high = self.spread
        number = f"{self.value:.3g}{self.unit}" + ("" if low == high else f" [{low:.3g}, {high:.3g}]")
        side = "at most" if self.at_most else "at least"
        return f"{self.claim}: {number}, {'met' if self.met else 'NOT MET'} ({side} {self.wanted:g}{self.unit})"


def compared(claim: str, slower: Contender | None, faster: Contender | None, wanted: float, **how) -> Iterator[Target]:
    """How many times as long ``slower`` takes; nothing where one of them was left out."""
    if slower is not None and faster is not None:
        yield Target(claim, *ratio(slower, faster), wanted, **how)


def on_cpu(group: Group) -> Iterator[Target]:
    """The ratios of one size on a CPU."""
    best, step = group.best("kernel"), group.best("step")
    if best is None:
        return
    yield from compared(f"{best.label} against the products alone", group.best("limit", "products"), best, 0.85)
    yield from compared("against the best stock call", group.best("stock", "SDPA, heads folded"), best, 1)
    yield from compared("against enable_gqa", group.best("stock", "SDPA, enable_gqa"), best, 100)
    theirs = group.best("stock", "transformers")
    yield from compared("kernel against transformers' step", theirs, best, 60)
    yield from compared("step with W_UK and W_UV against transformers' step", theirs, step, 60)
    numpy, torch = (group.best("kernel", package=name) for name in ("numpy", "torch"))
    yield from compared("NumPy's best against torch's best", torch, numpy, 0.8)
    for package, peak in (group.peak or {}).items():
        tiled, rows = (group.best("kernel", name, package) for name in ("tiled", "rows"))
        yield from compared(f"time of tiled over rows ({package})", tiled, rows, 1.25, at_most=True)
        yield Target(f"memory that tiled allocates ({package})", peak / 2**20, (0, 0), EXTRA / 2**20, True, " MiB")


def on_cuda(group: Group) -> Iterator[Target]:
    """The same on a GPU; the absolute numbers are those of an H200. No GPU has run this yet."""
    best = group.best("kernel")
    if best is None:
        return
    low, high = quartiles(best.measured)
    rate = lambda seconds: best.work.flops / seconds / 1e12
    speed = lambda seconds: best.work.bytes / seconds / 1e12
    if group.size.batch > 1 and group.size.heads >= 128:
        yield Target(f"{best.label}", rate(best.median), (rate(high), rate(low)), 450, unit=" TFLOP/s")
    elif group.size.batch > 1:
        yield Target(f"{best.label}", speed(best.median), (speed(high), speed(low)), 3.4, unit=" TB/s")
    yield from compared("against FlashMLA", group.best("stock", "FlashMLA"), best, 0.8)
    yield from compared("against the best stock call", group.best("stock", "SDPA, heads folded"), best, 1)
    yield from compared("against enable_gqa", group.best("stock", "SDPA, enable_gqa"), best, 100)


def targets(group: Group, device: str) -> list[Target]:
    """All ratios of one size; none where nothing is demanded, as at other sizes than those of the suite."""
    return list((on_cuda if device == "cuda" else on_cpu)(group)) if group.size in SIZES[device] else []
