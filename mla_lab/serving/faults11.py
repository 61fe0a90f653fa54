"""Known faults of quantised latent caches: values of `Storing`, and two of a `Recipe`."""
from __future__ import annotations

import math

import numpy as np

from ..arrays import round_to_bfloat16
from ..faults import Fault
from ..rope import softmax_scale


def nan_beyond(x, largest):
    """What a cast without saturation makes of it: halfway to the next number and beyond is NaN."""
    return np.where(np.abs(x) > largest * (1 + 1 / 28), np.float32(np.nan), np.clip(x, -largest, largest))


def toward_zero(x):
    return np.trunc(x)


def away_from_zero(x):
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


def zero_over_zero(amax, largest):
    return amax / np.float32(largest)


def twice_the_range(amax, largest):
    return np.where(amax > 0, amax / np.float32(2 * largest), np.float32(1))


def of_the_latent(c_kv, k_rope):
    return c_kv


def next_scale(scales):
    return np.roll(scales, 1, axis=-1)


def half(numbers):
    return numbers / 2


def without_mscale(config):
    return 1 / math.sqrt(config.qk_head_dim)


def of_the_row(config):
    return softmax_scale(config) * math.sqrt(config.qk_head_dim / config.cached_width)


FAULTS = (
    Fault("overflow_to_nan", "a cast without a clamp makes NaN of what lies beyond 448", "jax-ml/ml_dtypes#400",
          {"clamp": nan_beyond}, ("11.codes", "11.casts", "11.extremes"),
          "with a scale from the data nothing lies beyond"),
    Fault("scale_of_zero", "the scale of a block of zeros is 0, and 0/0 is NaN", "huggingface/kernels-community#680",
          {"block_scale": zero_over_zero}, ("11.extremes",), "random rows have no zeros"),
    Fault("scale_for_wider_range", "the scale is made for a range twice as wide as the format's",
          "vllm-project/vllm#45681", {"block_scale": twice_the_range},
          ("11.packed", "11.steps", "11.band", "11.outliers", "11.apart"), "the numbers stay plausible"),
    Fault("truncated", "codes are cut off instead of rounded to the nearest", "FlashML-org/FreeToken#103",
          {"rounding": toward_zero}, ("11.codes", "11.casts", "11.packed", "11.steps", "11.band"),
          "errors only double"),
    Fault("ties_away_from_zero", "a tie goes away from zero instead of to the even code",
          "InfiniTensor/InfiniCore#1521", {"rounding": away_from_zero}, ("11.codes", "11.casts"),
          "random float32 values are never ties"),
    Fault("codes_read_as_fnuz", "codes of e4m3fn are read as e4m3fnuz, whose exponent is off by one",
          "vllm-project/vllm#45562", {"read_value": half}, ("11.packed", "11.steps", "11.band", "11.carried"),
          "writer and reader of one machine agree"),
    Fault("scale_of_next_tile", "a tile is read with its neighbour's scale", "ROCm/ATOM#1466",
          {"read_scale": next_scale}, ("11.packed", "11.steps", "11.outliers"), "tiles of normed latents are alike"),
    Fault("scale_read_in_bf16", "the reader rounds float32 scales to bf16, the writer did not",
          "vllm-project/vllm#49435", {"read_scale": round_to_bfloat16}, ("11.packed",), "0.2 % drown in 2.5 %"),
    Fault("scales_before_codes", "writer and reader put the scales in front of the codes", "LMCache/LMCache#2495",
          {"row": ("scales", "codes", "rope")}, ("11.packed",), "a round trip does not see it"),
    Fault("rope_clamped_by_latents_scale", "the shared scale is taken from the latent alone and clamps the rope key",
          "vllm-project/vllm#42956", {"shared_scale": of_the_latent}, ("11.rope",), "equal sizes hide it"),
    Fault("mscale_missing_in_quantised_path", "the fp8 path leaves YaRN's mscale squared out of the softmax scale",
          "NVIDIA/TensorRT-LLM#3675", {"scale": without_mscale}, ("11.carried",), "logits stay finite"),
    Fault("scale_by_cached_width", "the fp8 path scales by (r + p)^-1/2, the width of a row",
          "flashinfer-ai/flashinfer#551", {"scale": of_the_row}, ("11.carried",), "logits stay finite"),
)
