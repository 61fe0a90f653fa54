"""Random requests, and the highest rate of them at which enough are in time."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .requests import Rates, Request, Result
from .simulate import simulate


def poisson(rate: float, number: int, prompt: int, outputs: int, seed: int = 0, spread: float = 0.0) -> list[Request]:
    """Requests that come at random, ``rate`` a second on average.

    Lengths have the means ``prompt`` and ``outputs``; with ``spread`` their logarithms are normal with that deviation.
    The same seed draws the same gaps and lengths at every rate, so that rates can be compared.
    """
    import numpy as np
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(size=number)) / rate
    lengths = [np.maximum(1, np.rint(mean * np.exp(spread * rng.standard_normal(number) - spread**2 / 2))).astype(int)
               for mean in (prompt, outputs)]
    return [Request(float(a), int(p), int(o)) for a, p, o in zip(at, *lengths, strict=True)]


@dataclass(frozen=True)
class Sweep:
    """One arrangement under rising load: the rates (requests a second), and what came out at each."""

    name: str
    rates: tuple[float, ...]
    results: tuple[Result, ...]

    def goodput(self, ttft: float, tpot: float, share: float = 0.9) -> float:
        """The highest of the rates at which at least ``share`` of the requests are in time, 0 if there is none.

        A request is in time if its first token takes at most ``ttft`` seconds and the others ``tpot`` on average.
        """
        good = [rate for rate, result in zip(self.rates, self.results, strict=True)
                if result.attained(ttft, tpot) >= share]
        return max(good, default=0.0)


def sweep(name: str, at: Sequence[float], draw: Callable[[float], list[Request]], rates: Rates, policy: str, nodes: int,
          prefill_nodes: int = 0) -> Sweep:
    """Simulate an arrangement at each rate of ``at``, with the requests that ``draw(rate)`` gives."""
    return Sweep(name, tuple(at), tuple(simulate(draw(rate), rates, policy, nodes, prefill_nodes) for rate in at))
