"""One MLA layer on several ranks: heads dealt out, requests dealt out, or cached tokens dealt out.

* Tensor parallelism: a rank has 1/N of the heads and **all** of the latent, for the latent has no head axis. Outputs
  are partial sums over heads, so one all-reduce adds them up.
* Data-parallel attention: a rank has whole requests, all heads, and the latents of its own requests only.
* Context parallelism: a rank has all heads and every N-th cached token; parts are merged by their log-sum-exp, exactly
  as chunks of keys are on one rank (`mla_lab.decode.attend_in_chunks`).

In all three a rank runs the same functions as a single process does, on less.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from array_api_compat import array_namespace, device

from ..arrays import Array, Backend
from ..attention import attend, project, project_out
from ..cache import LatentCache, check_counts
from ..config import MLAConfig
from ..decode import check_hidden, forward, positions_from
from ..errors import InputError
from ..recipe import RIGHT as RIGHT_RECIPE
from ..recipe import Recipe, merge_by_lse
from ..weights import MLAWeights
from .comm import Comm, nbytes

BY_HEAD = ("w_uq", "w_qr", "w_uk", "w_uv", "w_gate")  # first axis: heads


def own_share(total: int, rank: int, size: int) -> slice:
    """The consecutive part of ``total`` heads or requests that belongs to a rank."""
    return slice(rank * total // size, (rank + 1) * total // size)


def first_rank_only(rank: int) -> bool:
    """The output bias is added once, or the sum over ranks would hold it ``size`` times."""
    return rank == 0


def summed(comm: Comm, partial: Array) -> Array:
    """Outputs of different heads add up in the output projection."""
    return comm.all_reduce(partial)


def latent_elements(config: MLAConfig, size: int) -> int:
    """Values that each tensor-parallel rank caches for a token in a layer: all of them."""
    return config.cached_width


def striped(index: Array, rank: int, size: int) -> Array:
    """Absolute position of a rank's cached token number ``index``: token s lies on rank s mod size."""
    return index * size + rank


def natural(lse: Array) -> Array:
    """The LSE travels as a natural logarithm, which is what the merge takes the exponential of."""
    return lse


@dataclass(frozen=True)
class Rules:
    """What an implementation for several ranks has to get right. The defaults are right."""

    columns: Callable[[int, int, int], slice] = own_share  # of the output projection, in heads
    has_bias: Callable[[int], bool] = first_rank_only
    combine: Callable[[Comm, Array], Array] = summed
    requests: Callable[[int, int, int], slice] = own_share
    elements: Callable[[MLAConfig, int], int] = latent_elements
    key_position: Callable[[Array, int, int], Array] = striped
    lse: Callable[[Array], Array] = natural
    merge: Callable[[list[tuple[Array, Array]]], tuple[Array, Array]] = merge_by_lse


RIGHT = Rules()


# --- heads dealt out --------------------------------------------------------------------------------------------------

def shard(weights: MLAWeights, config: MLAConfig, rank: int, size: int, rules: Rules = RIGHT
          ) -> tuple[MLAWeights, MLAConfig]:
    """A rank's weights and the layer that it then is: one with fewer heads.

    Cut by head are the up-projections, the gate and, by columns, the output projection; down-projections and norms are
    whole on every rank.

    Raises
    ------
    InputError
        If the heads do not spread evenly.
    """
    h, v = config.num_attention_heads, config.v_head_dim
    if h % size:
        raise InputError(f"num_attention_heads {h} must be a multiple of the number of ranks, {size}.")
    mine, out = own_share(h, rank, size), rules.columns(h, rank, size)
    cut = {name: getattr(weights, name)[mine, ...] for name in BY_HEAD if getattr(weights, name) is not None}
    cut["w_o"] = weights.w_o[:, out.start * v : out.stop * v]
    if not rules.has_bias(rank):
        cut["b_o"] = None
    return replace(weights, **cut), replace(config, num_attention_heads=h // size)


def weight_bytes(weights: MLAWeights) -> int:
    """Bytes of all matrices and vectors."""
    arrays = (getattr(weights, field.name) for field in fields(weights))
    return sum(nbytes(array) for array in arrays if array is not None)


def tensor_parallel(
    hidden: Array, weights: MLAWeights, config: MLAConfig, cache: LatentCache, comm: Comm, mode: str | None = None,
    counts: Sequence[int] | None = None, rules: Rules = RIGHT, recipe: Recipe = RIGHT_RECIPE,
) -> tuple[Array, LatentCache]:
    """`mla_lab.decode.forward` on every rank's own heads, and one all-reduce of ``[b, t, d]``.

    ``weights`` and ``config`` are those that `shard` returns; ``hidden`` is the same on every rank, and so is what
    ``cache`` then holds.
    """
    partial, cache = forward(hidden, weights, config, cache, mode, counts, recipe)
    return rules.combine(comm, partial), cache


# --- requests dealt out -----------------------------------------------------------------------------------------------

def data_parallel(
    hidden: Array, weights: MLAWeights, config: MLAConfig, cache: LatentCache, comm: Comm, mode: str | None = None,
    counts: Sequence[int] | None = None, rules: Rules = RIGHT, recipe: Recipe = RIGHT_RECIPE,
) -> tuple[Array, LatentCache]:
    """A rank's own requests through the whole layer, and one all-gather, so that each rank has all outputs.

    The gather stands for what follows in a real model, whose experts are dealt out and need every token.
    """
    b, t, _ = check_hidden(hidden, weights, config)
    if b % comm.size:
        raise InputError(f"a batch of {b} requests must be a multiple of the number of ranks, {comm.size}.")
    mine = rules.requests(b, comm.rank, comm.size)
    out, cache = forward(hidden[mine, ...], weights, config, cache, mode, check_counts(counts, b, t)[mine], recipe)
    return array_namespace(out).concat(comm.all_gather(out), axis=0), cache


# --- cached tokens dealt out ------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Stripe:
    """A rank's part of the cache: token s of a request lies on rank s mod size. ``lengths`` counts all tokens."""

    cache: LatentCache
    lengths: tuple[int, ...]

    @classmethod
    def allocate(cls, config: MLAConfig, batch: int, capacity: int, backend: Backend, size: int, fill: float = 0.0
                 ) -> Stripe:
        """Room on one of ``size`` ranks for its share of ``capacity`` tokens."""
        return cls(LatentCache.allocate(config, batch, -(-capacity // size), backend, fill), (0,) * batch)

    def append(self, c_kv: Array, k_rope: Array, counts: Sequence[int], rank: int, size: int) -> Stripe:
        """Keep those of the new tokens that belong to ``rank``."""
        xp, at = array_namespace(c_kv), {"device": device(c_kv)}
        own = [list(range((rank - length) % size, n, size)) for length, n in zip(self.lengths, counts, strict=True)]
        width = max([1, *map(len, own)])
        padded = [xp.asarray(index + [0] * (width - len(index)), **at) for index in own]

        def pick(x: Array) -> Array:
            return xp.stack([xp.take(x[i, ...], index, axis=0) for i, index in enumerate(padded)])

        cache = self.cache.append(pick(c_kv), pick(k_rope), [len(index) for index in own])
        return Stripe(cache, tuple(n + new for n, new in zip(self.lengths, counts, strict=True)))


def context_parallel(
    hidden: Array, weights: MLAWeights, config: MLAConfig, stripe: Stripe, comm: Comm, mode: str | None = None,
    counts: Sequence[int] | None = None, rules: Rules = RIGHT, recipe: Recipe = RIGHT_RECIPE,
) -> tuple[Array, Stripe]:
    """Attend to a rank's own tokens with all heads, gather heads and LSE of all ranks, and merge them.

    ``hidden`` and ``weights`` are the same on every rank. A rank without a visible token contributes LSE -inf.
    """
    b, t, _ = check_hidden(hidden, weights, config)
    counts, xp, at = check_counts(counts, b, t), array_namespace(hidden), {"device": device(hidden)}
    positions = positions_from(stripe.lengths, t, hidden)  # [b, t]
    q = project(hidden, weights, config, positions, recipe)
    stripe = stripe.append(q.c_kv, q.k_rope, counts, comm.rank, comm.size)
    cache = stripe.cache
    s = max([1, *cache.lengths])
    index = xp.arange(s, **at)
    used = index[None, :] < xp.asarray(list(cache.lengths), **at)[:, None]  # [b, s]
    rows = recipe.unused(cache.rows[:, :s, :], used)
    keys = rules.key_position(index, comm.rank, comm.size)  # [s]
    visible = (keys[None, None, :] <= positions[:, :, None]) & used[:, None, :]  # [b, t, s]
    done = attend(q, rows[..., : cache.latent], rows[..., cache.latent :], weights.w_uk, weights.w_uv, config,
                  visible[:, None, :, :], mode or recipe.decode_mode, recipe)
    parts = zip(comm.all_gather(done.heads), comm.all_gather(rules.lse(done.lse)), strict=True)
    heads, _ = rules.merge(list(parts))
    out = project_out(heads, hidden, weights, recipe)
    if min(counts) < t:  # padding gives 0, as it does in `forward`
        real = xp.arange(t, **at)[None, :] < xp.asarray(list(counts), **at)[:, None]
        out = xp.where(real[..., None], out, 0.0)
    return out, stripe
