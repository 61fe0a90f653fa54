"""How much a token leaves in the key-value cache: exact counts of elements and bytes, no arrays.

A model is anything with the fields of `mla_lab.models.Model`. Elements are numbers, whatever they are stored in; a
count of bytes is an int, or a Fraction where a layout only promises an average. GB is 10^9 B and GiB is 2^30 B.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from .config import MLAConfig
from .errors import InputError, positive_int, unknown

Model = Any  # anything with the fields of `mla_lab.models.Model`, which counts itself with these functions
Exact = int | Fraction
UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


# --- elements cached for a token in a layer (DeepSeek-V2, arXiv 2405.04434, table 1) -------------------------------

def mha_elements(heads: int, head_dim: int) -> int:
    """Multi-head attention: a key and a value of ``head_dim`` for each head."""
    return 2 * heads * head_dim


def gqa_elements(groups: int, head_dim: int) -> int:
    """Grouped-query attention: ``groups`` key-value heads, however many query heads share them."""
    return 2 * groups * head_dim


def mqa_elements(head_dim: int) -> int:
    """Multi-query attention: one key-value head."""
    return 2 * head_dim


def mla_elements(config: MLAConfig) -> int:
    """MLA: one latent, which is key and value at once, and one rope key for all heads. No head count, no factor 2."""
    return config.kv_lora_rank + config.qk_rope_head_dim


def expanded_elements(config: MLAConfig) -> int:
    """MLA cached after the up-projection, as DeepSeek's ``naive`` demo does: h (n + p) keys and h v values."""
    return config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)


def elements(model: Model, count: Callable[[MLAConfig], int] = mla_elements) -> int:
    """Elements cached for a token in one layer of ``model``.

    MLA is recognised by its dimensions, never by a list of names; ``count`` is the rule for its rows.
    """
    return count(model.mla) if model.mla else gqa_elements(model.num_key_value_heads, model.head_dim)


def mha_baseline(model: Model) -> int:
    """What MHA of the same shape would cache in a layer: every query head, keys and values as wide as the values."""
    return mha_elements(model.num_attention_heads, model.mla.v_head_dim if model.mla else model.head_dim)


def per_gpu_elements(model: Model, tp: int, count: Callable[[MLAConfig], int] = mla_elements) -> int:
    """Elements for a token and layer on each of ``tp`` tensor-parallel GPUs.

    Keys and values are dealt out by head until every GPU holds one, then copied. A latent has no head axis to cut:
    each GPU holds all of it.
    """
    positive_int("tp", tp)
    if model.mla:
        return elements(model, count)
    heads = model.num_key_value_heads
    if heads % tp and tp % heads:
        raise InputError(f"{model.name}'s {heads} key-value heads do not spread evenly over {tp} GPUs; "
                         f"tp must divide {heads} or be a multiple of it.")
    return gqa_elements(max(1, heads // tp), model.head_dim)


# --- bytes ---------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class CacheDtype:
    """A storage format: ``plain(n)`` and ``latent(r, p)`` give the bytes of a row of n values, of an MLA row.

    ``plain`` None: the format exists for MLA rows only. ``latent`` None: latent and rope key are stored alike.
    """

    name: str
    layout: str
    plain: Callable[[int], Exact] | None
    latent: Callable[[int, int], Exact] | None = None


def _blocks(n: int, size: int) -> int:
    return -(-n // size)


CACHE_DTYPES = {d.name: d for d in (
    CacheDtype("bf16", "2 B a value", lambda n: 2 * n),
    CacheDtype("fp16", "2 B a value", lambda n: 2 * n),
    CacheDtype("fp32", "4 B a value", lambda n: 4 * n),
    # One static scale for a whole tensor lies beside the cache, not in it (vllm-project/vllm#47043).
    CacheDtype("fp8", "1 B a value, one scale for the whole tensor", lambda n: n),
    # 512 + 16 + 128 = 656 B: DeepSeek's own FlashMLA layout (README of deepseek-ai/FlashMLA).
    CacheDtype("fp8-tile", "1 B a latent value, an fp32 scale per 128 of them, rope key in bf16", None,
               lambda r, p: r + 4 * _blocks(r, 128) + 2 * p),
    # ggml's block of 32 int8 and one fp16 scale; a started block is a whole one.
    CacheDtype("q8_0", "34 B per 32 values", lambda n: 34 * _blocks(n, 32)),
    # DeepSeek-V2 section 3.2.3 says "6 bits on average" and no more: scales are taken to be inside.
    CacheDtype("6bit", "6 bits a value on average, scales included", lambda n: Fraction(3 * n, 4)),
    # 256 + 32 + 16 + 128 = 432 B (local-inference-lab/vllm#82). For keys and values there is no such row to cite:
    # 4 bits and a scale byte per 16.
    CacheDtype("4bit", "4 bits a value, a scale byte per 16; MLA rows: 16 B padding, rope key in bf16",
               lambda n: _blocks(n, 2) + _blocks(n, 16), lambda r, p: _blocks(r, 2) + _blocks(r, 16) + 16 + 2 * p),
)}


# What the indexer of DeepSeek's sparse attention caches besides: one key for all its heads, in every layer that has an
# indexer of its own. DeepSeek, vLLM and SGLang store it in fp8 with an fp32 scale per 128 values (132 B) whatever the
# latent is stored in; transformers keeps 16 bit (256 B).
INDEX_KEYS = {"fp8": lambda n: n + 4 * _blocks(n, 128), "bf16": lambda n: 2 * n}


def row_bytes(dtype: str, n: int, rope: int | None = None) -> Exact:
    """Bytes of ``n`` elements, a token in a layer, in ``dtype``; ``rope`` of them are an MLA row's rope key."""
    if dtype not in CACHE_DTYPES:
        raise unknown("cache dtype", dtype, CACHE_DTYPES)
    layout = CACHE_DTYPES[dtype]
    if rope is not None and layout.latent:
        return layout.latent(n - rope, rope)
    if layout.plain is None:
        raise InputError(f"cache dtype {dtype!r} is a layout of MLA rows, latent and rope key; "
                         "take another one for keys and values.")
    total = layout.plain(n)
    return int(total) if total == int(total) else total


def cached_layers(model: Model, mtp: bool = False) -> int:
    """Layers whose cache grows with the context; with ``mtp`` also the multi-token-prediction layers, if they run."""
    if mtp and not model.num_nextn_predict_layers:
        raise InputError(f"{model.name} is not known to have a multi-token-prediction layer.")
    return model.cache_layers + (model.num_nextn_predict_layers if mtp else 0)


def index_bytes(model: Model, index_keys: str = "fp8", mtp: bool = False) -> int:
    """Bytes that one token's index keys occupy in all layers that have an indexer, in the format ``index_keys``.

    A multi-token-prediction layer of such a model has an indexer too, whether or not the main layers share theirs.
    """
    if index_keys not in INDEX_KEYS:
        raise unknown("format of index keys", index_keys, INDEX_KEYS)
    if not model.index_layers:
        raise InputError(f"{model.name} is not known to cache index keys.")
    layers = model.index_layers + cached_layers(model, mtp) - model.cache_layers
    return layers * INDEX_KEYS[index_keys](model.index_head_dim)


def bytes_per_token(model: Model, dtype: str = "bf16", layers: int | None = None, *, mtp: bool = False,
                    index_keys: str | None = None, count: Callable[[MLAConfig], int] = mla_elements) -> Exact:
    """Bytes that one token occupies in the caches of all layers (or of ``layers`` of them), exactly.

    Index keys are counted if ``index_keys`` names their format, one of `INDEX_KEYS`.
    """
    rope = model.mla.qk_rope_head_dim if model.mla else None
    row = row_bytes(dtype, elements(model, count), rope)
    if layers is not None:
        if mtp or index_keys:
            raise InputError("layers says how many rows are counted; mtp and index_keys go without it.")
        return positive_int("layers", layers) * row
    return cached_layers(model, mtp) * row + (index_bytes(model, index_keys, mtp) if index_keys else 0)


def cache_bytes(model: Model, tokens: int, batch: int = 1, dtype: str = "bf16", **how) -> int:
    """Bytes for ``batch`` requests of ``tokens`` tokens, rounded up to a whole one; ``how``: see `bytes_per_token`."""
    requests = positive_int("tokens", tokens) * positive_int("batch", batch)
    return math.ceil(bytes_per_token(model, dtype, **how) * requests)


def tokens_that_fit(capacity: Exact | float, model: Model, dtype: str = "bf16", **how) -> int:
    """Whole tokens, over all requests together, for which ``capacity`` bytes of cache suffice."""
    if not 0 <= capacity < math.inf:
        raise InputError(f"capacity must be a number of bytes of at least 0, not {capacity!r}.")
    return math.floor(Fraction(capacity) / bytes_per_token(model, dtype, **how))


def saving(ours: Exact, baseline: Exact) -> Fraction:
    """The share of ``baseline`` that is saved: 1 - ours / baseline."""
    return 1 - Fraction(ours) / Fraction(baseline)


# --- text ----------------------------------------------------------------------------------------------------------

def percent(share: Exact | float, digits: int = 2) -> str:
    """``0.98242`` as ``98.24 %``."""
    return f"{float(100 * share):.{digits}f} %"


def in_unit(unit: str, count: Exact | float, digits: int = 4) -> str:
    """``count`` bytes in one of `UNITS`, with at most ``digits`` decimals and the unit always beside the number."""
    text = f"{float(Fraction(count) / UNITS[unit]):,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.')} {unit}"


gb, gib, mib, kib = (partial(in_unit, unit) for unit in ("GB", "GiB", "MiB", "KiB"))
