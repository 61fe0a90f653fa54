"""Error bounds that come from the data: run the formula itself on balls and read off the radius.

``Ball.worst`` is a guarantee and decides wherever it is smaller than the quantity itself. Where a chain is so long that
it is not (it is then *vacuous*), ``Ball.likely`` decides and the verdict says so; where both are vacuous, the check
fails.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from . import ball_namespace as _  # noqa: F401 - gives Ball its functions
from .arrays import Array, to_numpy
from .ball import FAILURE, Ball, Rounding, hypot, quietly


def ball(x: Array, rounding: Rounding) -> Ball:
    """An exact input: ``x`` as it is stored, in whatever library and dtype, with float64 arithmetic from here on."""
    return Ball(to_numpy(x).astype(np.float64, copy=False), rounding)


def light_ball(x: Array, rounding: Rounding) -> Ball:
    """An exact input whose radii are computed in float32, for layers of full size."""
    return Ball(to_numpy(x).astype(np.float32, copy=False), rounding)


def store(x: Ball) -> Ball:
    """What `Recipe.store` is for a ball: one rounding to the stored dtype."""
    unit = x.rounding.stored
    if not unit:
        return x
    own = unit * np.abs(x.value)
    return Ball(x.value, x.rounding, x.worst + own + unit * x.worst, hypot(x.spread, own))


def spectral_radii(x: Ball) -> dict[str, float]:
    """How far rounding may move any singular value of ``x [m, k]``, by Weyl's inequality.

    The guarantee is the Frobenius norm of ``worst``. The likely radius is Tropp's bound on the norm of a matrix with
    independent entries (Found. Comput. Math. 12 (2012) 389, theorem 4.1), exceeded with
    probability `FAILURE` if they are.
    """
    spread = np.broadcast_to(x.spread, x.shape).astype(np.float64)
    size = max(np.sqrt(np.sum(spread**2, axis=axis)).max() for axis in (0, 1))
    return {"guarantee": float(np.linalg.norm(np.broadcast_to(x.worst, x.shape))),
            "likely": float(size * math.sqrt(2 * math.log(sum(x.shape) / FAILURE)))}


@dataclass(frozen=True)
class Distance:
    """How far results lie from a reference, against the radius that decided.

    ``share`` is the largest distance divided by its bound; ``size`` the root mean square of the reference.
    """

    largest: float
    bound: float
    share: float
    size: float
    kind: str  # "guarantee", "likely" or "vacuous"

    @property
    def ok(self) -> bool:
        return self.kind != "vacuous" and self.share <= 1

    @property
    def note(self) -> str:
        """Which radius decided and how much of it was used."""
        if self.kind == "vacuous":
            return f"vacuous: the bound {self.bound:.1e} is as large as the quantity itself (rms {self.size:.1e})"
        tail = "" if self.kind == "guarantee" else ", which takes errors as independent"
        return f"uses {self.share:.0e} of the {'guaranteed' if self.kind == 'guarantee' else 'likely'} bound{tail}"


@quietly
def compare(result: Array, reference: Array, *radii: Ball) -> Distance:
    """Hold ``result`` against ``reference``; each ball bounds one of the two against the exact value.

    A NaN or infinity in ``result`` that is not in ``reference`` is an infinite distance.
    """
    got, want = to_numpy(result).astype(np.float64), to_numpy(reference).astype(np.float64)
    if got.shape != want.shape:
        return Distance(math.inf, 0.0, math.inf, 0.0, "guarantee")
    both_empty = (got == want) & np.isinf(want)  # the LSE of a query that sees no key
    distance = np.where(both_empty, 0.0, np.abs(got - want))
    distance = np.where(np.isnan(distance), np.inf, distance)
    size = float(np.sqrt(np.mean(np.where(np.isfinite(want), want, 0.0) ** 2)))
    for kind in ("guarantee", "likely"):
        radius = [b.worst if kind == "guarantee" else b.likely() for b in radii]
        bound = np.broadcast_to(sum(np.nan_to_num(r, nan=np.inf, posinf=np.inf) for r in radius), distance.shape)
        typical = float(np.sqrt(np.mean(np.where(both_empty, 0.0, bound) ** 2)))
        if typical < size:
            share = np.where(distance == 0, 0.0, distance / bound)
            return Distance(float(distance.max()), float(bound.max()), float(share.max()), size, kind)
    return Distance(float(distance.max()), float(bound.max()), math.inf, size, "vacuous")
