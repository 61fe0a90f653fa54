"""Faults of the weights and the norms: how kv_b_proj is read, what is normed, what an FP8 block is worth."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace

from ..arrays import Array, narrow, wide
from ..config import MLAConfig
from ..fp8 import E4M3, spread
from ..recipe import normed_latent, rms_norm, split_per_head
from .fault import Fault


def all_k_then_all_v(kv_b: Array, config: MLAConfig) -> tuple[Array, Array]:
    h, n = config.num_attention_heads, config.qk_nope_head_dim
    xp = array_namespace(kv_b)
    return (xp.reshape(kv_b[: h * n, :], (h, n, -1)), xp.reshape(kv_b[h * n :, :], (h, config.v_head_dim, -1)).mT)


def value_rows_first(kv_b: Array, config: MLAConfig) -> tuple[Array, Array]:
    """Each head's first v rows taken as W_UV and its last n rows as W_UK."""
    v = config.v_head_dim
    per_head = array_namespace(kv_b).reshape(kv_b, (config.num_attention_heads, v + config.qk_nope_head_dim, -1))
    return per_head[:, v:, :], per_head[:, :v, :].mT


def transposed(kv_b: Array, config: MLAConfig) -> tuple[Array, Array]:
    return split_per_head(kv_b.mT if kv_b.shape[0] == kv_b.shape[1] else kv_b, config)


def transposed_per_head(key: bool, value: bool) -> Callable[[Array, MLAConfig], tuple[Array, Array]]:
    """W_UK read as [r, n], W_UV as [v, r], where they are square."""
    def split(kv_b: Array, config: MLAConfig) -> tuple[Array, Array]:
        w_uk, w_uv = split_per_head(kv_b, config)
        return tuple(w.mT if wrong and w.shape[1] == w.shape[2] else w for w, wrong in ((w_uk, key), (w_uv, value)))
    return split


def latent_as_it_is(latent: Array, rope_key: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    return latent, rope_key


def latent_twice(latent: Array, rope_key: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    return rms_norm(rms_norm(latent, weight, eps), weight, eps), rope_key


def over_joint(both: bool) -> Callable[..., tuple[Array, Array]]:
    """The mean square taken over r + p channels; the rope key divided by it as well, or not."""
    def norm(latent: Array, rope_key: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        xp, x, k = array_namespace(latent), wide(latent), wide(rope_key)
        squares = xp.sum(x * x, axis=-1, keepdims=True) + xp.sum(k * k, axis=-1, keepdims=True)
        root = xp.sqrt(squares * (1 / (x.shape[-1] + k.shape[-1])) + eps)
        return narrow(x / root * wide(weight), latent), narrow(k / root, rope_key) if both else rope_key
    return norm


def unnormed(x: Array, weight: Array, eps: float) -> Array:
    return x


def with_eps(other: float) -> dict[str, Callable]:
    """Both norms with another epsilon than the configuration's."""
    return {"norm_query": lambda x, w, eps: rms_norm(x, w, other),
            "norm_kv": lambda x, k, w, eps: normed_latent(x, k, w, other)}


def with_gain(gain: Callable[[Array], Array]) -> dict[str, Callable]:
    """Both norms with another gain than their weight."""
    return {"norm_query": lambda x, w, eps: rms_norm(x, gain(w), eps),
            "norm_kv": lambda x, k, w, eps: normed_latent(x, k, gain(w), eps)}


def past_unnormed(q, hidden: Array, weights) -> tuple[Array, Array]:
    return hidden @ weights.w_dkv.mT, q.k_rope


def codes_alone(codes: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    return E4M3[codes]


def divided(codes: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    return E4M3[codes] / spread(scales, 0, *codes.shape, block)


def first_scale(codes: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    return E4M3[codes] * scales[0, 0]


UP = ("4.logits", "4.output", "4.mqa", "4.to_the_bit", "5.paper")
DECODE = ("5.article", "5.every_split", "5.ragged", "5.paper")
SHARED = "naive and absorbed read the same wrong split, so they agree with each other"
SQUARE = "shapes refuse it unless the matrix is square, and then nothing does"
EVEN = "with all gains equal and normed input it changes nothing"

FAULTS = (
    Fault("all_k_then_all_v", "kv_b_proj read as all heads' W_UK and then all W_UV", "PaddlePaddle/PaddleFleet#1679",
          {"split_kv_b": all_k_then_all_v}, (*UP, "4.premultiplied", "4.ladder", "5.article"), SHARED),
    Fault("value_rows_first", "each head of kv_b_proj read as its W_UV rows and then its W_UK rows",
          "tenstorrent/tt-metal#50673", {"split_kv_b": value_rows_first}, UP, SHARED),
    Fault("kv_b_transposed", "a square kv_b_proj, W_UK or W_UV read transposed", "vllm-project/vllm#44110",
          {"split_kv_b": transposed}, ("4.square",), SQUARE,
          tuple({"split_kv_b": transposed_per_head(k, v)} for k, v in ((True, True), (True, False), (False, True)))),
    Fault("latent_not_normed", "the latent is used and cached without its RMSNorm", "NVIDIA/Megatron-LM#1620",
          {"norm_kv": latent_as_it_is}, (*DECODE, "5.model_layer"), "with one token a missing norm is one more scale"),
    Fault("latent_cached_before_norm", "the latent is normed for its own step but cached before its norm",
          "NVIDIA/Megatron-LM#1620", {"cached": past_unnormed}, DECODE, "the prefill is right; later steps are not"),
    Fault("latent_normed_twice", "a normed latent is normed again", "paiml/aprender#2085",
          {"norm_kv": latent_twice}, DECODE, EVEN),
    Fault("norm_over_joint_vector", "RMSNorm over latent and rope key together", "vllm-project/vllm#16311",
          {"norm_kv": over_joint(True)}, ("5.article", "5.every_split", "5.faint", "5.paper"),
          "p is an eighth of r, so the mean square hardly moves",
          ({"norm_kv": over_joint(False)},)),
    Fault("query_not_normed", "the query latent goes on without its RMSNorm", "anthony-chaudhary/fak#13291",
          {"norm_query": unnormed}, DECODE, "the order of the logits is nearly kept"),
    Fault("norm_eps_wrong", "the norms' epsilon is not the configuration's rms_norm_eps",
          "huggingface/transformers#44346", with_eps(1e-5), ("5.faint",),
          "with inputs of size 1 the epsilon is below every tolerance",
          (with_eps(1e-6), with_eps(1e-12), with_eps(0.0))),
    Fault("norm_gain_wrong", "the norms' weights are left out, or 1 is added to them", "Blaizzy/mlx-vlm#2041",
          with_gain(lambda w: 0 * w + 1), DECODE, "freshly made norm weights are all 1",
          (with_gain(lambda w: w + 1),)),
    Fault("fp8_scales_ignored", "FP8 weights used without their block scales", "wuwangzhang1216/abliterix#93",
          {"dequantize": codes_alone}, ("5.fp8_weights",), "the weights load and every number is finite"),
    Fault("fp8_scales_divided", "FP8 weights divided by weight_scale_inv instead of multiplied",
          "vllm-project/vllm#36297", {"dequantize": divided}, ("5.fp8_weights",), "the name says inv"),
    Fault("fp8_one_scale", "the first block's scale used for the whole FP8 matrix", "vllm-project/vllm-ascend#15346",
          {"dequantize": first_scale}, ("5.fp8_weights",), "a test matrix of one block has one scale"),
)
