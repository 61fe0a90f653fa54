"""Faults of the softmax scale."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..config import MLAConfig
from ..rope import softmax_scale
from .fault import Fault


def scale_by(width: Callable[[MLAConfig], float]) -> Callable[[MLAConfig], float]:
    """The right scale with another width in place of n + p."""
    return lambda config: softmax_scale(config) * math.sqrt(config.qk_head_dim / width(config))


def default_of(width: Callable[[MLAConfig], float]) -> Callable[[MLAConfig], float]:
    """What a kernel takes that is told no scale: it knows nothing of YaRN either."""
    return lambda config: 1 / math.sqrt(width(config))


def cached_width(config: MLAConfig) -> int:
    return config.cached_width


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


SCALES = ("3.scale", "4.logits", "4.weights", "4.output", "4.lse", "4.mqa")
ONE_KEY = "with one cached token the softmax is 1 whatever the scale is"
SHARED = "both modes read the same wrong number, so they agree with each other"

FAULTS = (
    Fault("scale_by_nope", "softmax scale n^-1/2", "AI-Hypercomputer/maxtext#1370",
          {"scale": scale_by(lambda c: c.qk_nope_head_dim)}, SCALES, SHARED,
          ({"scale": default_of(lambda c: c.qk_nope_head_dim)},)),
    Fault("scale_by_cached_width", "softmax scale (r + p)^-1/2, the width of an absorbed key",
          "flashinfer-ai/flashinfer#551", {"scale": scale_by(cached_width)}, SCALES,
          "it is the default of attention functions that are handed absorbed queries; " + ONE_KEY,
          ({"scale": default_of(cached_width)},)),
    Fault("scale_by_hidden_size", "softmax scale d^-1/2, the width of the layer", "NVIDIA/Megatron-LM#1501",
          {"scale": scale_by(lambda c: c.hidden_size)}, SCALES, ONE_KEY,
          ({"scale": default_of(lambda c: c.hidden_size)},)),
    Fault("scale_inverted", "logits multiplied by (n + p)^1/2", "AI-Hypercomputer/maxtext#1370",
          {"scale": inverted_scale}, SCALES, "the largest weight goes to the right key all the same",
          ({"scale": lambda config: math.sqrt(config.qk_head_dim)},
           {"scale": lambda config: 1 / softmax_scale(config)})),
    Fault("scale_twice", "the query is scaled and the kernel scales again", "NVIDIA/Megatron-LM#3698",
          {"scale": scale_twice}, SCALES, "weights come out flatter and every order is kept",
          ({"scale": lambda config: softmax_scale(config) / math.sqrt(config.qk_head_dim)},
           {"scale": lambda config: softmax_scale(config) / math.sqrt(config.cached_width)})),
    Fault("mscale_missing", "YaRN's mscale squared left out of the softmax scale", "onnxruntime/mobius#548",
          {"scale": without_mscale}, ("3.scale", "5.article"), "without YaRN mscale is 1; " + ONE_KEY),
    Fault("mscale_not_squared", "mscale applied once instead of squared", "onnxruntime/mobius#548",
          {"scale": mscale_once}, ("3.scale", "5.article"), "without YaRN mscale is 1; " + ONE_KEY),
    Fault("mscales_swapped", "mscale used where mscale_all_dim is meant", "NVIDIA/Megatron-LM#1429",
          {"scale": swapped_mscales}, ("3.scale",), "in DeepSeek's releases the two are equal"),
)
