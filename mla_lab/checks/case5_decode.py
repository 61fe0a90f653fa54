"""Case 5: decoding step by step from the latent cache gives what recomputing everything gives."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..arrays import Array, Backend, fresh, to_numpy
from ..attention import attend, project, visible_keys
from ..ball import Ball, Rounding
from ..bounds import Distance, ball, compare, light_ball
from ..cache import LatentCache
from ..config import MLAConfig
from ..decode import attend_in_chunks, forward, full_recompute, positions_from
from ..recipe import Recipe
from ..verdict import Check, Given, Setting, Verdict, exactly
from ..weights import MLAWeights
from .common import BALLS, SMALL, ball_weights, balls, judge, right, state_of, under_test, worst_of

NAN = float("nan")


@lru_cache(maxsize=4)
def layer(
    config: MLAConfig, backend: Backend, tokens: int, batch: int, seed: int, given: Given | None = None,
    size: float = 1.0,
) -> tuple[dict, Array, Array, Ball]:
    """State, hidden states ``[b, t, d]`` of that size, the full recompute by the right conventions, and its ball."""
    state = state_of(given, config, backend, seed)
    hidden = backend.asarray(size * fresh(seed + 1)(batch, tokens, config.hidden_size))
    full = full_recompute(hidden, MLAWeights.from_hugging_face(state, config), config, recipe=right(backend))
    make = ball if backend.dtype == "float64" else light_ball
    sphere = make(hidden, Rounding.of(backend))
    radius = full_recompute(sphere, ball_weights(state, config, backend, make), config, recipe=BALLS)
    radius = Ball(
        radius.value, radius.rounding, radius.worst * 1.01, radius.spread * 1.01
    )  # float32 radii: to a percent
    return state, hidden, full, radius


def in_pieces(
    hidden: Array, state: dict, config: MLAConfig, backend: Backend, pieces: Sequence[int], recipe: Recipe,
    modes: Sequence[str | None] = (None,),
) -> tuple[Array, list[LatentCache]]:
    """Outputs of ``hidden`` fed in ``pieces`` through a cache whose unused slots hold NaN, and the caches between."""
    weights, at, outputs = MLAWeights.from_hugging_face(state, config, recipe), 0, []
    cache = LatentCache.allocate(config, hidden.shape[0], hidden.shape[1] + 3, backend, fill=NAN)
    caches = [cache]
    for i, size in enumerate(pieces):
        out, cache = forward(hidden[:, at : at + size, :], weights, config, cache, modes[i % len(modes)], recipe=recipe)
        outputs.append(out)
        caches.append(cache)
        at += size
    return backend.xp.concat(outputs, axis=1), caches


def compositions(total: int) -> Iterator[list[int]]:
    """Every way to cut ``total`` tokens into consecutive pieces: 2^(total - 1) of them."""
    if total == 0:
        yield []
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield [first, *rest]


def article(setting: Setting) -> Verdict:
    state, hidden, full, radius = layer(SMALL, setting.backend, 12, 1, 60)
    saw, _ = in_pieces(hidden, state, SMALL, setting.backend, [8, 1, 1, 1, 1], under_test(setting))
    return judge(ARTICLE, compare(saw, full, radius, radius), "prefill 8, decode 4, latent 32")


def grows(setting: Setting) -> Verdict:
    backend = setting.backend
    state, hidden, _, _ = layer(SMALL, backend, 12, 1, 60)
    _, caches = in_pieces(hidden, state, SMALL, backend, [8, 1, 1, 1, 1], under_test(setting))
    written = int(np.sum(~np.isnan(to_numpy(caches[-1].rows)[0, :, 0])))
    lengths, width = [c.lengths[0] for c in caches], setting.recipe.elements(SMALL)
    saw = {"rows written": written, "lengths": lengths, "row width": width}
    want = {"rows written": 12, "lengths": [0, 8, 9, 10, 11, 12], "row width": caches[-1].rows.shape[2]}
    return exactly(GROWS, saw, want)


def every_split(setting: Setting) -> Verdict:
    state, hidden, full, radius = layer(SMALL, setting.backend, 8, 2, 61)
    recipe, distances = under_test(setting), []
    for i, pieces in enumerate(compositions(8)):
        modes = ("absorb", "naive") if i % 2 else ("naive", "absorb", "absorb")
        saw, _ = in_pieces(hidden, state, SMALL, setting.backend, pieces, recipe, modes)
        distances.append(compare(saw, full, radius, radius))
        if not distances[-1].ok:
            break
    return judge(SPLITS, worst_of(distances), "all 128 ways to cut 8 tokens, modes mixed, unused slots NaN")


@np.errstate(invalid="ignore")
def ragged(setting: Setting) -> Verdict:
    """Rows of 5, 0 and 2 tokens prefilled together, then 1, 3 and 0 more; each row against its own full recompute."""
    backend, recipe, config, counts = setting.backend, under_test(setting), SMALL, ((5, 0, 2), (1, 3, 0))
    state, hidden, full, radius = layer(config, backend, 6, 3, 62)
    weights = MLAWeights.from_hugging_face(state, config, recipe)
    cache, done, distances = LatentCache.allocate(config, 3, 9, backend, fill=NAN), [0, 0, 0], []
    for new in counts:
        padded = backend.xp.stack(
            [
                backend.xp.concat([hidden[i, done[i] : done[i] + n, :], hidden[i, : 5 - n, :]], axis=0)
                for i, n in enumerate(new)
            ]
        )
        out, cache = forward(padded, weights, config, cache, counts=new, recipe=recipe)
        for i, n in enumerate(new):
            at = slice(done[i], done[i] + n)
            if n:
                distances.append(compare(out[i, :n, :], full[i, at, :], radius[i, at, :], radius[i, at, :]))
            if n < 5 and bool(np.any(to_numpy(out[i, n:, :]) != 0)):
                distances.append(Distance(np.inf, 0.0, np.inf, 0.0, "guarantee"))
            done[i] += n
    return judge(RAGGED, worst_of(distances), "rows of 6, 3 and 2 tokens, one of them empty at first; padding gives 0")


@np.errstate(invalid="ignore")  # a fault that lets NaN through is meant to
def unused_slots(setting: Setting) -> Verdict:
    backend, recipe, config = setting.backend, under_test(setting), SMALL
    state, hidden, _, _ = layer(config, backend, 8, 2, 61)
    weights, results = MLAWeights.from_hugging_face(state, config, recipe), []
    for fill in (0.0, NAN, float("inf")):
        cache = LatentCache.allocate(config, 2, 8, backend, fill=fill)
        _, cache = forward(hidden[:, :4, :], weights, config, cache, counts=(4, 1), recipe=recipe)
        out, _ = forward(hidden[:, 4:5, :], weights, config, cache, recipe=recipe)
        results.append(to_numpy(out))
    differ = sum(int(np.sum(~(r == results[0]))) for r in results[1:])
    return exactly(UNUSED, differ, 0, "outputs that change when unused slots hold NaN or infinity instead of 0")


@np.errstate(invalid="ignore")  # as above
def merged(setting: Setting) -> Verdict:
    """Three chunks of keys; for the first queries the last chunk holds no visible key at all."""
    backend, recipe, config = setting.backend, under_test(setting), SMALL
    state, hidden, _, _ = layer(config, backend, 8, 2, 61)

    def pieces(hidden, weights, recipe, edges):
        q = project(hidden, weights, config, positions_from((0, 0), 8, hidden), recipe)
        seen = visible_keys((0, 0), (8, 5), 8, 8, hidden, recipe)
        if edges is None:
            done = attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, config, seen, "naive", recipe)
            return done.heads, done.lse
        return attend_in_chunks(q, q.c_kv, q.k_rope, weights, config, seen, edges, "absorb", recipe)

    whole = pieces(hidden, MLAWeights.from_hugging_face(state, config), right(backend), None)
    saw = pieces(hidden, MLAWeights.from_hugging_face(state, config, recipe), recipe, (0, 3, 4, 8))
    spheres, weights = balls(backend, hidden)[0], ball_weights(state, config, backend)
    radii = [pieces(spheres, weights, BALLS, edges) for edges in (None, (0, 3, 4, 8))]
    distances = [compare(saw[i], whole[i], *(r[i] for r in radii)) for i in (0, 1)]
    return judge(MERGE, worst_of(distances), "outputs and LSE; keys cut 3 + 1 + 4")


def model_layer(setting: Setting) -> Verdict:
    """The model's own layer at full width, in float32 unless that is too coarse: float64 takes twice the memory."""
    coarse = setting.backend.with_dtype("float32") if setting.backend.dtype == "float64" else setting.backend
    distance = _at_full_width(setting, coarse)
    if distance.kind == "vacuous" and coarse is not setting.backend:
        coarse, distance = setting.backend, _at_full_width(setting, setting.backend)
    c = setting.config
    return judge(MODEL, distance, f"hidden {c.hidden_size}, {c.num_attention_heads} heads, {coarse.dtype}")


def _at_full_width(setting: Setting, backend: Backend) -> Distance:
    state, hidden, full, radius = layer(setting.config, backend, 6, 1, 63, setting.state)
    recipe, distances = replace(setting.recipe, store=backend.store), []
    for pieces, modes in (([3, 1, 1, 1], (None,)), ([2, 4], ("absorb", "naive"))):
        saw, _ = in_pieces(hidden, state, setting.config, backend, pieces, recipe, modes)
        distances.append(compare(saw, full, radius, radius))
        if not distances[-1].ok:
            break
    return worst_of(distances)


ARTICLE = "prefill of 8 and 4 decode steps give the outputs of a full recompute"
GROWS = "the cache grows by one row a step, and each row is what the formula counts"
SPLITS = "every way to split the tokens into prefill, chunks and steps gives the same outputs, in both modes"
RAGGED = "rows of unequal length in one batch, empty ones too, come out as if they were alone"
UNUSED = "what lies in unused slots of the cache cannot reach the output"
MERGE = "attention over chunks of keys, merged by LSE, equals attention over all of them"
MODEL = "the model's own layer at full width decodes as it recomputes"

CHECKS = (
    Check("5.article", ARTICLE, article), Check("5.grows", GROWS, grows), Check("5.every_split", SPLITS, every_split),
    Check("5.ragged", RAGGED, ragged), Check("5.unused_slots", UNUSED, unused_slots), Check("5.merge", MERGE, merged),
    Check("5.model_layer", MODEL, model_layer),
)
