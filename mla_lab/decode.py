"""The whole layer: prefill, chunks of new tokens, single steps, and the full recompute they must agree with."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from array_api_compat import array_namespace, device

from .arrays import Array, expect_shape, same_kind
from .attention import MODES, Attended, Projected, attend, project, project_out, visible_keys
from .cache import LatentCache, check_counts
from .config import MLAConfig
from .errors import InputError
from .recipe import RIGHT, Recipe
from .weights import MLAWeights


def positions_from(starts: Sequence[int], tokens: int, like: Array, recipe: Recipe = RIGHT) -> Array:
    """Absolute positions ``[b, t]`` of the next ``tokens`` tokens of rows that hold ``starts`` tokens already."""
    xp, at = array_namespace(like), {"device": device(like)}
    return recipe.position(xp.asarray(list(starts), **at)[:, None], xp.arange(tokens, **at)[None, :])


def forward(
    hidden: Array, weights: MLAWeights, config: MLAConfig, cache: LatentCache, mode: str | None = None,
    counts: Sequence[int] | None = None, recipe: Recipe = RIGHT,
) -> tuple[Array, LatentCache]:
    """Run the layer on new tokens: a prefill on an empty cache, a chunk, or one decode step.

    Parameters
    ----------
    hidden : array [b, t, d]
    cache : LatentCache
        Its buffer is written to; continue with the returned one.
    mode : 'naive' or 'absorb', optional
        By default what the recipe says, which is 'absorb'.
    counts : sequence of int, optional
        How many of the t tokens are real in each batch row (right-padded); the outputs of padding are 0.

    Returns
    -------
    output : array [b, t, d]
    cache : LatentCache
    """
    out, _, cache = attend_new(hidden, weights, config, cache, mode, counts, recipe)
    return out, cache


def attend_new(
    hidden: Array, weights: MLAWeights, config: MLAConfig, cache: LatentCache, mode: str | None = None,
    counts: Sequence[int] | None = None, recipe: Recipe = RIGHT,
) -> tuple[Array, Attended, LatentCache]:
    """`forward`, with the attention's inner results (weights, LSE) as well."""
    b, t, _ = check_hidden(hidden, weights, config)
    same_kind(hidden=hidden, cache=cache.rows)
    counts, mode = check_counts(counts, b, t), mode or recipe.decode_mode
    expect_shape("cache.rows", cache.rows, (b, None, config.cached_width), "this hidden state and configuration")
    if mode not in MODES:  # before anything is written to the cache
        raise InputError(f"mode must be one of {', '.join(MODES)}, not {mode!r}.")
    q = project(hidden, weights, config, positions_from(cache.lengths, t, hidden, recipe), recipe)
    before, starts, cache = cache, cache.lengths, cache.append(q.c_kv, q.k_rope, counts)
    s = max(max(cache.lengths), 1)  # rows beyond every length need not be read at all
    xp, at = array_namespace(hidden), {"device": device(hidden)}
    used = xp.arange(s, **at)[None, :] < xp.asarray(list(recipe.lengths(cache.lengths)), **at)[:, None]  # [b, s]
    rows = recipe.unused(cache.rows[:, :s, :], used)
    visible = visible_keys(starts, cache.lengths, t, s, hidden, recipe)
    rows, visible = recipe.batch(rows, visible)
    keys = (rows[..., : cache.latent], rows[..., cache.latent :])
    if recipe.edges is None:
        done = attend(q, *keys, weights.w_uk, weights.w_uv, config, visible, mode, recipe)
    else:
        heads, lse = attend_in_chunks(
            q, *keys, weights, config, visible, recipe.edges(min(starts), rows.shape[1]), mode, recipe)
        done = Attended(heads, lse, None, None)
    out = project_out(done.heads, hidden, weights, recipe)
    written = recipe.cached(q, hidden, weights)
    if written[0] is not q.c_kv or written[1] is not q.k_rope:
        cache = before.append(*written, counts)
    if min(counts) < t:  # a bias, or a gate of what padding holds, must not show
        real = xp.arange(t, **at)[None, :] < xp.asarray(list(counts), **at)[:, None]
        out = xp.where(real[..., None], out, 0.0)
    return out, done, cache


def full_recompute(
    hidden: Array, weights: MLAWeights, config: MLAConfig, mode: str = "naive", recipe: Recipe = RIGHT
) -> Array:
    """The oracle: ``[b, t, d]`` for all tokens at once, from position 0, without any cache."""
    b, t, _ = check_hidden(hidden, weights, config)
    q = project(hidden, weights, config, positions_from((0,) * b, t, hidden, recipe), recipe)
    visible = visible_keys((0,) * b, (t,) * b, t, t, hidden, recipe)
    done = attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, config, visible, mode, recipe)
    return project_out(done.heads, hidden, weights, recipe)


def attend_in_chunks(
    q: Projected, c_kv: Array, k_rope: Array, weights: MLAWeights, config: MLAConfig, visible: Array,
    edges: Sequence[int], mode: str = "absorb", recipe: Recipe = RIGHT,
) -> tuple[Array, Array]:
    """Attend to the keys piece by piece, cut at ``edges`` (0, ..., s), and merge the pieces by LSE: heads and LSE.

    Merging is what chunked prefill, split-KV kernels and context parallelism have in common. A piece of no keys is
    skipped.
    """
    if list(edges) != sorted(edges) or edges[0] != 0 or edges[-1] != c_kv.shape[1] or edges[-1] == 0:
        raise InputError(f"edges must rise from 0 to the {c_kv.shape[1]} cached tokens, not {list(edges)}.")
    parts, empty = [], 0
    for low, high in pairwise(edges):
        if low == high:
            empty += 1
            continue
        piece = attend(q, c_kv[:, low:high, :], k_rope[:, low:high, :], weights.w_uk, weights.w_uv, config,
                       visible[..., low:high], mode, recipe)
        parts.append((piece.heads, piece.lse))
    weight, lse = recipe.nothing
    if lse != -float("inf"):  # otherwise a piece of no keys counts for nothing
        xp, (heads, like) = array_namespace(parts[0][1]), parts[0]
        parts = [(xp.full_like(heads, weight), xp.full_like(like, lse))] * empty + parts
    return parts[0] if len(parts) == 1 else recipe.merge(parts)


def check_hidden(hidden: Array, weights: MLAWeights, config: MLAConfig) -> tuple[int, int, int]:
    """The shape of ``hidden``, or one sentence on what is wrong with it."""
    expect_shape("hidden", hidden, (None, None, config.hidden_size), "a layer with this hidden_size")
    if 0 in hidden.shape:
        raise InputError(f"hidden has shape {tuple(hidden.shape)}, but needs at least one row and one token.")
    same_kind(hidden=hidden, weights=weights.w_o)
    return hidden.shape
