"""How much arithmetic attention is and how many bytes it must move: the two numbers of a roofline.

Conventions, the same everywhere here:

* A multiplication with its addition is two FLOPs. Only matrix products count; a softmax is a few FLOPs a score.
* Bytes are the least that must cross the memory bus: each input read once, each result written once. Keys and values of
  the absorbed form are the same bytes. Partial results of split-KV are not counted (nor in FlashMLA's own benchmark).
* ``causal`` counts only the pairs of query and key that are visible. FlashMLA's benchmark counts all of them
  (``tests/test_flash_mla_dense_decoding.py``); for one new token there is no difference.
* Everything is for one layer and one request; a batch is a sum. ``cached`` tokens lie in the cache before the step,
  ``new`` ones come with it. 16-bit numbers unless ``itemsize`` says otherwise.

Letters: h heads, d hidden, q query latent, r latent, n nope, p rope, v value.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import MLAConfig
from ..errors import InputError, positive_int
from ..weights import shapes

FORMS = ("absorbed", "naive", "mha")


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes; works add up, and a batch is a multiple."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Work:
        return Work(self.flops * times, self.bytes * times)

    __rmul__ = __mul__


def visible_pairs(new: int, cached: int, causal: bool = True) -> int:
    """Pairs of new query and key: query i sees the ``cached`` tokens and the first i + 1 new ones."""
    positive_int("new", new)
    positive_int("cached", cached, least=0)
    return new * cached + (new * (new + 1) // 2 if causal else new * new)


def absorbed_kernel(config: MLAConfig, new: int, cached: int, itemsize: int = 2, causal: bool = True) -> Work:
    """What `mla_lab.kernels.decode` does: ``2 h (2r + p)`` FLOPs a pair; cached rows are read once for all heads."""
    h, r, p = config.num_attention_heads, config.kv_lora_rank, config.qk_rope_head_dim
    rows, query, out = (cached + new) * (r + p), new * h * (r + p), new * h * r
    return Work(2 * h * (2 * r + p) * visible_pairs(new, cached, causal), itemsize * (rows + query + out))


def mha_kernel(config: MLAConfig, new: int, cached: int, itemsize: int = 2, causal: bool = True) -> Work:
    """Attention over keys and values that every head has of its own: ``2 h (n + p + v)`` FLOPs a pair."""
    h, width, v = config.num_attention_heads, config.qk_head_dim, config.v_head_dim
    rows, query, out = (cached + new) * h * (width + v), new * h * width, new * h * v
    return Work(2 * h * (width + v) * visible_pairs(new, cached, causal), itemsize * (rows + query + out))


def expand(config: MLAConfig, tokens: int, itemsize: int = 2) -> Work:
    """Keys and values of all heads out of ``tokens`` cached rows, ``2 h r (n + v)`` FLOPs a row, written to memory."""
    h, r, n, v = config.num_attention_heads, config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    written = tokens * h * (config.qk_head_dim + v)  # the one rope key is copied to each head
    return Work(2 * h * r * (n + v) * tokens, itemsize * (tokens * config.cached_width + h * r * (n + v) + written))


def absorb(config: MLAConfig, new: int, itemsize: int = 2) -> Work:
    """W_UK on the queries and W_UV on the outputs of ``new`` tokens: the FLOPs of `expand` for as many rows."""
    h, r, n, v = config.num_attention_heads, config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    return Work(2 * h * r * (n + v) * new, itemsize * (h * r * (n + v) + new * h * (n + r + r + v)))


def attention(
    config: MLAConfig, new: int, cached: int, form: str = "absorbed", itemsize: int = 2, causal: bool = True
) -> Work:
    """Attention from projected queries and cached rows to head outputs. One new token is decode, many are prefill.

    Parameters
    ----------
    form : str
        'absorbed': `absorb` and `absorbed_kernel`; 'naive': a latent cache that is expanded whole in every step;
        'mha': a cache of keys and values already expanded, to which the new tokens' are added.
    """
    more = (config, new, cached, itemsize, causal)
    if form == "absorbed":
        return absorb(config, new, itemsize) + absorbed_kernel(*more)
    if form == "naive":
        return expand(config, cached + new, itemsize) + mha_kernel(*more)
    if form == "mha":
        return expand(config, new, itemsize) + mha_kernel(*more)
    raise InputError(f"form must be one of {', '.join(FORMS)}, not {form!r}.")


def projections(config: MLAConfig, tokens: int, itemsize: int = 2) -> Work:
    """What every form shares: all weight matrices but W_UK and W_UV, applied to ``tokens`` hidden states."""
    matrices = {name: shape for name, shape in shapes(config).items() if len(shape) == 2 and "kv_b_proj" not in name}
    weights = sum(map(math.prod, matrices.values()))
    return Work(2 * weights * tokens, itemsize * (weights + sum(sum(shape) for shape in matrices.values()) * tokens))


def crossover(config: MLAConfig, cached: int | None = None) -> float:
    """New tokens at which expanding the cache costs as many FLOPs as absorbing: below it, absorb.

    Expanding costs ``2 h r (n + v)`` a cached row, once; absorbing costs ``2 h ((2r + p) - (n + p + v))`` more a pair.
    Without ``cached`` the cache is taken as long, where the number is ``r (n + v) / (2r - n - v)`` whatever h, p and
    the context are. With it, T solves ``cached r (n + v) = (2r - n - v) (T cached + T (T + 1) / 2)``.
    """
    r, both = config.kv_lora_rank, config.qk_nope_head_dim + config.v_head_dim
    if 2 * r <= both:
        return math.inf  # an absorbed pair is no dearer, so absorbing always wins
    limit = r * both / (2 * r - both)
    if cached is None:
        return limit
    half = positive_int("cached", cached, least=0) + 0.5
    return math.sqrt(half * half + 2 * cached * limit) - half


@dataclass(frozen=True)
class Premultiplied:
    """Weights of one layer, in elements: factored as they are stored, or multiplied in advance."""

    query_factored: int  # W_UQ and W_UK
    query_merged: int  # for each head a q x r matrix
    output_factored: int  # W_UV and W_O
    output_merged: int  # for each head an r x d matrix

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs a token, factored and merged: each weight is used once."""
        return 2 * (self.query_factored + self.output_factored), 2 * (self.query_merged + self.output_merged)

    @property
    def ratio(self) -> float:
        """How many times more weights to read, and FLOPs to do, the merged form has."""
        factored, merged = self.flops
        return merged / factored


def premultiplied(config: MLAConfig) -> Premultiplied:
    """Why W_UQ W_UK and W_UV W_O are not multiplied in advance: it undoes the factoring through n and v channels.

    (W_DQ stands apart: a norm lies between it and W_UQ. Without query compression, W_Q takes the place of W_UQ.)
    """
    h, r, n, v = config.num_attention_heads, config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    d, q = config.hidden_size, config.q_lora_rank or config.hidden_size
    return Premultiplied(q * h * n + h * n * r, h * q * r, h * r * v + h * v * d, h * r * d)
