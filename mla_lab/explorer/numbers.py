"""What follows from a `Setup`: exact counts of the cache, what fits, intensities and the crossover."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from .. import footprint as fp
from ..errors import InputError, positive_int
from ..models import Model
from ..serving.capacity import Deployment
from ..serving.gpus import Gpu, get_gpu
from .setup import INDEX_WIDTH, Setup

T = TypeVar("T")
KINDS = ("MHA", "GQA", "MQA", "MLA")


@dataclass(frozen=True)
class Attention:
    """One way to attend.

    Parameters
    ----------
    name, formula : str
        ``GQA-8`` and how its cached values are counted.
    model : Model
        What `mla_lab.footprint` counts.
    looks : int
        Values that a head multiplies with for a query and a cached token, scores and weighted sum together: 2 v, or
        (r + p) + r absorbed.
    width : int
        Values of a query and of an output head, together.
    """

    name: str
    formula: str
    model: Model
    looks: int
    width: int


def reason(compute: Callable[[], T]) -> tuple[T | None, str]:
    """What ``compute`` returns, or why it cannot."""
    try:
        return compute(), ""
    except InputError as error:
        return None, str(error)


def attention(setup: Setup, kind: str) -> Attention:
    """Multi-head, grouped-query and multi-query attention with key-value heads as wide as the values, or MLA."""
    h, v = positive_int("num_attention_heads", setup.num_attention_heads), positive_int("v_head_dim", setup.v_head_dim)
    layers = positive_int("layers", setup.layers)
    how = {"num_hidden_layers": layers, "cache_layers": layers, "num_attention_heads": h, "source": "",
           "source_kind": "config_file"}
    if kind == "MLA":
        c, index = setup.config(), setup.index_layers
        if not 0 <= index <= layers:
            raise InputError(f"index_layers must be from 0 to the {layers} cached layers, not {index}.")
        how |= {"index_layers": index, "index_head_dim": INDEX_WIDTH} if index else {}
        r, p = c.kv_lora_rank, c.qk_rope_head_dim
        return Attention("MLA", f"{r} + {p}", Model("MLA", "mla", mla=c, **how), 2 * r + p, 2 * r + p)
    groups = {"MHA": h, "GQA": positive_int("groups", setup.groups), "MQA": 1}[kind]
    if h % groups:
        raise InputError(f"groups must divide num_attention_heads {h}, so that every query head has a key-value head, "
                         f"not {groups}.")
    name = f"GQA-{groups}" if kind == "GQA" else kind
    return Attention(name, f"2 x {groups} x {v}",
                     Model(name, kind.lower(), num_key_value_heads=groups, head_dim=v, **how), 2 * v, 2 * v)


def label(setup: Setup, kind: str) -> str:
    """What a kind is called, whether or not it is possible."""
    return f"GQA-{setup.groups}" if kind == "GQA" else kind


# --- cache ------------------------------------------------------------------------------------------------------------

def row_bytes(setup: Setup, found: Attention) -> fp.Exact:
    """Bytes of a token in one layer."""
    return fp.row_bytes(setup.dtype, fp.elements(found.model),
                        found.model.mla.qk_rope_head_dim if found.model.mla else None)


def gpu_row_bytes(setup: Setup, found: Attention) -> fp.Exact:
    """The same on each of the tensor-parallel GPUs."""
    return fp.row_bytes(setup.dtype, fp.per_gpu_elements(found.model, setup.tp),
                        found.model.mla.qk_rope_head_dim if found.model.mla else None)


def total_bytes(setup: Setup, found: Attention) -> int:
    """The cache of all layers and requests, one copy."""
    return fp.cache_bytes(found.model, positive_int("context", setup.context), positive_int("batch", setup.batch),
                          setup.dtype)


# --- what fits --------------------------------------------------------------------------------------------------------

def deployment(setup: Setup, found: Attention) -> Deployment:
    """The model on the GPUs, its weights spread evenly; for the other attentions, a model of the same weights."""
    if not setup.weights_gb:
        raise InputError(f"the weights of {setup.model} are not known here; give their size in GB.")
    heads_of_a_gpu(setup)
    return Deployment(found.model, gpu(setup), positive_int("tp", setup.tp), "tp",
                      positive_int("context", setup.context), None, kv_dtype=setup.dtype, memory_gb=setup.memory_gb,
                      weights_gb=setup.weights_gb)


def heads_of_a_gpu(setup: Setup) -> int:
    """Query heads on each of the tensor-parallel GPUs."""
    h, tp = setup.num_attention_heads, positive_int("tp", setup.tp)
    if h % tp:
        raise InputError(f"tp must divide num_attention_heads {h}, not {tp}. Data-parallel attention deals out no "
                         "heads; it is not in the explorer, but `python -m mla_lab capacity --parallel dp` counts it.")
    return h // tp


def gpu(setup: Setup) -> Gpu:
    return get_gpu(setup.gpu)


# --- roofline ---------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Step:
    """The attention of one decode call in one layer on one GPU: all requests, core attention alone.

    ``flops`` counts a multiply and an add as two; ``moved`` is the cache read once, and queries and outputs in 16 bit.
    Scores, weights and projections are left out, as in FlashMLA's benchmark.
    """

    flops: int
    moved: Fraction

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return float(self.flops / self.moved)

    def seconds(self, on: Gpu) -> float:
        """The least that the data sheet allows: the longer of arithmetic and reading (Williams et al., 2009)."""
        return max(self.flops / on.bf16_tflops, float(self.moved) / on.bandwidth_tb) / 1e12


def step(setup: Setup, found: Attention, endless: bool = False) -> Step:
    """2 h t s looks FLOPs over s cached rows and 2 h t width bytes, h the heads of one GPU.

    With ``endless`` the context is so long that queries and outputs do not count.
    """
    h = heads_of_a_gpu(setup)
    t, s, b = (positive_int(name, getattr(setup, name)) for name in ("new_tokens", "context", "batch"))
    cache = s * Fraction(gpu_row_bytes(setup, found))
    own = 0 if endless else 2 * h * t * found.width
    return Step(2 * b * h * t * s * found.looks, b * (cache + own))


def rows_at_ridge(setup: Setup, found: Attention) -> float:
    """Heads times query tokens at which reading an endless cache takes as long as the arithmetic on it."""
    return gpu(setup).ridge * float(gpu_row_bytes(setup, found)) / (2 * found.looks)
