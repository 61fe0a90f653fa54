"""DeepSeek's published day of serving V3 and R1, recomputed from its own few numbers.

Source: deepseek-ai/open-infra-index@56d8685, day 6 of the open-source week; the 24 hours to noon (UTC+8) of 28 February
2025. A printed number stands for all that round to it, so a recomputed one is an interval, and agrees if the published
number lies in it.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from ..models import get_model
from .capacity import Deployment
from .gpus import get_gpu
from .parameters import parameters
from .step import attention_flops, decode_step

SECONDS, GPUS_A_NODE = 86_400, 8


@dataclass(frozen=True)
class Printed:
    """A number as it is printed, and what its last digit is worth; 0 for a number that is exact."""

    value: float
    step: float = 0.0

    @property
    def ends(self) -> tuple[float, float]:
        return self.value - self.step / 2, self.value + self.step / 2


@dataclass(frozen=True)
class Day:
    """What was published; tokens, dollars, tokens a second and node."""

    nodes: Printed = Printed(226.75, 0.01)  # mean over the day, of 8 H800
    gpu_hour: Printed = Printed(2.0)  # dollars, assumed there
    inputs: Printed = Printed(608e9, 1e9)
    hits: Printed = Printed(342e9, 1e9)  # of the inputs, found on disk
    outputs: Printed = Printed(168e9, 1e9)
    price_hit: Printed = Printed(0.14e-6)  # dollars a token, R1's prices
    price_miss: Printed = Printed(0.55e-6)
    price_output: Printed = Printed(2.19e-6)
    node_input: Printed = Printed(73.7e3, 100)  # tokens a second while it prefills, hits included
    node_output: Printed = Printed(14.8e3, 100)  # while it decodes
    context: Printed = Printed(4989, 1)  # mean cached tokens per output token
    slowest: Printed = Printed(20)  # tokens a second of one request: 20 to 22
    fastest: Printed = Printed(22)


# What was published about the same day and follows from the above.
FOLLOWS = {"cost in dollars": Printed(87_072, 1), "revenue in dollars": Printed(562_027, 1),
           "margin in %": Printed(545, 1), "inputs found on disk in %": Printed(56.3, 0.1),
           "nodes": Printed(226.75, 0.01)}


def cost(nodes: float, gpu_hour: float) -> float:
    return nodes * GPUS_A_NODE * 24 * gpu_hour


def revenue(inputs: float, hits: float, outputs: float, price_hit: float, price_miss: float, price_output: float
            ) -> float:
    return hits * price_hit + (inputs - hits) * price_miss + outputs * price_output


def share_found(inputs: float, hits: float) -> float:
    return 100 * hits / inputs


def nodes_at_work(inputs: float, outputs: float, node_input: float, node_output: float) -> float:
    """Nodes that prefill all inputs, and nodes that decode all outputs, at the rates of one node."""
    return inputs / SECONDS / node_input + outputs / SECONDS / node_output


def span(formula: Callable[..., float], *numbers: Printed) -> tuple[float, float]:
    """Least and largest value of a formula that rises or falls in each of its printed numbers."""
    values = [formula(*ends) for ends in product(*(dict.fromkeys(number.ends) for number in numbers))]
    return min(values), max(values)


def recomputed(day: Day | None = None, sums: Callable[..., float] = revenue) -> dict[str, tuple[float, float]]:
    """Each number of `FOLLOWS` as the interval that the published inputs allow."""
    d = day or Day()
    money = (d.inputs, d.hits, d.outputs, d.price_hit, d.price_miss, d.price_output)

    def earned(*numbers: float) -> float:
        spent = cost(*numbers[:2])
        return 100 * (sums(*numbers[2:]) - spent) / spent
    exact = replace(d.nodes, step=0.0)
    return {"cost in dollars": span(cost, exact, d.gpu_hour), "revenue in dollars": span(sums, *money),
            "margin in %": span(earned, exact, d.gpu_hour, *money),
            "inputs found on disk in %": span(share_found, d.inputs, d.hits),
            "nodes": span(nodes_at_work, d.inputs, d.outputs, d.node_input, d.node_output)}


def agrees(published: Printed, interval: tuple[float, float]) -> bool:
    """Whether a number that rounds to the published one lies in the interval."""
    low, high = published.ends
    return low <= interval[1] and interval[0] <= high


@dataclass(frozen=True)
class OnAGpu:
    """What the published decode rate means for one GPU, at the middle of the published numbers."""

    tokens_per_second: float
    users: float
    cache_gb: float
    attention_tflops: float
    cache_tb_per_second: float
    roofline_tokens_per_second: float

    @property
    def share_of_roofline(self) -> float:
        return self.tokens_per_second / self.roofline_tokens_per_second


def on_a_gpu(day: Day | None = None, gpus: int = 144) -> OnAGpu:
    """Decode on 144 H800 with data-parallel attention and dealt-out experts (EP144, DP144), against its roofline."""
    d, v3 = day or Day(), get_model("DeepSeek-V3")
    rate = d.node_output.value / GPUS_A_NODE
    users = rate * 2 / (d.slowest.value + d.fastest.value)
    deployment = Deployment(v3, get_gpu("H800"), gpus, "dp", int(d.context.value), parameters(v3))
    step = decode_step(deployment, round(users) * gpus)
    token = float(deployment.token_bytes()) * d.context.value
    return OnAGpu(rate, users, users * token / 1e9, rate * attention_flops(v3, d.context.value) / 1e12,
                  rate * token / 1e12, step.tokens_per_second / gpus)
