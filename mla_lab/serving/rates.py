"""What a node does in a second, from the roofline of its GPUs; every number can be replaced."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .capacity import WEIGHT_DTYPES, Deployment
from .requests import Rates
from .step import NETWORK_GB, NODE, Step, decode_step


@dataclass(frozen=True)
class Link:
    """What joins nodes: GB/s of a node's network cards together, and whether layers are sent as they are computed."""

    gb: float = NODE * NETWORK_GB
    by_layer: bool = True


def prefill_flops(d: Deployment, tokens: float) -> tuple[float, float]:
    """FLOP of a prompt: products with weights, and causal attention with the keys expanded.

    A pair of query and key costs 2(n + p + v) a head for MLA, 4w with heads of width w; token i sees i keys. The output
    head is applied to the last token only and not counted.
    """
    m, p = d.model.mla, d.parameters
    pair = 2 * (m.qk_head_dim + m.v_head_dim) if m else 4 * d.model.head_dim
    return (2 * tokens * (p.active - (p.head or p.embedding)),
            d.model.cache_layers * d.model.num_attention_heads * pair * tokens * (tokens + 1) / 2)


def weight_flops(d: Deployment, efficiency: float) -> float:
    """FLOP/s of all GPUs together in products with weights."""
    return d.gpus * d.gpu.flops(float(WEIGHT_DTYPES[d.weight_dtype][0])) * efficiency


def prefill_seconds(d: Deployment, prompts: Sequence[int], efficiency: float = 1.0) -> float:
    """The least time in which all GPUs together prefill ``prompts`` at once; the weights are read once.

    The work is taken to spread evenly, and its communication to hide behind it.
    """
    work = [prefill_flops(d, tokens) for tokens in prompts]
    products = sum(linear for linear, _ in work) / weight_flops(d, efficiency)
    attention = sum(pairs for _, pairs in work) / (d.gpus * d.gpu.flops(2) * efficiency)
    return max(decode_step(d, max(1, sum(prompts)), efficiency).weights, products) + attention


def transfer_seconds(d: Deployment, tokens: int, link: Link) -> float:
    """Seconds for a prompt's cache to cross ``link``."""
    return tokens * float(d.token_bytes()) / (link.gb * 1e9)


def left_after_prefill(prefill: float, transfer: float, layers: int, by_layer: bool = True) -> float:
    """What of a ``transfer`` is left when the prefill ends (s).

    Layer by layer, a layer's cache travels while the next layers are computed. What is left is the last layer's part
    or, where the link is the slower one, all that it is behind.
    """
    return max(transfer / layers, transfer + prefill / layers - prefill) if by_layer else transfer


def node_rates(d: Deployment, efficiency: float = 1.0, link: Link | None = None, slots: int | None = None,
               batch_tokens: int = 8192, chunk: int = 2048) -> Rates:
    """The rates of one node of ``d.gpus`` GPUs.

    Requests in a decode step are taken to hold ``d.context`` tokens each. A step with prompt tokens in it reads the
    weights once for both; attention of prompt tokens is counted as if their prompt began with them.
    """
    link, layers = link or Link(), d.model.num_hidden_layers

    @cache
    def decode(users: int) -> Step:
        return decode_step(d, users, efficiency)

    def step(users: int) -> float:
        return decode(users).seconds

    @cache
    def prefill(prompts: tuple[int, ...]) -> float:
        return prefill_seconds(d, prompts, efficiency)

    @cache
    def mixed(users: int, tokens: int) -> float:
        linear, pairs = prefill_flops(d, tokens)
        products, read = linear / weight_flops(d, efficiency), decode(users + tokens).weights
        attention = pairs / (d.gpus * d.gpu.flops(2) * efficiency)
        if not users:
            return max(read, products) + attention
        s = decode(users)
        return max(read, products + s.products) + max(s.cache, s.attention) + s.communication + attention

    @cache
    def transfer(tokens: int) -> float:
        return left_after_prefill(prefill((tokens,)), transfer_seconds(d, tokens, link), layers, link.by_layer)

    return Rates(prefill, step, mixed, transfer, d.users() if slots is None else slots, batch_tokens, chunk)
