"""Arrays that carry their own rounding error.

A `Ball` is an array of values with two radii beside it. Because it speaks the array API, the very functions
that compute attention on NumPy and torch also compute how far their rounding may carry them:

* ``worst``: no rounding can leave this radius, overflow and underflow apart, which are not modelled. Every operation
  adds its own rounding (for a sum of k products gamma_k |A||B|, Higham, Accuracy and Stability of Numerical Algorithms,
  2nd ed., section 3.5) to what it inherits.
* ``spread``: the same under the model of Higham and Mary (SIAM J. Sci. Comput. 41 (2019) A2815): roundings are
  independent with mean zero, so they add in squares and gamma_k shrinks to sqrt(k) u. `Ball.likely` multiplies it by
  the factor that all elements together exceed with probability `FAILURE` (Hoeffding).
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import UNIT_ROUNDOFF, Array, Backend

FAILURE = 1e-9
PIECE = 2**22  # elements of a matrix that are worked on at a time
EXP_ULPS = 8  # unit roundoffs: NumPy's and torch's exp, log, sin and cos are within 4 units in the last place


@dataclass(frozen=True)
class Rounding:
    """Unit roundoff of sums and of stored tensors; the latter 0 where the operation already rounds to the dtype."""

    sums: float
    stored: float

    @classmethod
    def of(cls, backend: Backend) -> Rounding:
        """The rounding of ``backend``, plus that of the float64 reference value itself."""
        narrow = backend.unit > backend.accumulator_unit
        return cls(backend.accumulator_unit + UNIT_ROUNDOFF["float64"], backend.unit if narrow else 0.0)


@dataclass(frozen=True)
class BallDtype:
    """What ``Ball.dtype`` is: float64 values, and the rounding that a conversion to this dtype adds."""

    rounding: Rounding
    bits: int = 64


def gamma(terms: float, unit: float) -> float:
    """Rounding of a sum of ``terms`` products, k u / (1 - k u) (Higham, lemma 3.1)."""
    return terms * unit / (1 - terms * unit) if terms * unit < 1 else math.inf


def quietly(function: Any) -> Any:
    """A radius that overflows, or infinity times zero in one, is a vacuous radius and no reason to warn."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")(function)


def hypot(*xs: Any) -> Any:
    return np.sqrt(sum(x * x for x in xs))


class Ball:
    """Values that a computation would have without rounding, and how far rounding may move them.

    Parameters
    ----------
    value : ndarray
        float64; or float32, where only the radii are wanted (they are then good to a percent) and memory counts.
    rounding : Rounding
    worst, spread : ndarray of the same shape, or 0.0 for exact inputs
    """

    __array_ufunc__ = None  # so that ndarray @ Ball comes here
    __slots__ = ("rounding", "spread", "value", "worst")

    def __init__(self, value: Array, rounding: Rounding, worst: Any = 0.0, spread: Any = 0.0):
        value = np.asarray(value)
        self.value = value if value.dtype == np.float32 else value.astype(np.float64, copy=False)
        self.rounding, self.worst, self.spread = rounding, worst, spread

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    dtype = property(lambda self: BallDtype(self.rounding))
    device = "cpu"
    namespace: Any = None  # `mla_lab.ball_namespace` puts itself here

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.namespace

    def likely(self) -> np.ndarray:
        """The radius that all elements together leave with probability at most `FAILURE`, in the model above.

        For a product of exact inputs the model needs independent roundings only. Along a chain it also takes the errors
        that operands bring along as independent; where many operands share one, as in a layer of identical heads, the
        true error can be larger. It is an estimate, not a guarantee.
        """
        return math.sqrt(2 * math.log(2 * max(self.value.size, 1) / FAILURE)) * self.spread

    @quietly
    def _other(self, x: Any) -> Ball:
        if isinstance(x, Ball):
            return x
        exact = not isinstance(x, float) or x == float(np.float32(x))
        unit = 0.0 if exact else self.rounding.sums  # a Python float is rounded to the dtype of the array
        return Ball(x, self.rounding, unit * abs(x) if unit else 0.0, unit * abs(x) if unit else 0.0)

    @quietly
    def _rounded(self, value: Any, worst: Any, spread: Any, ulps: float = 1) -> Ball:
        """One more rounding, of ``ulps`` units, on top of inherited radii."""
        own = ulps * self.rounding.sums * np.abs(value)
        return Ball(value, self.rounding, worst + own + ulps * self.rounding.sums * worst, hypot(spread, own))

    def map(self, function: Any) -> Ball:
        """Apply an operation that only moves elements (slice, reshape, transpose)."""
        radii = (r if np.ndim(r) == 0 else function(r) for r in (self.worst, self.spread))
        return Ball(function(self.value), self.rounding, *radii)

    def __getitem__(self, key: Any) -> Ball:
        return self.map(lambda x: x[key])

    @property
    def mT(self) -> Ball:
        return self.map(lambda x: np.swapaxes(x, -1, -2))

    def __eq__(self, x: Any) -> Any:
        """Element by element, on the values."""
        return self.value == (x.value if isinstance(x, Ball) else x)

    __hash__ = None

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.rounding, self.worst, self.spread)

    @quietly
    def __add__(self, x: Any) -> Ball:
        b = self._other(x)
        return self._rounded(self.value + b.value, self.worst + b.worst, hypot(self.spread, b.spread))

    __radd__ = __add__

    def __sub__(self, x: Any) -> Ball:
        return self + -self._other(x)

    @quietly
    def __mul__(self, x: Any) -> Ball:
        b = self._other(x)
        size, other = np.abs(self.value), np.abs(b.value)
        worst = size * b.worst + other * self.worst + self.worst * b.worst
        return self._rounded(self.value * b.value, worst, hypot(size * b.spread, other * self.spread))

    __rmul__ = __mul__

    @quietly
    def __truediv__(self, x: Any) -> Ball:
        b = self._other(x)
        size, other, value = np.abs(self.value), np.abs(b.value), self.value / b.value
        worst = (size * b.worst / other + self.worst) / np.where(other > b.worst, other - b.worst, 0.0)
        worst = np.where(other > b.worst, worst, np.inf)
        return self._rounded(value, worst, hypot(self.spread / other, value * b.spread / other))

    def __matmul__(self, x: Any) -> Ball:
        return _product(self, x if isinstance(x, Ball) else Ball(x, self.rounding))

    def __rmatmul__(self, x: Any) -> Ball:
        return _product(Ball(x, self.rounding), self)


def _light(x: Ball) -> Ball:
    return Ball(
        *(f(np.float32) if (f := getattr(r, "astype", None)) else r for r in (x.value, x.rounding, x.worst, x.spread))
    )


def _by_columns(a: Ball, b: Ball) -> Ball:
    """The product with a large matrix, a few columns at a time: its absolute values and squares then stay small."""
    step = max(1, PIECE // b.shape[0])
    parts = [_product(a, b[:, at : at + step]) for at in range(0, b.shape[1], step)]
    value, worst, spread = (np.concatenate([getattr(p, name) for p in parts], axis=-1)
                            for name in ("value", "worst", "spread"))
    return Ball(value, a.rounding, worst, spread)


@quietly
def _product(a: Ball, b: Ball) -> Ball:
    if b.ndim == 2 and b.value.size > PIECE and not np.ndim(b.worst):
        return _by_columns(a, b)
    if a.value.dtype != b.value.dtype:  # one light operand makes the product light
        a, b = _light(a), _light(b)
    size_a, size_b, k, unit = np.abs(a.value), np.abs(b.value), a.shape[-1], a.rounding.sums
    carried: Any = 0.0
    if np.ndim(a.worst) and not np.ndim(b.worst):  # one pass over b, which may be the largest matrix of a layer
        size, carried = np.split(np.concatenate([size_a, a.worst], axis=-2) @ size_b, 2, axis=-2)
    else:
        size = size_a @ size_b
        if np.ndim(a.worst):
            carried = a.worst @ (size_b + b.worst)
        if np.ndim(b.worst):
            carried = carried + size_a @ b.worst
    squares = (math.sqrt(k) * unit * size) ** 2
    for left, right in ((a.spread, size_b), (size_a, b.spread)):
        if np.ndim(left) and np.ndim(right):
            squares = squares + (left * left) @ (right * right)
    g = gamma(k, unit)
    return Ball(a.value @ b.value, a.rounding, carried * (1 + g) + g * size, np.sqrt(squares))
