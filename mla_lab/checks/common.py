"""What the cases share: small distinct dimensions, the conventions under test, and verdicts from distances."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..arrays import Array, Backend
from ..ball import Ball, Rounding
from ..bounds import Distance, ball, store
from ..config import MLAConfig, Yarn
from ..recipe import RIGHT, Recipe
from ..verdict import Given, Setting, Verdict
from ..weights import MLAWeights, random_state

# Every dimension another one, so that no two axes can be swapped unseen.
SMALL = MLAConfig(hidden_size=40, num_attention_heads=3, q_lora_rank=18, kv_lora_rank=32, qk_nope_head_dim=10,
                  qk_rope_head_dim=6, v_head_dim=14, rope_scaling=Yarn(factor=40))
BALLS = replace(RIGHT, store=store)  # the right conventions, carrying error radii


def under_test(setting: Setting) -> Recipe:
    """The recipe of ``setting``, storing tensors as its backend does."""
    return replace(setting.recipe, store=setting.backend.store)


def right(backend: Backend) -> Recipe:
    """The right conventions on ``backend``, for the oracle side of a check."""
    return replace(RIGHT, store=backend.store)


def state_of(given: Given | None, config: MLAConfig, backend: Backend, seed: int) -> dict[str, Array]:
    """The weights that were read, on ``backend``; without any, weights drawn from ``seed``."""
    if given is None:
        return random_state(config, backend, seed)
    return {name: backend.asarray(values) for name, values in given.arrays.items()}


def up_projections(given: Given, config: MLAConfig) -> Array:
    """``kv_b_proj`` of the layer that was read, cut to the first heads where ``config`` has fewer than the layer."""
    rows = config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)
    return given.arrays["kv_b_proj.weight"][:rows]


def balls(backend: Backend, *arrays: Array) -> list[Ball]:
    """Exact balls around arrays as ``backend`` stores them."""
    return [ball(x, Rounding.of(backend)) for x in arrays]


def ball_weights(
    state: dict[str, Array], config: MLAConfig, backend: Backend, make: Callable[[Array, Rounding], Ball] = ball
) -> MLAWeights:
    """The weights of a layer as exact balls."""
    rounding = Rounding.of(backend)
    return MLAWeights.from_hugging_face({name: make(w, rounding) for name, w in state.items()}, config)


def judge(claim: str, distance: Distance, note: str = "") -> Verdict:
    """A verdict on a distance; what was seen is its largest element."""
    return Verdict(
        claim, distance.largest, 0.0, distance.bound, distance.ok, "; ".join(filter(None, (note, distance.note)))
    )


def worst_of(distances: list[Distance]) -> Distance:
    """The distance that comes nearest to its bound, or leaves it furthest."""
    return max(distances, key=lambda d: (d.kind == "vacuous", d.share))
