"""How far an output lies from a prediction, in units of what rounding does to that prediction."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from ..ball import Rounding
from ..bounds import store as store_ball
from ..faults.rounded import FLOAT32, FLOAT64, to_bits
from ..recipe import RIGHT, Recipe
from .cases import Case, DecodeCase
from .predict import Outputs, predict, radius


def rms(x: np.ndarray) -> float:
    """Root mean square of what is finite."""
    x = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(x * x))) if x.size else 0.0


def same_kind(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether NaN and either infinity stand in the same places."""
    return a.shape == b.shape and all(np.array_equal(f(a), f(b)) for f in (np.isnan, np.isposinf, np.isneginf))


@lru_cache(maxsize=4096)
def predicted(case: Case, recipe: Recipe) -> Outputs:
    """`predict`, remembered."""
    return predict(case, recipe)


@lru_cache(maxsize=4096)
def noise(case: Case, recipe: Recipe, bits: int) -> tuple[float, ...]:
    """What rounding every stored tensor to ``bits`` does to each output of ``recipe``, in root mean square.

    This is the signature of rounding: it is computed on the very numbers, with the fault in place. Float64 itself is
    taken as float32 with units of 2^-53.
    """
    emulated = min(bits, FLOAT32)
    exact, rounded = predicted(case, recipe), predict(case, replace(recipe, store=partial(to_bits, bits=emulated)))
    with np.errstate(invalid="ignore"):
        return tuple(max(2.0 ** (emulated - bits) * rms(a - b), 2.0**-bits * rms(a))
                     for a, b in zip(exact, rounded, strict=True))


@lru_cache(maxsize=256)
def radii(case: Case, bits: int) -> Outputs:
    """The likely radius of each output of the right conventions, for tensors stored in ``bits``."""
    sums, stored = (2.0**-FLOAT64, 0.0) if bits == FLOAT64 else (2.0**-FLOAT32, 0.0 if bits == FLOAT32 else 2.0**-bits)
    return radius(case, Rounding(sums + 2.0**-FLOAT64, stored), replace(RIGHT, store=store_ball))


def shares(seen: Outputs, case: Case, bits: int) -> list[np.ndarray]:
    """Distance from the right output over the likely radius, element by element; infinite where one is not finite."""
    out = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for got, want, most in zip(seen, predicted(case, RIGHT), radii(case, bits), strict=False):
            off = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want))
            off = np.where(np.isnan(off), np.inf, off)
            out.append(np.where(off == 0, 0.0, off / np.where(np.isnan(most), np.inf, most)))
    return out


@lru_cache(maxsize=4096)
def moves(case: Case, recipe: Recipe, bits: int, times: float) -> bool:
    """Whether ``recipe`` moves the first output away from the right one by more than ``times`` its rounding."""
    a, b = predicted(case, recipe)[0], predicted(case, RIGHT)[0]
    with np.errstate(invalid="ignore"):
        return not same_kind(a, b) or rms(a - b) > times * noise(case, RIGHT, bits)[0]


def like_rounding(seen: Outputs, case: Case, bits: int) -> tuple[bool, float]:
    """Whether the first output is off nearly everywhere and by about the noise; and how much along the right output.

    The second is the correlation of the error with what is right: 1 for a factor, about 0 for rounding.
    """
    got, want = seen[0], predicted(case, RIGHT)[0]
    with np.errstate(invalid="ignore"):
        off = got - want
    size = rms(off)
    if not np.all(np.isfinite(got)) or size < noise(case, RIGHT, bits)[0] / 32:
        return False, 1.0
    there = np.abs(want) > 0
    spread = np.mean(np.abs(off[there]) > 1e-3 * size) > 0.5
    return bool(spread), abs(float(np.sum(off * want))) / (size * rms(want) * off.size)


def score(seen: Outputs, case: Case, recipe: Recipe, bits: int, noise_of: Recipe | None = None,
          with_lse: bool = True) -> float:
    """The largest distance of any output from the prediction of ``recipe``, in units of its noise."""
    worst = 0.0
    for i, (got, want, unit) in enumerate(
            zip(seen, predicted(case, recipe), noise(case, noise_of or recipe, bits), strict=False)):
        if i and isinstance(case, DecodeCase) and not with_lse:
            break
        if not same_kind(got, want):
            return np.inf
        with np.errstate(invalid="ignore"):
            off = rms(got - want)
        worst = max(worst, off / unit if unit else 0.0 if np.array_equal(got, want, equal_nan=True) else np.inf)
    return worst


def apart(a: Outputs, b: Outputs) -> float:
    """Relative distance of two results, from 0 (equal) to 1."""
    parts = []
    with np.errstate(invalid="ignore"):
        for x, y in zip(a, b, strict=False):
            size = rms(x) + rms(y)
            parts.append(0.0 if same_kind(x, y) and not size else min(1.0, rms(x - y) / size) if size else 1.0)
            if not same_kind(x, y):
                odd = np.mean(np.isfinite(x) != np.isfinite(y)) if x.shape == y.shape else 1.0
                parts[-1] = max(parts[-1], float(odd))
    return float(np.mean(parts))
