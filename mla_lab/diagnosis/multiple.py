"""Outputs that one factor explains: of the softmax scale, or of the output itself. No known fault has a free number."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..faults.rounded import FLOAT32
from ..recipe import RIGHT, Recipe
from ..rope import softmax_scale
from .cases import Case, DecodeCase
from .distance import noise, predicted, rms, same_kind, score
from .predict import Outputs, predict

OCTAVES = 4.0  # a factor is looked for from 2^-4 to 2^4
GOLDEN = (5**0.5 - 1) / 2


def scaled(factor: float) -> Recipe:
    """The right conventions with ``factor`` times the softmax scale."""
    return replace(RIGHT, scale=lambda config: factor * softmax_scale(config))


def lowest(f: Callable[[float], float], low: float, high: float) -> float:
    """Where ``f`` is least between ``low`` and ``high``, if it falls and then rises there (golden section)."""
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_a, at_b = f(a), f(b)
    for _ in range(80):  # 0.618^80 of the interval is below float64's unit
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - GOLDEN * (high - low)
            at_a = f(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + GOLDEN * (high - low)
            at_b = f(b)
    return (low + high) / 2


def factor_of_scale(got: Outputs, case: Case) -> float:
    """The factor of the softmax scale that brings ``case`` nearest to what was observed."""
    def off(octave: float) -> float:
        return sum(rms(x - y) for x, y in zip(got[:1], predict(case, scaled(2.0**octave))[:1], strict=True))

    grid = np.linspace(-OCTAVES, OCTAVES, 33)
    best = int(np.argmin([off(x) for x in grid]))
    return 2.0 ** lowest(off, grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])


def is_multiple(factor: float, got: Outputs, case: Case, bits: int, most: float) -> bool:
    """Whether what was observed is ``factor`` times the right output, beside the right LSE, but for rounding."""
    for i, (x, y, unit) in enumerate(zip(got, predicted(case, RIGHT), noise(case, RIGHT, bits), strict=False)):
        times = 1.0 if i and isinstance(case, DecodeCase) else factor
        with np.errstate(invalid="ignore"):
            if not same_kind(x, y) or rms(x - times * y) > most * abs(times) * unit:
                return False
    return True


def said(factor: float) -> str:
    """To four decimals, and to more where those would be 1."""
    return f"{factor:.4f}" if abs(factor - 1) >= 1e-3 else f"{factor:.8g}"


def one_factor(cases: Sequence[Case], seen: Mapping[str, Outputs], levels: Sequence[int],
               matching: Callable[[int], float]) -> str:
    """What a factor, fitted on one case and confirmed on all of them, says of the output; empty where none does."""
    case = next((c for c in cases if c.name == "full"), None)
    if case is None or not all(np.isfinite(x).all() for x in seen[case.name][:1]):
        return ""
    got, want = seen[case.name][0], predicted(case, RIGHT)[0]
    share = float(np.sum(got * want) / np.sum(want * want))  # least squares
    factor = factor_of_scale(seen[case.name], case)
    for bits in [bits for bits in levels if bits >= FLOAT32] or levels:  # coarser ones would hide small differences
        if all(score(seen[c.name], c, scaled(factor), bits) <= matching(bits) for c in cases):
            return f"the softmax scale times {said(factor)}"
        if all(is_multiple(share, seen[c.name], c, bits, matching(bits)) for c in cases):
            return f"the right output times {said(share)}"
    return ""
