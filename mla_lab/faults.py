"""Known faults: the right recipe with a value replaced, and the checks that must turn red.

All but one give finite, plausible numbers (unused slots that hold NaN pass it on), and every one happened in public.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import Array, wide
from .config import MLAConfig
from .miscounts import MISCOUNTS
from .recipe import Recipe, keep, rms_norm
from .rope import HALF_SPLIT, frequencies, mscale, rotate, softmax_scale


@dataclass(frozen=True)
class Fault:
    """One way to get MLA wrong.

    Parameters
    ----------
    id : str
    what : str
        One line: what goes wrong.
    thread : str
        A public report in which it happened.
    changes : dict
        Fields of `Recipe` and the wrong value of each.
    caught_by : tuple of str
        Ids of the checks that must fail under it.
    """

    id: str
    what: str
    thread: str
    changes: dict[str, Any]
    caught_by: tuple[str, ...]

    def spoil(self, recipe: Recipe) -> Recipe:
        """``recipe`` with this fault in it."""
        return replace(recipe, **self.changes)


# --- the wrong values -------------------------------------------------------------------------------------------------

def half_split(config: MLAConfig):
    return HALF_SPLIT


def at_zero(positions: Array) -> Array:
    return positions * 0


def one_later(positions: Array) -> Array:
    return positions + 1


def no_rotation(config: MLAConfig) -> np.ndarray:
    return 0 * frequencies(config)


def ramp_of_whole_head(config: MLAConfig) -> np.ndarray:
    whole = replace(config, qk_rope_head_dim=config.qk_head_dim + config.qk_head_dim % 2)
    return frequencies(whole)[: config.qk_rope_head_dim // 2]


def mscale_on_table(config: MLAConfig) -> float:
    return 1.0 if config.rope_scaling is None else mscale(config.rope_scaling.factor, config.rope_scaling.mscale)


def scale_by(width: Callable[[MLAConfig], float]) -> Callable[[MLAConfig], float]:
    """The right scale with another width in place of n + p."""
    return lambda config: softmax_scale(config) * math.sqrt(config.qk_head_dim / width(config))


def without_mscale(config: MLAConfig) -> float:
    return 1 / math.sqrt(config.qk_head_dim)


def mscale_once(config: MLAConfig) -> float:
    return math.sqrt(softmax_scale(config) * without_mscale(config))


def swapped_mscales(config: MLAConfig) -> float:
    yarn = config.rope_scaling
    swapped = yarn and replace(yarn, mscale=yarn.mscale_all_dim, mscale_all_dim=yarn.mscale)
    return softmax_scale(replace(config, rope_scaling=swapped))


def scale_twice(config: MLAConfig) -> float:
    return softmax_scale(config) ** 2


def inverted_scale(config: MLAConfig) -> float:
    return softmax_scale(config) * config.qk_head_dim


def all_k_then_all_v(kv_b: Array, config: MLAConfig) -> tuple[Array, Array]:
    h, n = config.num_attention_heads, config.qk_nope_head_dim
    xp = array_namespace(kv_b)
    return (xp.reshape(kv_b[: h * n, :], (h, n, -1)), xp.reshape(kv_b[h * n :, :], (h, config.v_head_dim, -1)).mT)


def normed_twice(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm(rms_norm(x, weight, eps), weight, eps)


def content_only(content: Array, rope: Array) -> Array:
    return content


def top_left(query: Array, key: Array, start: Array) -> Array:
    return (key <= query) & (start > -1)


def sees_next(query: Array, key: Array, start: Array) -> Array:
    return key <= start + query + 1


def misses_itself(query: Array, key: Array, start: Array) -> Array:
    return key < start + query


def sees_all(query: Array, key: Array, start: Array) -> Array:
    return (key > -1) & (query > -1) & (start > -1)


def averaged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    heads = sum(wide(h) for h, _ in parts) * (1 / len(parts))
    return heads, parts[-1][1]


def keys_turned(keys: Array) -> Array:
    """RoPE over all channels of the rebuilt keys ``[b, h, s, n]``."""
    at = array_namespace(keys).arange(keys.shape[2], device=device(keys))
    return rotate(keys, at, 1e4 ** (-np.arange(0, keys.shape[3], 2) / keys.shape[3]))


def keys_turned_by_quarters(keys: Array) -> Array:
    """The one rotation with whole-number entries, a quarter turn a token: exact in every arithmetic."""
    xp = array_namespace(keys)
    half, odd = keys.shape[3] // 2, xp.arange(keys.shape[2], device=device(keys))[:, None] % 2 == 1
    return xp.where(odd, xp.concat([-keys[..., half:], keys[..., :half]], axis=-1), keys)


def first_channels(latents: Array, up: Array, k: int) -> Array:
    return latents[:, :k] @ up[:k, :]


def zero_tolerance(sigma: Array, rows: int, columns: int, radius: float) -> float:
    return 0.0


SCALES = ("3.scale", "4.logits", "4.weights", "4.output", "4.lse", "4.mqa")
DECODE = ("5.article", "5.every_split", "5.ragged", "5.paper")

FAULTS: tuple[Fault, ...] = (
    *(Fault(m.id, m.what, m.thread, {"elements": m.elements}, (*m.caught_by, "5.grows"))
      for m in MISCOUNTS if m.elements),
    # case 2
    Fault("rope_on_rebuilt_keys", "RoPE over all channels of the keys rebuilt from the latent", "fxmeng/TransMLA#2",
          {"expanded_keys": keys_turned}, ("2.keys", "2.joint", "2.rope_key", "2.model")),
    Fault("quarter_turns_on_rebuilt_keys", "the same with quarter turns, which have no rounding", "fxmeng/TransMLA#2",
          {"expanded_keys": keys_turned_by_quarters}, ("2.keys", "2.exact")),
    Fault("zero_rank_tolerance", "singular values of rounding size counted as rank", "numpy/numpy#28716",
          {"rank_tolerance": zero_tolerance}, ("2.keys", "2.joint", "2.rope_key", "2.model")),
    Fault("latent_sliced", "the latent cut to its first channels instead of its largest directions",
          "marin-community/marin#7424", {"truncate": first_channels}, ("2.eckart_young",)),
    # case 3: rotation
    Fault("half_split_pairing", "rope channels paired (i, i + p/2) where the weights were trained on (2i, 2i + 1)",
          "deepseek-ai/DeepSeek-V3#938", {"pairing": half_split}, ("3.pairing",)),
    Fault("one_side_half_split", "queries paired one way, keys the other", "vllm-project/vllm#26995",
          {"key_pairing": half_split}, ("3.pairing", "5.article")),
    Fault("no_rotation", "rope channels never turned", "NeuraLegion/shainet#111", {"frequencies": no_rotation},
          ("3.pairing", "3.no_fixed_matrix", "3.absorb_through", "3.yarn", "5.every_split")),
    Fault("rope_key_cached_unrotated", "the rope key goes into the cache before its rotation",
          "ml-explore/mlx-lm#1189", {"key_position": at_zero},
          ("2.rotated", "3.relative", "3.no_fixed_matrix", *DECODE)),
    Fault("query_at_zero", "every query turned as if it stood at position 0", "ml-explore/mlx-lm#1189",
          {"query_position": at_zero}, ("3.relative", *DECODE)),
    Fault("query_one_later", "the query turned one position too far", "ml-explore/mlx-lm#1189",
          {"query_position": one_later}, DECODE),
    Fault("rotary_table_scaled", "cos and sin multiplied by mscale although mscale_all_dim cancels it",
          "NVIDIA/Megatron-LM#1429", {"table_scale": mscale_on_table}, ("3.scale", "3.norm", "5.article")),
    Fault("yarn_ramp_of_whole_head", "YaRN's ramp computed for n + p channels instead of p", "mlc-ai/pith-train#68",
          {"frequencies": ramp_of_whole_head}, ("3.yarn", "5.article")),
    Fault("rope_term_dropped", "the content term alone makes the logit", "deepseek-ai/DeepSeek-V3#18",
          {"terms": content_only}, ("3.two_terms", "4.logits", "4.to_the_bit", "5.article")),
    # case 4: scale
    Fault("scale_by_nope", "softmax scale n^-1/2", "AI-Hypercomputer/maxtext#1370",
          {"scale": scale_by(lambda c: c.qk_nope_head_dim)}, SCALES),
    Fault("scale_by_cached_width", "softmax scale (r + p)^-1/2, the width of an absorbed key",
          "flashinfer-ai/flashinfer#551", {"scale": scale_by(lambda c: c.cached_width)}, SCALES),
    Fault("scale_inverted", "logits multiplied by (n + p)^1/2", "AI-Hypercomputer/maxtext#1370",
          {"scale": inverted_scale}, SCALES),
    Fault("scale_twice", "the query is scaled and the kernel scales again", "NVIDIA/Megatron-LM#3698",
          {"scale": scale_twice}, SCALES),
    Fault("mscale_missing", "YaRN's mscale squared left out of the softmax scale", "onnxruntime/mobius#548",
          {"scale": without_mscale}, ("3.scale", "5.article")),
    Fault("mscale_not_squared", "mscale applied once instead of squared", "onnxruntime/mobius#548",
          {"scale": mscale_once}, ("3.scale", "5.article")),
    Fault("mscales_swapped", "mscale used where mscale_all_dim is meant", "NVIDIA/Megatron-LM#1429",
          {"scale": swapped_mscales}, ("3.scale",)),
    # case 4: the up-projections and the decode path
    Fault("all_k_then_all_v", "kv_b_proj read as all heads' W_UK and then all W_UV", "PaddlePaddle/PaddleFleet#1679",
          {"split_kv_b": all_k_then_all_v},
          ("4.logits", "4.output", "4.mqa", "4.to_the_bit", "4.premultiplied", "4.ladder", "5.article")),
    Fault("cache_expanded_every_step", "decode rebuilds all keys and values from the latent cache",
          "huggingface/transformers#47761", {"decode_mode": "naive"}, ("4.memory",)),
    # case 5
    Fault("latent_not_normed", "the latent is cached before its RMSNorm", "NVIDIA/Megatron-LM#1620",
          {"norm_latent": keep}, (*DECODE, "5.model_layer")),
    Fault("latent_normed_twice", "a normed latent is normed again", "paiml/aprender#2085",
          {"norm_latent": normed_twice}, DECODE),
    Fault("mask_top_left", "the causal mask starts at the first cached key instead of ending at the last",
          "deepseek-ai/DeepSeek-V3#1536", {"visible": top_left}, DECODE),
    Fault("mask_sees_next", "each query sees one key too many", "ml-explore/mlx-examples#715", {"visible": sees_next},
          DECODE),
    Fault("mask_misses_itself", "each query misses its own key", "ml-explore/mlx-examples#715",
          {"visible": misses_itself}, DECODE),
    Fault("no_mask", "new tokens of a chunk see each other's future", "ml-explore/mlx-examples#715",
          {"visible": sees_all}, DECODE),
    Fault("merged_without_lse", "chunks of keys averaged with equal weights", "vllm-project/vllm#27491",
          {"merge": averaged}, ("5.merge",)),
    Fault("unused_slots_read", "unused cache rows are trusted to be harmless", "flashinfer-ai/flashinfer#941",
          {"unused": keep}, ("5.unused_slots", "5.ragged")),
)
