"""What a reader of the explorer can choose, as one value; it can be written as a link and read back."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qsl, urlencode

from ..config import DIMENSIONS, MLAConfig
from ..config_fields import MOST, Fields, parse
from ..errors import InputError, short, unknown
from ..footprint import CACHE_DTYPES
from ..models import Model, get_model, verifiable
from ..read_config import read_config
from ..serving.capacity import Deployment
from ..serving.gpus import get_gpu
from ..serving.parameters import parameters

INDEX_WIDTH = 128  # of the keys that an indexer caches, in every published model that has one


@dataclass(frozen=True)
class Setup:
    """Dimensions, load and machine. Numbers only have to be numbers: what they make invalid is said where it matters.

    Parameters
    ----------
    model : str
        Where the dimensions started: a published model's name, or what a pasted configuration is called.
    hidden_size, num_attention_heads, q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim : int
        As in config.json; ``q_lora_rank`` 0 means that there is none.
    layers : int
        Layers whose cache grows with the context.
    index_layers : int
        How many of them cache an index key of sparse attention (DSA), `INDEX_WIDTH` wide, besides the latent.
    groups : int
        Key-value heads of the GQA that MLA is compared with.
    context, batch : int
        Cached tokens of each request, and requests at once.
    new_tokens : int
        Query tokens that one call brings for each request: 1 in plain decoding.
    dtype : str
        Of `mla_lab.footprint.CACHE_DTYPES`.
    tp : int
        Tensor-parallel GPUs.
    gpu : str
    memory_gb, weights_gb : float
        Memory of one GPU, and the weights of the whole model, in GB (10^9 B); ``weights_gb`` 0 means that it is not
        known.
    """

    model: str = "DeepSeek-V3"
    hidden_size: int = 7168  # d
    num_attention_heads: int = 128  # h
    q_lora_rank: int = 1536  # q
    kv_lora_rank: int = 512  # r
    qk_nope_head_dim: int = 128  # n
    qk_rope_head_dim: int = 64  # p
    v_head_dim: int = 128  # v
    layers: int = 61
    index_layers: int = 0
    groups: int = 8
    context: int = 8192
    batch: int = 32
    new_tokens: int = 1
    dtype: str = "bf16"
    tp: int = 8
    gpu: str = "H200"
    memory_gb: float = 141.0
    weights_gb: float = 673.0

    def config(self) -> MLAConfig:
        """The MLA layer, or an `InputError` that says which dimension is impossible. Without rope channels no
        position reaches it, as in Kimi-Linear.
        """
        dims = {name: getattr(self, name) for name in DIMENSIONS}
        return MLAConfig(**dims, q_lora_rank=self.q_lora_rank or None, mla_use_nope=self.qk_rope_head_dim == 0)


DIMENSION_FIELDS = ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
                    "qk_rope_head_dim", "v_head_dim", "layers")


def of_model(model: Model, start: Setup | None = None, raw: Mapping | None = None) -> Setup:
    """``start`` with the dimensions, the layers and the weights of ``model``, which was read from ``raw``."""
    c = model.mla or verifiable(model).mla  # refuses a model without MLA
    if model.index_layers and model.index_head_dim != INDEX_WIDTH:
        raise InputError(f"index_head_dim must be {INDEX_WIDTH}, as in every published model, not "
                         f"{model.index_head_dim}.")
    dims = {name: getattr(c, name) for name in DIMENSIONS}
    return replace(start or Setup(), model=model.name, **dims, q_lora_rank=c.q_lora_rank or 0,
                   layers=model.cache_layers, index_layers=model.index_layers or 0, weights_gb=weights_of(model, raw))


def weights_of(model: Model, raw: Mapping | None) -> float:
    """GB of the whole model as it is served in fp8, to whole GB; 0 where the package does not know its matrices."""
    try:
        deployed = Deployment(model, get_gpu("H200"), 1, "tp", 1, parameters(model, raw), weight_dtype="fp8")
    except InputError:
        return 0.0
    return float(round(deployed.weight_bytes() / 10**9))


def of_config(text: str, start: Setup | None = None) -> Setup:
    """``start`` with the dimensions of a pasted ``config.json``."""
    raw = parse(text, "this")
    return of_model(read_config(raw), start, raw)


# --- sharing ----------------------------------------------------------------------------------------------------------

def to_query(setup: Setup) -> str:
    """A link's query: the model, and every value that is not the one that it and the GPU start with."""
    start, _ = _start(setup.model)
    base = replace(start or Setup(), memory_gb=get_gpu(setup.gpu).memory_gb)
    moved = {f.name: getattr(setup, f.name) for f in fields(Setup) if f.name != "model" and (
        getattr(setup, f.name) != getattr(base, f.name) or (not start and f.name in DIMENSION_FIELDS))}
    return urlencode({"model": setup.model} | {name: value if isinstance(value, str) else repr(value).removesuffix(".0")
                                               for name, value in moved.items()})


def _start(model: str) -> tuple[Setup | None, str]:
    """Where a link starts: the named model's values, or why there are none: a pasted one is known to nobody else."""
    try:
        return of_model(get_model(model)), ""
    except InputError as error:
        return None, str(error)


def from_query(query: str) -> Setup:
    """The value that `to_query` wrote. A name that it does not write, or a value of another kind, is refused.

    So is a model that is not published, if the link, which may be cut off or older, does not give all its dimensions.
    """
    kinds, given = {f.name: type(f.default) for f in fields(Setup)}, {}
    for name, text in parse_qsl(query.lstrip("?"), keep_blank_values=True):
        if name not in kinds:
            raise unknown("value", name, kinds)
        given[name] = _number(name, text, kinds[name]) if kinds[name] is not str else Fields({name: text}).text(name)
    if given.get("dtype", "bf16") not in CACHE_DTYPES:
        raise unknown("cache dtype", given["dtype"], CACHE_DTYPES)
    gpu = get_gpu(given.get("gpu", Setup.gpu))
    model = given.pop("model", Setup.model)
    start, why = _start(model)
    missing = [name for name in DIMENSION_FIELDS if name not in given]
    if not start and missing:
        raise InputError(f"the link gives no {missing[0]}, and {why}")
    return replace(start or Setup(model=model),
                   **{"memory_gb": float(gpu.memory_gb)} | given | {"gpu": gpu.name})


def _number(name: str, text: str, kind: type) -> int | float:
    try:
        value = kind(text) if len(text) < 25 and text.isascii() else -1
    except ValueError:
        value = -1
    if not 0 <= value <= MOST:  # also not a number that is none
        raise InputError(f"{name} must be a {'whole ' * (kind is int)}number from 0 to {MOST:,}, not {short(text)}.")
    return value
