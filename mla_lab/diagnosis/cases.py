"""The battery: small layers and decode calls, each of which shows some faults and hides others.

What a fault does to *these* numbers must be far larger than the rounding of bfloat16. Hence every dimension differs,
there are several sequences, calls and tokens, logits are a few units apart, and for each term of the output there is a
case in which it stands alone: ``values`` (all queries zero), ``content`` (no rope part), ``rope`` (no content part).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from ..arrays import get_backend, round_to_bfloat16
from ..config import MLAConfig, Yarn
from ..fp8 import BLOCK, quantize
from ..rope import softmax_scale
from ..weights import random_state

# theta, the original context and the two mscales differ from DeepSeek's where DeepSeek's values would hide a fault.
FULL = MLAConfig(hidden_size=60, num_attention_heads=3, q_lora_rank=22, kv_lora_rank=34, qk_nope_head_dim=14,
                 qk_rope_head_dim=12, v_head_dim=10, rope_theta=100.0, rms_norm_eps=2e-6,
                 rope_scaling=Yarn(factor=16, original_max_position_embeddings=32, mscale=1.5, mscale_all_dim=0.8))
SQUARE = MLAConfig(hidden_size=48, num_attention_heads=3, kv_lora_rank=36, qk_nope_head_dim=5, qk_rope_head_dim=8,
                   v_head_dim=7, rms_norm_eps=2e-6)  # h (n + v) = r, no query latent, no YaRN
BLOCKS = replace(FULL, hidden_size=150, q_lora_rank=140, kv_lora_rank=136, qk_nope_head_dim=26, v_head_dim=30)
SHARP = 2.0  # what queries are multiplied by, so that weights are neither equal nor 0 and 1
CALLS = (7, 3, 1, 1)
FAR_CALLS = (297, 2, 1)
EVEN_CALLS = (377, 2, 1)


@dataclass(frozen=True, eq=False)
class LayerCase:
    """One layer and the tokens of its calls. All numbers are exact in bfloat16, in which NumPy holds them as float64.

    Parameters
    ----------
    shows : str
        What a departure in this case says, for a person.
    state : mapping
        Weights under Hugging Face names; FP8 ones as codes (uint8) with their ``weight_scale_inv``.
    hidden : tuple of arrays [b, t, d]
        The tokens of each call.
    """

    name: str
    shows: str
    config: MLAConfig
    state: Mapping[str, np.ndarray]
    hidden: tuple[np.ndarray, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each call."""
        return ("prefill", *(f"{x.shape[1]} more tokens" if x.shape[1] > 1 else "decode step" for x in self.hidden[1:]))


@dataclass(frozen=True, eq=False)
class DecodeCase:
    """One call of attention over a latent cache; ``kv_cache`` holds ``tail`` beyond each length."""

    name: str
    shows: str
    config: MLAConfig  # of which only the widths, the number of heads and the softmax scale count
    q_nope: np.ndarray  # [b, t, h, n]
    q_rope: np.ndarray  # [b, t, h, p]
    kv_cache: np.ndarray  # [b, s, r+p]
    w_uk: np.ndarray  # [h, n, r]
    w_uv: np.ndarray  # [h, r, v]
    lengths: tuple[int, ...]

    labels = ("decode",)


Case = LayerCase | DecodeCase


def config_dict(config: MLAConfig) -> dict:
    """The fields of config.json for ``config``."""
    yarn = config.rope_scaling
    fields = {k: v for k, v in asdict(config).items() if k != "rope_scaling"}
    block = None
    if yarn is not None:
        block = {"type": "yarn", **{k: v for k, v in asdict(yarn).items() if v not in (None, 0.0)}}
    longest = int(yarn.factor * yarn.original_max_position_embeddings) if yarn else 4096
    return {"model_type": "deepseek_v3", **fields, "rope_scaling": block, "num_hidden_layers": 1,
            "num_key_value_heads": config.num_attention_heads, "max_position_embeddings": longest}


def config_from(fields: Mapping) -> MLAConfig:
    """Back from `config_dict`."""
    own = {name: fields[name] for name in MLAConfig.__dataclass_fields__ if name in fields}
    block = fields["rope_scaling"]
    yarn = None if block is None else Yarn(**{name: block[name] for name in Yarn.__dataclass_fields__ if name in block})
    return MLAConfig(**{**own, "rope_scaling": yarn})


def _drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return round_to_bfloat16(rng.standard_normal(shape).astype(np.float32)).astype(np.float64)


@lru_cache(maxsize=8)
def _state(config: MLAConfig, seed: int) -> dict[str, np.ndarray]:
    state = random_state(config, get_backend("numpy"), seed)
    query = "q_proj.weight" if config.q_lora_rank is None else "q_b_proj.weight"
    return state | {query: SHARP * state[query]}


def _without(state: Mapping[str, np.ndarray], config: MLAConfig, content: bool, rope: bool) -> dict[str, np.ndarray]:
    """``state`` with the content part, the rope part or both parts of the query zero."""
    query = "q_proj.weight" if config.q_lora_rank is None else "q_b_proj.weight"
    w = state[query].reshape(config.num_attention_heads, config.qk_head_dim, -1).copy()
    if content:
        w[:, : config.qk_nope_head_dim] = 0
    if rope:
        w[:, config.qk_nope_head_dim :] = 0
    return {**state, query: w.reshape(state[query].shape)}


def _hidden(config: MLAConfig, calls: tuple[int, ...], seed: int, size: float = 1.0,
            batch: int = 2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(size * _drawn(rng, batch, t, config.hidden_size) for t in calls)


def layer_cases(config: MLAConfig | None = None, fp8: bool = False) -> Iterator[LayerCase]:
    """The cases of the protocol ``layer``, on ``config`` if one is given and on the battery's own otherwise."""
    full = config or FULL
    state, hidden = _state(full, 101), _hidden(full, CALLS, 102)
    for name, shows, content, rope in (("values", "with all queries zero: norms, mask, W_UV, W_O", True, True),
                                       ("content", "with no rope part in the query", False, True),
                                       ("rope", "with no content part in the query", True, False)):
        yield LayerCase(name, shows, full, _without(state, full, content, rope), hidden)
    yield LayerCase("full", "with both terms of the logit", full, state, hidden)
    faint = 2.0 ** round(np.log2(full.rms_norm_eps) / 2)  # so that the mean square of a latent is about epsilon
    yield LayerCase("faint", "with input so small that the norms' epsilon counts", full, state,
                    _hidden(full, CALLS, 103, faint))
    far = config or replace(FULL, rope_scaling=replace(FULL.rope_scaling, original_max_position_embeddings=64))
    yield LayerCase("far", "beyond position 256", far, _without(_state(far, 104), far, content=True, rope=False),
                    _hidden(far, FAR_CALLS, 105, batch=1))
    yield LayerCase("even", "with over 300 keys of equal weight", full, _without(_state(full, 110), full, True, True),
                    _hidden(full, EVEN_CALLS, 111, batch=1))
    if config is None:
        yield LayerCase("square", "with a square kv_b_proj, no query latent and no YaRN", SQUARE, _state(SQUARE, 106),
                        _hidden(SQUARE, CALLS, 107))
    if fp8:
        yield LayerCase("fp8", "with weights in FP8 blocks of 128 x 128", BLOCKS, _in_fp8(_state(BLOCKS, 108)),
                        _hidden(BLOCKS, CALLS, 109))


def _in_fp8(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The matrices as codes and scales; blocks get sizes of their own, or one scale would do for all."""
    out = {}
    for name, w in state.items():
        if w.ndim == 1:
            out[name] = w
            continue
        sizes = 2.0 ** (np.add.outer(np.arange(w.shape[0]) // BLOCK[0], np.arange(w.shape[1]) // BLOCK[1]) % 3)
        out[name], out[name + "_scale_inv"] = quantize(w * sizes / 2)
    return out


NAN = float("nan")


def _even(case: DecodeCase, logit: float) -> DecodeCase:
    """``case`` with one logit for every key, exact in bfloat16: channel 0 of the latent is 1 and alone counts."""
    rows, w_uk, q_nope = case.kv_cache.copy(), np.zeros_like(case.w_uk), np.zeros_like(case.q_nope)
    rows[..., 0] = rows[..., 0] * 0 + 1  # NaN stays NaN
    w_uk[:, 0, 0], q_nope[..., 0] = 1, logit / softmax_scale(case.config)
    q_nope = round_to_bfloat16(q_nope.astype(np.float32)).astype(np.float64)
    return replace(case, kv_cache=rows, w_uk=w_uk, q_nope=q_nope)


def _decode(name: str, shows: str, config: MLAConfig, t: int, lengths: tuple[int, ...], seed: int, tail: float = NAN,
            content: float = SHARP, rope: float = SHARP, drift: bool = False) -> DecodeCase:
    rng, c = np.random.default_rng(seed), config
    b, s, h = len(lengths), max(lengths) + 3, c.num_attention_heads
    rows = _drawn(rng, b, s, c.cached_width)
    if drift:  # values that change along the cache, so that a wrong weight of one piece shows
        rows[..., : c.kv_lora_rank] += np.where(np.arange(s) < s // 2, 1.0, -1.0)[None, :, None]
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = tail
    unit = 2.0 ** -round(np.log2(c.kv_lora_rank) / 2)  # about r^-1/2, exact
    return DecodeCase(name, shows, c, content * _drawn(rng, b, t, h, c.qk_nope_head_dim),
                      rope * _drawn(rng, b, t, h, c.qk_rope_head_dim), rows,
                      unit * _drawn(rng, h, c.qk_nope_head_dim, c.kv_lora_rank),
                      unit * _drawn(rng, h, c.kv_lora_rank, c.v_head_dim), lengths)


def decode_cases(config: MLAConfig | None = None) -> Iterator[DecodeCase]:
    """The cases of the protocol ``decode``."""
    full = config or replace(FULL, num_attention_heads=5)
    lengths = (17, 9, 21)
    yield _decode("values", "with all queries zero: mask, lengths, W_UV", full, 2, lengths, 201, content=0, rope=0)
    yield _decode("content", "with no rope part in the query", full, 2, lengths, 202, rope=0)
    yield _decode("rope", "with no content part in the query", full, 2, lengths, 203, content=0)
    yield _decode("full", "with both terms of the logit", full, 3, lengths, 204)
    yield _decode("one token", "with one query token", full, 1, lengths, 205)
    yield _decode("finite tail", "with finite numbers in unused slots", full, 2, lengths, 206, tail=0.5)
    yield _decode("far", "over 700 and 423 cached tokens", full, 1, (700, 423), 207, content=0.25, rope=0.25,
                  drift=True)
    yield _even(_decode("even", "with one large logit for all of 341 and 700 keys", full, 1, (341, 700), 210, rope=0,
                        drift=True), logit=41.0)
    if config is None:
        square = replace(full, num_attention_heads=3, kv_lora_rank=16, qk_nope_head_dim=16, v_head_dim=16)
        yield _decode("square", "with n = r = v, where a transposed W_UK or W_UV still fits", square, 2, lengths, 208)
    yield _decode("empty row", "with a sequence of no tokens", full, 1, (6, 0, 11), 209)
