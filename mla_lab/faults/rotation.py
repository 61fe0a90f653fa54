"""Faults of the decoupled rotary part: which channels turn, how far, and by what frequencies."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
from array_api_compat import array_namespace

from ..arrays import Array
from ..config import MLAConfig
from ..rope import HALF_SPLIT, INTERLEAVED, Pairing, blended, frequencies, mscale, pairing_of, yarn_corners
from .fault import Fault
from .rounded import BFLOAT16, to_bits


def other_pairing(config: MLAConfig) -> Pairing:
    return HALF_SPLIT if pairing_of(config) is INTERLEAVED else INTERLEAVED


def at_zero(positions: Array) -> Array:
    return positions * 0


def one_later(positions: Array) -> Array:
    return positions + 1


def doubled(positions: Array) -> Array:
    return positions * 2


def index_in_call(start: Array, index: Array) -> Array:
    return index + 0 * start


def in_bfloat16(positions: Array) -> Array:
    xp = array_namespace(positions)
    return to_bits(xp.astype(positions, xp.float32), BFLOAT16)


def no_rotation(config: MLAConfig) -> np.ndarray:
    return 0 * frequencies(config)


def first_half_only(config: MLAConfig) -> np.ndarray:
    turns = frequencies(config)
    return turns * (2 * np.arange(len(turns)) < len(turns))


def of_nope_width(config: MLAConfig) -> np.ndarray:
    """theta^(-2i/n) where theta^(-2i/p) is meant."""
    plain = config.rope_theta ** (-2 * np.arange(config.qk_rope_head_dim // 2) / config.qk_nope_head_dim)
    yarn = config.rope_scaling
    return plain if yarn is None or yarn.factor <= 1 else blended(plain, yarn.factor, *yarn_corners(config))


def ramp_of(config: MLAConfig, **other: object) -> np.ndarray:
    """The right frequencies, bent between the corners of another layer."""
    yarn = config.rope_scaling
    if yarn is None or yarn.factor <= 1:
        return frequencies(config)
    return blended(without_yarn(config), yarn.factor, *yarn_corners(replace(config, **other)))


def ramp_of_whole_head(config: MLAConfig) -> np.ndarray:
    return ramp_of(config, qk_rope_head_dim=config.qk_head_dim + config.qk_head_dim % 2)


def ramp_of_base_10000(config: MLAConfig) -> np.ndarray:
    return ramp_of(config, rope_theta=1e4)


def without_yarn(config: MLAConfig) -> np.ndarray:
    return frequencies(replace(config, rope_scaling=None))


def mscale_on_table(config: MLAConfig) -> float:
    return 1.0 if config.rope_scaling is None else mscale(config.rope_scaling.factor, config.rope_scaling.mscale)


def content_only(content: Array, rope: Array) -> Array:
    return content


def on_first_head(content: Array, rope: Array) -> Array:
    """The rope term ``[b, h, t, s]`` reaches head 0 alone."""
    xp = array_namespace(content)
    return xp.concat([content[:, :1, ...] + rope[:, :1, ...], content[:, 1:, ...]], axis=1)


def past_unrotated(q, hidden: Array, weights) -> tuple[Array, Array]:
    return q.c_kv, hidden @ weights.w_kr.mT


DECODE = ("5.article", "5.every_split", "5.ragged", "5.paper")
FIRST = "a test at position 0, where every rotation is the identity, agrees"
RELATIVE = "a prefill test alone sees only distances, and these stay right"

FAULTS = (
    Fault("half_split_pairing", "rope channels paired (i, i + p/2) where the weights were trained on (2i, 2i + 1)",
          "deepseek-ai/DeepSeek-V3#938", {"pairing": other_pairing}, ("3.pairing", "5.paper"),
          "norms, ranks and relative positions are all right; " + FIRST),
    Fault("one_side_half_split", "queries paired one way, keys the other", "vllm-project/vllm#26995",
          {"key_pairing": other_pairing}, ("3.pairing", "5.article"), FIRST),
    Fault("half_of_rope_rotated", "only the first p/2 of the p rope channels are turned", "vllm-project/vllm#41185",
          {"frequencies": first_half_only}, ("3.pairing", "5.paper"),
          "the channels left out are the slow ones, which hardly move in a short test"),
    Fault("rotary_of_nope_width", "frequencies theta^(-2i/n) instead of theta^(-2i/p)",
          "junfanz1/MiniGPT-and-DeepSeek-MLA-Multi-Head-Latent-Attention#1", {"frequencies": of_nope_width},
          ("3.yarn", "5.paper"), "with n = p it is right, and both sides of a comparison share the table"),
    Fault("no_rotation", "rope channels never turned", "NeuraLegion/shainet#111", {"frequencies": no_rotation},
          ("3.pairing", "3.no_fixed_matrix", "3.absorb_through", "3.yarn", "5.paper"), FIRST),
    Fault("rope_key_cached_unrotated", "the rope key goes into the cache before its rotation",
          "ml-explore/mlx-lm#1189", {"key_position": at_zero},
          ("2.rotated", "3.relative", "3.no_fixed_matrix", *DECODE),
          "the prefill is right where it does not read its own cache", ({"key_turns": 0}, {"cached": past_unrotated})),
    Fault("rope_key_rotated_twice", "the rope key is turned when it is written and again when it is read",
          "NeuraLegion/shainet#110",
          {"key_position": doubled}, ("3.relative", *DECODE), FIRST, ({"key_turns": 2},)),
    Fault("query_at_zero", "every query turned as if it stood at position 0", "ml-explore/mlx-lm#1189",
          {"query_position": at_zero}, ("3.relative", *DECODE), FIRST),
    Fault("query_one_later", "the query turned one position too far", "ml-explore/mlx-lm#1189",
          {"query_position": one_later}, DECODE, "slow channels hide one position, and the cosine stays near 1"),
    Fault("positions_restart", "each call counts its positions from 0 again", "Blaizzy/mlx-vlm#1983",
          {"position": index_in_call}, ("5.article", "5.every_split", "5.far", "5.paper"), RELATIVE),
    Fault("positions_in_bfloat16", "angles from positions rounded to bfloat16", "huggingface/candle#3520",
          {"query_position": in_bfloat16, "key_position": in_bfloat16}, ("3.relative", "5.far"),
          "up to position 256 every whole number is exact in bfloat16"),
    Fault("rotary_table_scaled", "cos and sin multiplied by mscale although mscale_all_dim cancels it",
          "NVIDIA/Megatron-LM#1429", {"table_scale": mscale_on_table}, ("3.scale", "3.norm", "5.article"),
          "without YaRN mscale is 1"),
    Fault("yarn_ramp_of_whole_head", "YaRN's ramp computed for n + p channels instead of p", "mlc-ai/pith-train#68",
          {"frequencies": ramp_of_whole_head}, ("3.yarn", "3.yarn_base", "5.far"),
          "the fastest pairs are right, and they are the ones that move in a short test"),
    Fault("yarn_ramp_of_base_10000", "YaRN's ramp computed for theta = 10,000 whatever rope_theta says",
          "huggingface/candle#3746",
          {"frequencies": ramp_of_base_10000}, ("3.yarn_base",), "DeepSeek's own rope_theta is 10,000"),
    Fault("yarn_missing", "frequencies, table and softmax scale as if there were no YaRN", "google/flax#4512",
          {"frequencies": without_yarn, "table_scale": lambda config: 1.0,
           "scale": lambda config: 1 / config.qk_head_dim**0.5}, ("3.scale", "3.yarn", "5.article"),
          "the two public references themselves differ below the original context"),
    Fault("rope_term_dropped", "the content term alone makes the logit", "deepseek-ai/DeepSeek-V3#18",
          {"terms": content_only}, ("3.two_terms", "4.logits", "4.to_the_bit", "5.article"),
          "both modes drop it alike when they share the code"),
    Fault("rope_key_on_first_head", "the one rope key reaches head 0 and no other head", "elixir-nx/emlx#121",
          {"terms": on_first_head}, ("4.logits", "4.to_the_bit", "5.article"), "with one head it is right"),
)
