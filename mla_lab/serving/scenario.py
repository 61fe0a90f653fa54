"""The serving scenario of notebook 13: DeepSeek-V3 on four nodes, under three arrangements and rising load."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..models import get_model
from .capacity import Deployment
from .gpus import get_gpu
from .parameters import parameters
from .rates import node_rates
from .requests import Rates, Request
from .simulate import simulate
from .workload import Sweep, poisson, sweep

ARRANGEMENTS = (("prefill first", "prefill-first", 0), ("chunked prefill", "chunked", 0),
                ("2 + 2 nodes apart", "apart", 2))


@dataclass(frozen=True)
class Scenario:
    """Everything that is assumed; every number can be replaced.

    Parameters
    ----------
    gpu, gpus : str, int
        A node; attention is data-parallel, weights are in fp8 and the cache in bf16.
    nodes : int
    efficiency : float
        Share of the published peaks that is reached.
    prompt, outputs, spread : int, int, float
        Mean lengths in tokens, and the deviation of their logarithms.
    requests, seed : int
    rates : tuple of float
        Requests a second of all nodes together.
    """

    gpu: str = "H200"
    gpus: int = 8
    nodes: int = 4
    efficiency: float = 0.5
    prompt: int = 2048
    outputs: int = 128
    spread: float = 0.3
    requests: int = 1500
    seed: int = 1
    rates: tuple[float, ...] = field(default=tuple(15.0 * i for i in range(1, 9)))

    def deployment(self) -> Deployment:
        v3 = get_model("DeepSeek-V3")
        return Deployment(v3, get_gpu(self.gpu), self.gpus, "dp", self.prompt + self.outputs // 2, parameters(v3))

    def node(self) -> Rates:
        return node_rates(self.deployment(), self.efficiency)

    def draw(self, rate: float) -> list[Request]:
        return poisson(rate, self.requests, self.prompt, self.outputs, self.seed, self.spread)


def unchanged(rates: Rates) -> Rates:
    return rates


def all_at_once(scenario: Scenario | None = None, change: Callable[[Rates], Rates] = unchanged) -> dict[str, float]:
    """Seconds until everything is done if all requests come at the same time, for every arrangement and split."""
    return dict(_all_at_once(scenario or Scenario(), change))


def sweeps(scenario: Scenario | None = None, change: Callable[[Rates], Rates] = unchanged) -> dict[str, Sweep]:
    """Every arrangement at every rate, by name; ``change`` replaces rates of a node."""
    return dict(_sweeps(scenario or Scenario(), change))


# These take seconds, and a check and a figure ask for the same.
@lru_cache(maxsize=8)
def _all_at_once(s: Scenario, change: Callable[[Rates], Rates]) -> dict[str, float]:
    rates = change(s.node())
    every = [*ARRANGEMENTS[:2], *((f"{n} + {s.nodes - n} nodes apart", "apart", n) for n in range(1, s.nodes))]
    results = {name: simulate([replace(request, arrival=0.0) for request in s.draw(1.0)], rates, policy, s.nodes, split)
               for name, policy, split in every}
    return {name: result.seconds for name, result in results.items()}


@lru_cache(maxsize=8)
def _sweeps(s: Scenario, change: Callable[[Rates], Rates]) -> dict[str, Sweep]:
    rates = change(s.node())
    return {name: sweep(name, s.rates, s.draw, rates, policy, s.nodes, prefill_nodes)
            for name, policy, prefill_nodes in ARRANGEMENTS}
