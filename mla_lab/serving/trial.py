"""One small layer fed through each kind of parallelism, on whatever carries the ranks, and through one process.

Every dimension is another one, biases and gates are there, requests are unequally long, one is empty at first, and
unused rows of every cache hold NaN.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Array, Backend, fresh, to_numpy
from ..cache import LatentCache
from ..config import MLAConfig, Yarn
from ..decode import forward
from ..recipe import RIGHT as RIGHT_RECIPE
from ..recipe import Recipe
from ..weights import MLAWeights, random_state
from .comm import Comm, Count
from .parallel import RIGHT, Rules, Stripe, context_parallel, data_parallel, shard, tensor_parallel, weight_bytes

CONFIG = MLAConfig(hidden_size=40, num_attention_heads=8, q_lora_rank=18, kv_lora_rank=32, qk_nope_head_dim=10,
                   qk_rope_head_dim=6, v_head_dim=14, rope_scaling=Yarn(factor=40), attention_bias=True,
                   output_gate="value")
BATCH, CAPACITY, NAN = 4, 20, float("nan")
# New tokens of each call, and how many of them are real in each request: a ragged prefill, a chunk, two steps.
CALLS = ((7, (7, 5, 0, 6)), (3, (3, 3, 3, 3)), (1, (1, 1, 1, 1)), (1, (1, 0, 1, 1)))
TOKENS = sum(tokens for tokens, _ in CALLS)
PLANS = ("tp", "dp", "cp")


@dataclass(frozen=True)
class Outcome:
    """What one rank has at the end: outputs ``[b, t, d]`` of all requests, bytes, and what it sent."""

    output: Array
    cache_bytes: int
    weight_bytes: int
    counts: dict[str, Count]


def inputs(backend: Backend, recipe: Recipe = RIGHT_RECIPE) -> tuple[MLAWeights, Array]:
    """Weights and hidden states ``[b, t, d]``, the same on every rank."""
    state = random_state(CONFIG, backend, seed=120)
    hidden = backend.asarray(fresh(121)(BATCH, TOKENS, CONFIG.hidden_size))
    return MLAWeights.from_hugging_face(state, CONFIG, recipe), hidden


def feed(hidden: Array, cache: Any, call: Callable[..., tuple[Array, Any]], xp: Any) -> tuple[Array, Any]:
    """Outputs of all of `CALLS`, one behind the other, and the cache at the end."""
    at, outputs = 0, []
    for tokens, counts in CALLS:
        out, cache = call(hidden[:, at : at + tokens, :], cache, counts)
        outputs.append(out)
        at += tokens
    return xp.concat(outputs, axis=1), cache


def one_process(weights: MLAWeights, hidden: Array, backend: Backend, recipe: Recipe = RIGHT_RECIPE) -> Outcome:
    """The reference: no ranks at all."""
    cache = LatentCache.allocate(CONFIG, BATCH, CAPACITY, backend, NAN)
    out, cache = feed(hidden, cache, lambda x, cache, counts: forward(
        x, weights, CONFIG, cache, counts=counts, recipe=recipe), backend.xp)
    return Outcome(out, cache.nbytes, weight_bytes(weights), {})


def on_rank(plan: str, comm: Comm, weights: MLAWeights, hidden: Array, backend: Backend, rules: Rules = RIGHT,
            recipe: Recipe = RIGHT_RECIPE) -> Outcome:
    """The same layer as one of several ranks under one of `PLANS`."""
    config, batch = CONFIG, BATCH
    if plan == "tp":
        weights, config = shard(weights, config, comm.rank, comm.size, rules)
    if plan == "dp":
        batch //= comm.size
    allocate = (config, batch, CAPACITY, backend)
    cache = Stripe.allocate(*allocate, comm.size, NAN) if plan == "cp" else LatentCache.allocate(*allocate, NAN)
    step = {"tp": tensor_parallel, "dp": data_parallel, "cp": context_parallel}[plan]
    out, cache = feed(hidden, cache, lambda x, cache, counts: step(
        x, weights, config, cache, comm, counts=counts, rules=rules, recipe=recipe), backend.xp)
    held = cache.cache if plan == "cp" else cache
    return Outcome(out, held.nbytes, weight_bytes(weights), comm.counts)


def distance(output: Array, reference: Array) -> float:
    """Largest difference between outputs over the largest output; infinite where one of them is not finite."""
    got, want = to_numpy(output).astype(np.float64), to_numpy(reference).astype(np.float64)
    apart = np.abs(got - want)
    return float(apart.max() / np.abs(want).max()) if np.isfinite(apart).all() else float("inf")
