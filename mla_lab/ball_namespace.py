"""The array-API functions that attention needs, for `mla_lab.ball.Ball`.

Only what the maths calls is here: a function that is missing fails loudly rather than losing a radius.
"""
from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from .arrays import UNIT_ROUNDOFF
from .ball import EXP_ULPS, Ball, BallDtype, Rounding, gamma, hypot, quietly

float32, float64 = np.float32, np.float64


def _ball(x: Any, like: Ball) -> Ball:
    return x if isinstance(x, Ball) else Ball(x, like.rounding)


def _join(function: Any, xs: list, axis: int) -> Ball:
    like = next(x for x in xs if isinstance(x, Ball))
    balls = [_ball(x, like) for x in xs]
    radii = ([np.broadcast_to(r, b.shape) for r, b in zip(rs, balls, strict=True)]
             for rs in ([b.worst for b in balls], [b.spread for b in balls]))
    return Ball(function([b.value for b in balls], axis=axis), like.rounding, *(function(r, axis=axis) for r in radii))


def finfo(dtype: BallDtype) -> BallDtype:
    return dtype


def concat(xs: list, axis: int = 0) -> Ball:
    return _join(np.concatenate, xs, axis)


def stack(xs: list, axis: int = 0) -> Ball:
    return _join(np.stack, xs, axis)


def reshape(x: Ball, shape: tuple[int, ...]) -> Ball:
    return x.map(lambda a: np.reshape(a, shape))


def permute_dims(x: Ball, axes: tuple[int, ...]) -> Ball:
    return x.map(lambda a: np.transpose(a, axes))


def asarray(x: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    return x if isinstance(x, Ball) else np.asarray(x, dtype=dtype, copy=copy)


def arange(*args: Any, dtype: Any = None, device: Any = None) -> np.ndarray:
    return np.arange(*args, dtype=dtype)


def any(x: Any, axis: int | None = None, keepdims: bool = False) -> np.ndarray:
    return np.any(x, axis=axis, keepdims=keepdims)


def astype(x: Any, dtype: Any) -> Any:
    """A table made in float64 takes one rounding when it meets a ball of a narrower dtype."""
    if not isinstance(dtype, BallDtype):
        return x if isinstance(x, Ball) else np.asarray(x, dtype)
    x = x if isinstance(x, Ball) else Ball(x, dtype.rounding)
    return Ball(x.value, dtype.rounding)._rounded(x.value, x.worst, x.spread)


def where(condition: Any, a: Any, b: Any) -> Any:
    if not (isinstance(a, Ball) or isinstance(b, Ball)):
        return np.where(condition, a, b)
    like = a if isinstance(a, Ball) else b
    a, b = _ball(a, like), _ball(b, like)
    return Ball(np.where(condition, a.value, b.value), like.rounding, np.where(condition, a.worst, b.worst),
                np.where(condition, a.spread, b.spread))


def max(x: Any, axis: int | None = None, keepdims: bool = False) -> np.ndarray:
    """The maximum as an exact number: softmax and LSE do not depend on the shift, so whatever was found is right."""
    return np.max(x.value if isinstance(x, Ball) else x, axis=axis, keepdims=keepdims)


@quietly
def sum(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    if not isinstance(x, Ball):
        return np.sum(x, axis=axis, keepdims=keepdims)
    how = {"axis": axis, "keepdims": keepdims}
    k, unit = x.shape[axis], x.rounding.sums
    size = np.sum(np.abs(x.value), **how)
    worst = np.sum(np.broadcast_to(x.worst, x.shape), **how)
    spread = np.sqrt(np.sum(np.broadcast_to(x.spread, x.shape) ** 2, **how))
    g = gamma(k, unit)
    own = math.sqrt(k) * unit * size
    return Ball(np.sum(x.value, **how), x.rounding, worst * (1 + g) + g * size, hypot(spread, own))


def _smooth(x: Any, function: Any, worst: Any, slope: Any) -> Any:
    if not isinstance(x, Ball):
        return function(x)
    value = function(x.value)
    return x._rounded(value, worst(x, value), slope(x, value) * x.spread, EXP_ULPS)


@quietly
def exp(x: Any) -> Any:
    """Radius v (e^w - 1)."""
    return _smooth(x, np.exp, lambda b, v: v * np.expm1(b.worst), lambda b, v: v)


@quietly
def log(x: Any) -> Any:
    """Radius -log(1 - w/x)."""
    return _smooth(x, np.log, lambda b, v: -np.log1p(-np.minimum(b.worst / b.value, 1)), lambda b, v: 1 / b.value)


@quietly
def sqrt(x: Any) -> Any:
    """Radius sqrt(x) - sqrt(x - w)."""
    return _smooth(x, np.sqrt, lambda b, v: v - np.sqrt(np.maximum(b.value - b.worst, 0)), lambda b, v: 0.5 / v)


def _turn(function: Any, angle: np.ndarray) -> Ball:
    """A cosine or sine of a float64 angle: the angle has been rounded once, the function costs a few units."""
    radius = UNIT_ROUNDOFF["float64"] * (np.abs(angle) + EXP_ULPS)
    return Ball(function(angle), Rounding(UNIT_ROUNDOFF["float64"], 0.0), radius, radius)


def cos(angle: np.ndarray) -> Ball:
    return _turn(np.cos, angle)


def sin(angle: np.ndarray) -> Ball:
    return _turn(np.sin, angle)


Ball.namespace = sys.modules[__name__]
