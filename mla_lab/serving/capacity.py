"""What fits: weights, cache, users and tokens on a number of GPUs, and which of them binds.

Nothing is measured here. Every number follows from a configuration, a data sheet and the assumptions that
`Deployment` carries and `mla_lab.serving.engines.assumptions` writes out. GB is 10^9 B.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from .. import footprint as fp
from ..errors import InputError, positive_int, unknown
from ..models import Model
from .gpus import Gpu
from .parameters import Parameters

PARALLEL = ("tp", "dp")
# Bytes of a weight with its scales. Embedding, head, norms and routers stay in 16 bit in every format.
WEIGHT_DTYPES = {
    "bf16": (Fraction(2), "2 B"),
    "fp8": (1 + Fraction(4, 128 * 128), "1 B and an fp32 scale for each 128 x 128 block"),
    "int8": (Fraction(1), "1 B; scales per output channel are not counted"),
    "int4": (Fraction(1, 2) + Fraction(2, 128), "4 bits and an fp16 scale per 128 weights"),
    "nvfp4": (Fraction(1, 2) + Fraction(1, 16), "4 bits and a scale byte per 16 weights"),
}


def exact(number: float) -> Fraction:
    """``number`` as it is written in decimal: 0.9 is nine tenths."""
    return Fraction(str(number))


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs, and everything that is assumed about it.

    Parameters
    ----------
    model : Model
    gpu : Gpu
    gpus : int
    parallel : 'tp' or 'dp'
        Tensor parallelism deals heads, MLPs and experts out to all GPUs. With data-parallel attention each GPU keeps
        whole requests and all of the weights but the routed experts, which are dealt out.
    context : int
        Tokens cached for a user.
    parameters : Parameters or None
        None where only ``weights_gb`` is known.
    kv_dtype, weight_dtype : str
        Of `mla_lab.footprint.CACHE_DTYPES` and of `WEIGHT_DTYPES`.
    utilization : float
        Share of a GPU's memory for weights and cache; the rest is for activations, graphs and buffers. 0.9 is the
        default of vLLM's ``--gpu-memory-utilization`` and of SGLang's ``--mem-fraction-static``.
    page : int
        Tokens of a page of the cache; a request takes whole pages.
    dcp : int
        Decode context parallelism: groups of ``dcp`` tensor-parallel GPUs keep every dcp-th token each.
    memory_gb : float or None
        Memory of a GPU, instead of the data sheet's.
    weights_gb : float or None
        Weights of the whole model, instead of the sum over ``parameters``; taken to spread evenly.
    """

    model: Model
    gpu: Gpu
    gpus: int
    parallel: str
    context: int
    parameters: Parameters | None
    kv_dtype: str = "bf16"
    weight_dtype: str = "fp8"
    utilization: float = 0.9
    page: int = 64
    dcp: int = 1
    memory_gb: float | None = None
    weights_gb: float | None = None

    def __post_init__(self):
        for name in ("gpus", "context", "page", "dcp"):
            positive_int(name, getattr(self, name))
        if self.parallel not in PARALLEL:
            raise unknown("kind of parallelism", self.parallel, PARALLEL)
        if self.weight_dtype not in WEIGHT_DTYPES:
            raise unknown("weight dtype", self.weight_dtype, WEIGHT_DTYPES)
        for name, most in (("utilization", 1), ("memory_gb", 1e6), ("weights_gb", 1e9)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise InputError(f"{name} must be above 0 and at most {most:g}, not {value!r}.")
        if self.parameters is None and self.weights_gb is None:
            raise InputError("either the model's parameters or weights_gb must be given.")
        if self.dcp > 1 and (self.parallel != "tp" or self.gpus % self.dcp):
            raise InputError(f"dcp {self.dcp} needs tensor parallelism over a multiple of it, not {self.parallel} over "
                             f"{self.gpus} GPUs.")
        if self.parallel == "tp" and self.model.num_attention_heads % self.gpus:
            raise InputError(f"{self.model.name}'s {self.model.num_attention_heads} heads do not spread evenly over "
                             f"{self.gpus} tensor-parallel GPUs; take a divisor, or data-parallel attention.")
        if self.parallel == "dp" and self.gpus > 1 and self.weights_gb is not None:
            raise InputError("weights_gb does not say which weights are routed experts, which dp deals out, and which "
                             "every GPU keeps; give the config.json, or tp.")
        self.token_bytes_per_gpu()  # refuses heads that cannot be dealt out, and formats that do not exist

    # --- weights -----------------------------------------------------------------------------------------------------

    def weight_bytes(self) -> Fraction:
        """The whole model, once."""
        if self.weights_gb is not None:
            return exact(self.weights_gb) * 10**9
        return sum(self.groups().values(), Fraction(0))

    def groups(self) -> dict[str, Fraction]:
        """Bytes of each group of weights."""
        p, each = self.parameters, WEIGHT_DTYPES[self.weight_dtype][0]
        return {"by_head": p.by_head * each, "for_all_heads": p.for_all_heads * each, "mlp": p.mlp * each,
                "experts": p.experts * each, "small": Fraction(2 * p.small),
                "vocabulary": Fraction(2 * (p.embedding + p.head))}

    def shares(self) -> dict[str, Fraction]:
        """The share of each group that the fullest GPU holds."""
        tp = Fraction(1, self.gpus) if self.parallel == "tp" else Fraction(1)
        experts = tp
        if self.parallel == "dp":  # whole experts; more GPUs than experts means copies of them
            e = self.parameters.experts_per_layer
            experts = Fraction(math.ceil(Fraction(e, self.gpus)), e)
        return {"by_head": tp, "for_all_heads": Fraction(1), "mlp": tp, "experts": experts, "small": Fraction(1),
                "vocabulary": tp}

    def weight_bytes_per_gpu(self) -> Fraction:
        """What the fullest GPU holds."""
        if self.weights_gb is not None:
            return self.weight_bytes() / self.gpus
        shares = self.shares()
        return sum((size * shares[name] for name, size in self.groups().items()), Fraction(0))

    # --- cache -------------------------------------------------------------------------------------------------------

    def _index(self) -> int:
        return fp.index_bytes(self.model) if self.model.index_layers else 0

    def token_bytes(self) -> Fraction:
        """A token in the caches of all layers, once; the index keys of sparse attention are counted as well."""
        return Fraction(fp.bytes_per_token(self.model, self.kv_dtype)) + self._index()

    def token_bytes_per_gpu(self) -> Fraction:
        """What a token costs each GPU that keeps it, on average over the GPUs of its group."""
        if self.parallel == "dp":
            return self.token_bytes()
        rope = self.model.mla.qk_rope_head_dim if self.model.mla else None
        row = fp.row_bytes(self.kv_dtype, fp.per_gpu_elements(self.model, self.gpus), rope)
        return (self.model.cache_layers * Fraction(row) + self._index()) / self.dcp

    def usable_bytes_per_gpu(self) -> Fraction:
        """Memory for weights and cache."""
        return exact(self.memory_gb or self.gpu.memory_gb) * 10**9 * exact(self.utilization)

    def cache_room_per_gpu(self) -> Fraction:
        """What the weights leave; negative if they do not fit."""
        return self.usable_bytes_per_gpu() - self.weight_bytes_per_gpu()

    def padded_context(self) -> int:
        """Tokens that a user's pages hold."""
        return math.ceil(self.context / self.page) * self.page

    def pools(self) -> int:
        """Caches that hold different requests: one for each data-parallel GPU, one for a tensor-parallel group."""
        return self.gpus if self.parallel == "dp" else 1

    def tokens(self) -> int:
        """Different tokens that all GPUs together can keep, in whole pages."""
        pages = max(self.cache_room_per_gpu(), 0) / (self.token_bytes_per_gpu() * self.page)
        return self.pools() * math.floor(pages) * self.page

    def users(self) -> int:
        """Requests of ``context`` tokens at once; no request is spread over two pools."""
        return self.pools() * (self.tokens() // self.pools() // self.padded_context())

    # --- what binds --------------------------------------------------------------------------------------------------

    def binding(self) -> str:
        """Which term limits the number of users, in words."""
        if self.cache_room_per_gpu() < 0:
            return "weights: they do not fit"
        if self.users() == 0:
            return "cache: what the weights leave does not hold one request"
        ours, theirs = self.weight_bytes_per_gpu(), self.cache_room_per_gpu()
        return f"{'weights' if ours > theirs else 'cache'}: {fp.percent(ours / (ours + theirs), 0)} of the memory in " \
               f"use is weights"

    def outgrown_at(self) -> int:
        """Tokens, over all users together, from which the cache is larger than the weights, one copy of each."""
        return math.ceil(self.weight_bytes() / self.token_bytes())
