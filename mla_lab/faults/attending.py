"""Faults of attention itself: masks, unused rows, lengths, the softmax, heads, and merging by LSE."""
from __future__ import annotations

import math
from collections.abc import Callable

from array_api_compat import array_namespace

from ..arrays import Array, wide
from ..recipe import keep, merge_by_lse
from .fault import Fault
from .rounded import BFLOAT16, TF32, running_sum, to_bits


def top_left(query: Array, key: Array, start: Array) -> Array:
    return (key <= query) & (start > -1)


def sees_next(query: Array, key: Array, start: Array) -> Array:
    return key <= start + query + 1


def misses_itself(query: Array, key: Array, start: Array) -> Array:
    return key < start + query


def sees_all(query: Array, key: Array, start: Array) -> Array:
    return (key > -1) & (query > -1) & (start > -1)


def from_itself_on(query: Array, key: Array, start: Array) -> Array:
    return key >= start + query


def of_all_before(rows: Array, visible: Array) -> tuple[Array, Array]:
    """The sequences of a batch laid end to end, and each sees all rows of those before it."""
    xp, (b, s, width) = array_namespace(rows), rows.shape
    t, line = visible.shape[2], xp.broadcast_to(xp.reshape(rows, (1, b * s, width)), (b, b * s, width))
    mine = xp.broadcast_to(visible, (b, 1, t, s))
    filled = xp.any(mine, axis=2, keepdims=True)  # [b, 1, 1, s]
    seen = []
    for i in range(b):
        parts = [xp.broadcast_to(filled[j : j + 1], (1, 1, t, s)) for j in range(i)] + [mine[i : i + 1]]
        parts += [xp.zeros_like(mine[:1])] * (b - 1 - i)
        seen.append(xp.concat(parts, axis=3))
    return line, xp.concat(seen, axis=0)


def next_sequence(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return (*lengths[1:], lengths[0])


def last_columns(c_kv: Array, k_rope: Array) -> Array:
    """The last r of the r + p columns of a cached row."""
    return array_namespace(c_kv).concat([c_kv, k_rope], axis=-1)[..., k_rope.shape[-1] :]


def last_of_padded(heads: Array) -> Array:
    """Heads ``[b, h, t, v]`` padded to a power of two by repeating the first ones; the last h are kept."""
    xp, h = array_namespace(heads), heads.shape[1]
    pad = 2 ** math.ceil(math.log2(h)) - h
    return xp.concat([heads[:, pad:, ...], heads[:, :pad, ...]], axis=1)


def last_of_zeros(heads: Array) -> Array:
    """The same, padded with zeros."""
    xp, h = array_namespace(heads), heads.shape[1]
    pad = 2 ** math.ceil(math.log2(h)) - h
    return xp.concat([heads[:, pad:, ...], 0 * heads[:, :pad, ...]], axis=1)


def last_of_zero_queries(latents: Array, p: Array, c_kv: Array) -> Array:
    """The same in the latent space: a query of zeros averages what it sees, and each head's W_UV meets another head."""
    xp, h = array_namespace(latents), latents.shape[1]
    pad = 2 ** math.ceil(math.log2(h)) - h
    seen = xp.astype(p[:, :1, ...] > 0, latents.dtype)  # [b, 1, t, s]
    count = xp.sum(seen, axis=-1, keepdims=True)
    mean = (seen / xp.where(count == 0, 1.0, count)) @ c_kv[:, None, ...]
    return xp.concat([latents[:, pad:, ...], *[mean] * pad], axis=1)


def read_as_tokens(heads: Array) -> Array:
    """``[b, h, t, v]`` viewed as [b, t, h, v] without moving anything."""
    xp, (b, h, t, v) = array_namespace(heads), heads.shape
    return xp.permute_dims(xp.reshape(heads, (b, t, h, v)), (0, 2, 1, 3))


def averaged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    heads = sum(wide(h) for h, _ in parts) * (1 / len(parts))
    return heads, merge_by_lse(parts)[1]


def past_and_new(start: int, keys: int) -> list[int]:
    return [0, start, keys] if 0 < start < keys else [0, keys]


def past_and_new_always(start: int, keys: int) -> list[int]:
    return [0, start, keys]


def halves(start: int, keys: int) -> list[int]:
    return [0, keys // 2, keys] if keys > 1 else [0, keys]


def blocks_of(size: int) -> Callable[[int, int], list[int]]:
    return lambda start, keys: [*range(0, keys, size), keys]


PIECES = (past_and_new, halves, *(blocks_of(size) for size in (16, 32, 64, 128)))


def in_pieces(changes: dict) -> tuple[dict, ...]:
    """The same in the pieces that code merges: past and new keys, two halves, blocks."""
    return tuple(changes | {"edges": edges} for edges in PIECES)


def base_2(lse: Array) -> Array:
    return lse * (1 / math.log(2))


def in_bfloat16(lse: Array) -> Array:
    return to_bits(lse, BFLOAT16)


def in_tf32(x: Array) -> Array:
    return to_bits(x, TF32)


DECODE = ("5.article", "5.every_split", "5.ragged", "5.paper")
SQUARE = "a prefill on an empty cache is right"
FINITE = "unused slots usually hold zeros or old finite numbers"
ONE_PIECE = "a test short enough for one piece never merges"

FAULTS = (
    Fault("mask_top_left", "the causal mask starts at the first cached key instead of ending at the last",
          "deepseek-ai/DeepSeek-V3#1536", {"visible": top_left}, DECODE, SQUARE),
    Fault("mask_sees_next", "each query sees one key too many", "ml-explore/mlx-examples#715", {"visible": sees_next},
          DECODE, "a step of one token has no next key to see"),
    Fault("mask_misses_itself", "each query misses its own key", "ml-explore/mlx-examples#715",
          {"visible": misses_itself}, DECODE, "among many keys one is hardly missed",
          ({"visible": misses_itself, "nothing": (math.nan, -math.inf)},)),
    Fault("mask_inverted", "each query sees itself and what follows it", "huggingface/transformers#38094",
          {"visible": from_itself_on}, DECODE, "the output has the right shape and size; one token alone is right"),
    Fault("no_mask", "new tokens of a chunk see each other's future", "ml-explore/mlx-examples#715",
          {"visible": sees_all}, DECODE, "decoding one token at a time is right"),
    Fault("sequences_see_each_other", "a sequence of a batch attends to the rows of those before it",
          "huggingface/transformers#46634", {"batch": of_all_before}, ("5.every_split", "5.ragged"),
          "with a batch of one it is right"),
    Fault("unused_slots_read", "unused cache rows are trusted to be harmless", "flashinfer-ai/flashinfer#941",
          {"unused": keep}, ("5.unused_slots", "5.ragged"), FINITE),
    Fault("lengths_of_the_next_sequence", "each sequence of a batch is given the length of the next one",
          "vllm-project/vllm#40766", {"lengths": next_sequence}, ("5.ragged", "5.no_keys"),
          "with equal lengths it is right"),
    Fault("value_from_last_columns", "the value taken from the last r of the r + p cached columns",
          "vllm-project/vllm#40705", {"values": last_columns}, ("4.output", "5.many", *DECODE),
          "shapes fit, and most columns are latent all the same"),
    Fault("wrong_heads_of_padded", "heads padded to a power of two, and the last ones kept instead of the first",
          "tile-ai/tilelang-mlir-ascend#96", {"heads": last_of_padded}, ("5.many", *DECODE),
          "with 16 or 128 heads nothing is padded", ({"heads": last_of_zeros}, {"latents": last_of_zero_queries})),
    Fault("heads_read_as_tokens", "head outputs [b, h, t, v] viewed as [b, t, h, v] without a transposition",
          "jsbaan/transformer-from-scratch#6", {"heads": read_as_tokens}, ("4.output", *DECODE),
          "with one token, or one head, both are the same memory"),
    Fault("softmax_sum_in_bfloat16", "the softmax's denominator is added up key by key in bfloat16",
          "ikawrakow/ik_llama.cpp#2144", {"total": running_sum}, ("5.many", "5.merge_many"),
          "up to 256 keys of equal weight the sum is right"),
    Fault("tf32", "attention's products round their inputs to 10 bits after the leading one", "pytorch/pytorch#53635",
          {"operand": in_tf32}, ("4.to_the_bit", "4.all_bits"),
          "it exists on GPUs in float32 only, and the error looks like rounding, which it is"),
    Fault("merged_without_lse", "chunks of keys averaged with equal weights", "vllm-project/vllm#27491",
          {"merge": averaged}, ("5.merge", "5.merge_many"), ONE_PIECE, in_pieces({"merge": averaged})),
    Fault("lse_in_base_2", "LSE to base 2 merged, or handed on, as if it were natural", "sgl-project/sglang#40903",
          {"lse": base_2}, ("4.lse", "5.merge", "5.many"), ONE_PIECE, in_pieces({"lse": base_2})),
    Fault("lse_in_bfloat16", "LSE rounded to bfloat16 before it is merged or handed on", "ROCm/aiter#3542",
          {"lse": in_bfloat16}, ("5.many", "5.merge_many"), "with few keys LSE is small and its rounding too",
          in_pieces({"lse": in_bfloat16})),
    Fault("lse_of_nothing_plus_infinity", "a piece without keys gets the LSE +inf instead of -inf",
          "deepseek-ai/FlashMLA#77", {"nothing": (0.0, math.inf)}, ("5.merge", "5.no_keys"),
          "no piece of a test is empty",
          ({"nothing": (0.0, math.inf), "edges": past_and_new_always}, *in_pieces({"nothing": (0.0, math.inf)}))),
    Fault("empty_row_is_nan", "a sequence without keys gives NaN instead of 0", "vllm-project/vllm#49294",
          {"nothing": (math.nan, -math.inf)}, ("5.no_keys",), "no sequence of a test is empty",
          ({"nothing": (math.nan, math.nan)},)),
)
