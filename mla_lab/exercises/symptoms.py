"""What somebody sees of an engine with one fault in it: five experiments, for the last exercise of notebook 05."""
from __future__ import annotations

import numpy as np

from ..arrays import fresh, get_backend
from ..attention import attend, project, visible_keys
from ..cache import LatentCache
from ..checks.common import SMALL
from ..decode import attend_new
from ..faults import FAULTS
from ..recipe import RIGHT, Recipe
from ..weights import MLAWeights, random_state

CULPRIT = "rope_key_cached_unrotated"  # what check_culprit asks for
_BACKEND = get_backend("numpy")


def _attended(tokens: np.ndarray, recipe: Recipe, start: int = 0):
    """Attention of ``tokens [1, t, d]``, all at once and without a cache, from position ``start`` on."""
    weights, t = MLAWeights.from_hugging_face(random_state(SMALL, _BACKEND, 60), SMALL, recipe), tokens.shape[1]
    q = project(tokens, weights, SMALL, start + np.arange(t)[None, :], recipe)
    seen = visible_keys((0,), (t,), t, t, tokens, recipe)
    return attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, SMALL, seen, recipe=recipe)


def _stepwise(tokens: np.ndarray, recipe: Recipe) -> np.ndarray:
    """Head outputs of the same tokens, one call for each."""
    weights = MLAWeights.from_hugging_face(random_state(SMALL, _BACKEND, 60), SMALL, recipe)
    cache, heads = LatentCache.allocate(SMALL, 1, tokens.shape[1], _BACKEND), []
    for at in range(tokens.shape[1]):
        _, step, cache = attend_new(tokens[:, at : at + 1, :], weights, SMALL, cache, recipe=recipe)
        heads.append(step.heads)
    return np.concatenate(heads, axis=2)


def symptoms(fault: str = CULPRIT) -> dict[str, bool]:
    """Five statements about an engine under ``fault``, and whether each is true of it."""
    recipe = {f.id: f for f in FAULTS}[fault].spoil(RIGHT)
    tokens = fresh(61)(1, 5, SMALL.hidden_size)
    copies, one = np.repeat(tokens[:, :1], 5, axis=1), tokens[:, :1]
    same = np.allclose  # faults here move outputs by a tenth and more, rounding by 1e-15
    heads = _attended(tokens, recipe).heads
    return {
        "one token at position 0 comes out right": same(_attended(one, recipe).heads, _attended(one, RIGHT).heads),
        "five tokens at once come out right": same(heads, _attended(tokens, RIGHT).heads),
        "five single steps give what the five at once give": same(_stepwise(tokens, recipe), heads),
        "moving all five by 100 positions changes nothing": same(_attended(tokens, recipe, 100).heads, heads),
        "five copies of one token: the last gives each a weight of 0.2":
            same(_attended(copies, recipe).weights[..., -1, :], 0.2),
    }
