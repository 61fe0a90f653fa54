"""Ways to get flash decode wrong, as right parts with one replaced. Most of them happened in public."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from ..arrays import Array, round_to_bfloat16, to_numpy
from ..faults import Fault
from ..recipe import merge_by_lse
from . import decode
from .keys import Scratch
from .scheduler import Schedule, greedy
from .tiled import Running


class WrongSign(Running):
    """Rescales by exp(new - old)."""

    def take(self, logits: Array, values: Array, scratch: Scratch) -> None:
        old = to_numpy(self.top)
        super().take(logits, values, scratch)
        grown = np.where(np.isfinite(old), to_numpy(self.top) - old, 0.0)
        for array in (self.total, self.summed):
            array *= type_of(array, np.exp(2 * grown))


class NoRescale(Running):
    """Raises the maximum and leaves the sums as they are."""

    def take(self, logits: Array, values: Array, scratch: Scratch) -> None:
        old, total, summed = to_numpy(self.top), self.total + 0.0, self.summed + 0.0
        super().take(logits, values, scratch)
        lost = np.where(np.isfinite(old), -np.expm1(old - to_numpy(self.top)), 0.0)
        self.total += total * type_of(total, lost)
        self.summed += summed * type_of(summed, lost)


def type_of(like: Array, values: np.ndarray) -> Array:
    """``values`` in the library and dtype of ``like``."""
    return array_namespace(like).asarray(values, dtype=like.dtype)


def base_two(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return merge_by_lse([(out, lse * math.log2(math.e)) for out, lse in parts])


def averaged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return sum(out for out, _ in parts) * (1 / len(parts)), merge_by_lse(parts)[1]


def in_float16(lse: Array) -> Array:
    return type_of(lse, to_numpy(lse).astype(np.float16))


def in_bfloat16(lse: Array) -> Array:
    return type_of(lse, round_to_bfloat16(to_numpy(lse).astype(np.float32)))


def reads_whole_pages(q: Array, cache: Array, lengths: Array, scale: float, latent: int, table: Array | None, **how):
    page = cache.shape[1] if table is not None else 1
    longer = [-(-int(n) // page) * page for n in to_numpy(lengths)]
    return decode(q, cache, longer, scale, latent, table, **how)


def last_part_missing(lengths: Sequence[int], parts: int) -> Schedule:
    return greedy(lengths, parts)[:-1]


def free_cuts(lengths: Sequence[int], parts: int) -> Schedule:
    return greedy(lengths, parts, overhead=0)


PLANTED = (
    Fault("wrong_sign", "old sums are multiplied by exp(new - old) and not by exp(old - new)",
          "deepseek-ai/FlashMLA#177", {"running": WrongSign}, ("9.online",), "with one block nothing is rescaled"),
    Fault("no_rescale", "the maximum grows and the sums of earlier blocks are left as they are", "",
          {"running": NoRescale}, ("9.online",), "where the largest logit comes first, nothing is wrong"),
    Fault("base_two", "an LSE in base 2 is merged as if it were natural", "flashinfer-ai/flashinfer#787",
          {"merge": base_two}, ("9.splits", "9.half_lse"), "splits that weigh the same hide it in the output"),
    Fault("averaged", "splits are averaged", "", {"merge": averaged}, ("9.splits", "9.half_lse"),
          "on random data all splits weigh nearly the same"),
    Fault("lse_in_float16", "the LSE of a split is stored in float16", "tile-ai/tilelang: examples/deepseek_mla",
          {"keep": in_float16}, ("9.splits",), "a tolerance of 1e-2 lets it pass"),
    Fault("lse_in_bfloat16", "the LSE of a split is stored in the dtype of the query, bfloat16",
          "vllm-project/vllm: triton_mla.py", {"keep": in_bfloat16}, ("9.splits",),
          "short contexts have a small LSE, and few splits"),
    Fault("reads_whole_pages", "the last page is read to its end", "", {"kernel": reads_whole_pages}, ("9.kernels",),
          "a fresh cache holds zeros there, and lengths in tests are multiples of the page"),
    Fault("last_part_missing", "one part less is launched than was planned for", "", {"schedule": last_part_missing},
          ("9.cover",), "the last part is often empty"),
    Fault("free_cuts", "the plan takes starting and cutting a request for free", "", {"schedule": free_cuts},
          ("9.even",), "with few long requests it hardly matters"),
    Fault("tiles_of_16", "query rows are taken to cost what they are, in steps of 16", "",
          {"tiles": lambda rows: -(-rows // 16)}, ("9.tiles",), "16 heads and one token fit either rule"),
)
