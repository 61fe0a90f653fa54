"""A quantised latent cache in attention: what the error of the rows becomes in logits and outputs."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Array, Backend, round_to_bfloat16, to_numpy
from ..attention import Attended, Projected, attend
from ..ball import Ball, Rounding
from ..bounds import ball
from ..checks.case4_absorption import Heads, head_arrays
from ..checks.common import BALLS
from ..config import MLAConfig
from ..errors import unknown
from ..models import get_model
from ..recipe import RIGHT, Recipe
from .quantize import STORING, Stored, Storing, quantize

HEADS, TOKENS = 4, 3
ROPE = ("bf16", "own scale", "shared scale")
BF16_STEP = 2.0**-7  # between neighbours, over the smallest number that has such a step


@dataclass(frozen=True)
class Scene:
    """Queries and up-projections at DeepSeek-V3's head dimensions, and the rows of a cache in float64."""

    config: MLAConfig
    heads: Heads
    c_kv: np.ndarray  # [s, r]
    k_rope: np.ndarray  # [s, p]


def scene(backend: Backend, c_kv: np.ndarray, rope_times: float = 1.0, seed: int = 120) -> Scene:
    """The last `TOKENS` of the cached tokens ask, with `HEADS` heads; rope keys are standard normal times a factor."""
    config = replace(get_model("DeepSeek-V3").mla, num_attention_heads=HEADS)
    heads = head_arrays(config, backend, TOKENS, len(c_kv), seed)
    rows = to_numpy(backend.asarray(c_kv)), to_numpy(backend.asarray(rope_times * to_numpy(heads.q.k_rope)[0]))
    return Scene(config, heads, *(x.astype(np.float64) for x in rows))


def store_rope(k_rope: np.ndarray, c_kv: np.ndarray, how: str, form: str, rules: Storing) -> np.ndarray:
    """The rope keys as they are read back: 16 bits, or quantised with a scale of their own or the latent's."""
    if how not in ROPE:
        raise unknown("way to store the rope key", how, ROPE)
    if how == "bf16":
        return round_to_bfloat16(k_rope.astype(np.float32))
    source = rules.shared_scale(c_kv, k_rope) if how == "shared scale" else None
    return quantize(k_rope, form, "token", rules, source).read(rules)


def attended(scene: Scene, c_kv: Array, k_rope: Array, recipe: Recipe = RIGHT) -> Attended:
    """Attention over rows ``[1, s, r]`` and ``[1, s, p]``, absorbed."""
    heads, config = scene.heads, scene.config
    return attend(heads.q, c_kv, k_rope, *heads.split(recipe, config), config, heads.visible, recipe=recipe)


def exact(scene: Scene, backend: Backend, recipe: Recipe = RIGHT) -> Attended:
    """Attention over the rows before they were stored."""
    return attended(scene, backend.asarray(scene.c_kv[None]), backend.asarray(scene.k_rope[None]), recipe)


def through_cache(scene: Scene, backend: Backend, form: str, granularity: str, rope: str = "bf16",
                  recipe: Recipe = RIGHT, rules: Storing = STORING) -> tuple[Attended, Stored]:
    """Attention over rows that went through a quantised cache, and what was stored of the latents."""
    stored = quantize(scene.c_kv, form, granularity, rules)
    k_rope = store_rope(scene.k_rope, scene.c_kv, rope, form, rules)
    return attended(scene, backend.asarray(stored.read(rules)[None]), backend.asarray(k_rope[None]), recipe), stored


def radius(scene: Scene, backend: Backend, moved: np.ndarray) -> Attended:
    """How far results may move if each latent may move by ``moved [s, r]``: the same attention on balls.

    The likely radius takes the error of each value as uniform, of standard deviation ``moved / sqrt(3)``, and
    independent of the others. A bf16 rope key moves by half a step too.
    """
    q, rounding = scene.heads.q, Rounding.of(backend)
    turned = BF16_STEP / 2 * np.abs(scene.k_rope)
    rows = (BALLS.store(Ball(x[None], rounding, r[None], r[None] / math.sqrt(3)))
            for x, r in ((scene.c_kv, moved), (scene.k_rope, turned)))
    spheres = Heads(Projected(ball(q.q_nope, rounding), ball(q.q_rope, rounding), None, None),
                    ball(scene.heads.kv_b, rounding), to_numpy(scene.heads.visible))
    return attended(replace(scene, heads=spheres), *rows, BALLS)


