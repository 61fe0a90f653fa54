"""What an implementation with given conventions makes of a case."""
from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np

from ..arrays import Array, get_backend
from ..attention import Projected, attend, visible_keys
from ..ball import Rounding
from ..bounds import Ball, ball
from ..cache import LatentCache
from ..decode import attend_in_chunks, forward, full_recompute
from ..fp8 import BLOCK
from ..recipe import RIGHT, Recipe
from ..weights import MLAWeights
from .cases import Case, DecodeCase, LayerCase

Outputs = tuple[np.ndarray, ...]  # of each call of a layer; output and LSE of a decode call


def weights_of(state: Mapping[str, Array], recipe: Recipe = RIGHT) -> dict[str, Array]:
    """``state`` with FP8 codes multiplied out."""
    scaled = {name.removesuffix("_scale_inv"): scales for name, scales in state.items() if name.endswith("_scale_inv")}
    return {name: recipe.dequantize(w, scaled[name], BLOCK).astype(np.float64) if name in scaled else w
            for name, w in state.items() if not name.endswith("_scale_inv")}


@np.errstate(all="ignore")
def predict(case: Case, recipe: Recipe = RIGHT) -> Outputs:
    """The outputs in float64: one ``[b, t, d]`` a call of a layer; heads ``[b, t, h, v]`` and LSE of a decode call."""
    return _layer(case, recipe) if isinstance(case, LayerCase) else _decode(case, recipe)


def _layer(case: LayerCase, recipe: Recipe) -> Outputs:
    weights = MLAWeights.from_hugging_face(weights_of(case.state, recipe), case.config, recipe)
    tokens = sum(x.shape[1] for x in case.hidden)
    cache, outputs = LatentCache.allocate(case.config, case.hidden[0].shape[0], tokens, get_backend("numpy")), []
    for x in case.hidden:
        out, cache = forward(x, weights, case.config, cache, recipe=recipe)
        outputs.append(out)
    return tuple(outputs)


def _decode(case: DecodeCase, recipe: Recipe, cast=lambda x: x) -> Outputs:
    config, lengths, t, keys = case.config, case.lengths, case.q_nope.shape[1], case.kv_cache.shape[1]
    kv_b = np.concatenate([case.w_uk, case.w_uv.mT], axis=1).reshape(-1, config.kv_lora_rank)
    w_uk, w_uv = recipe.split_kv_b(kv_b, config)
    used = np.arange(keys) < np.array(recipe.lengths(lengths))[:, None]
    rows = recipe.unused(case.kv_cache, used)
    visible = visible_keys([n - t for n in lengths], lengths, t, keys, rows, recipe)
    rows, visible = recipe.batch(rows, visible)
    by_head = (cast(np.swapaxes(x, 1, 2)) for x in (case.q_nope, case.q_rope))
    q = Projected(*by_head, None, None)
    c_kv, k_rope = cast(rows[..., : config.kv_lora_rank]), cast(rows[..., config.kv_lora_rank :])
    up = SimpleNamespace(w_uk=cast(w_uk), w_uv=cast(w_uv))
    if recipe.edges is None:
        done = attend(q, c_kv, k_rope, up.w_uk, up.w_uv, config, visible, recipe=recipe)
        heads, lse = done.heads, done.lse
    else:
        *edges, _ = recipe.edges(max(min(lengths) - t, 0), max(lengths))
        heads, lse = attend_in_chunks(q, c_kv, k_rope, up, config, visible, [*edges, rows.shape[1]], recipe=recipe)
    if isinstance(heads, Ball):
        return heads.map(lambda x: np.swapaxes(x, 1, 2)), lse.map(lambda x: np.swapaxes(x, 1, 2))
    return np.swapaxes(heads, 1, 2), np.swapaxes(lse, 1, 2)


@np.errstate(all="ignore")
def radius(case: Case, rounding: Rounding, recipe: Recipe) -> Outputs:
    """How far `rounding` may move each output of the right conventions, by `Ball.likely`.

    ``recipe`` is RIGHT with the ``store`` of `mla_lab.bounds`.
    """
    if isinstance(case, DecodeCase):
        return tuple(x.likely() for x in _decode(case, recipe, lambda x: ball(x, rounding)))
    weights = MLAWeights.from_hugging_face(
        {name: ball(w, rounding) for name, w in weights_of(case.state).items()}, case.config, recipe)
    whole = full_recompute(ball(np.concatenate(case.hidden, axis=1), rounding), weights, case.config, recipe=recipe)
    likely, ends = np.broadcast_to(whole.likely(), whole.shape), np.cumsum([x.shape[1] for x in case.hidden])
    return tuple(np.split(likely, ends[:-1], axis=1))
