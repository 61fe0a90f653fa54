"""How long one decode step takes at least: each GPU's bytes and FLOP against its published peaks (a roofline)."""
from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError, positive_int
from ..models import Model
from .capacity import WEIGHT_DTYPES, Deployment

NODE = 8  # GPUs that NVLink (or the like) joins
NETWORK_GB = 50.0  # GB/s of a 400 Gb/s network card, one for each GPU, beyond a node


@dataclass(frozen=True)
class Step:
    """One decode step of ``users`` requests, one token each: seconds of each term on the fullest GPU.

    ``weights`` and ``products`` are of the same kernels, so the larger one counts; so are ``cache`` and ``attention``.
    Communication is not overlapped with anything.
    """

    users: int
    weights: float  # reading the weights that the step touches
    products: float  # multiplying them
    cache: float  # reading the cache
    attention: float  # multiplying with it
    communication: float

    @property
    def seconds(self) -> float:
        return max(self.weights, self.products) + max(self.cache, self.attention) + self.communication

    @property
    def tokens_per_second(self) -> float:
        """Of all GPUs together."""
        return self.users / self.seconds

    @property
    def longest(self) -> str:
        """The term that takes most of the time, in words."""
        terms = {"reading weights": self.weights, "products with weights": self.products,
                 "reading the cache": self.cache, "attention arithmetic": self.attention,
                 "communication": self.communication}
        return max(terms, key=terms.get)


def attention_flops(model: Model, context: float) -> float:
    """FLOP of one token's attention over ``context`` cached ones, all layers.

    Absorbed MLA: 2(2r + p) a pair and head, for the latent is key and value; keys and values of width w: 4w.
    """
    m = model.mla
    pair = 2 * (2 * m.kv_lora_rank + m.qk_rope_head_dim) if m else 4 * model.head_dim
    return model.cache_layers * model.num_attention_heads * pair * context


def decode_step(d: Deployment, users: int, efficiency: float = 1.0, link_gb: float | None = None) -> Step:
    """The least time of a decode step of ``users`` requests, which hold ``d.context`` tokens each.

    Parameters
    ----------
    users : int
        At least 1; they need not fit.
    efficiency : float
        Share of the published peaks that is reached; 1 gives a lower bound.
    link_gb : float, optional
        GB/s to other GPUs, instead of the data sheet's within a node of 8 and a 400 Gb/s card beyond.

    Notes
    -----
    Tensor parallelism sums a hidden state of every token twice a layer: 2(N-1)/N of its bytes on each link (ring).
    Data-parallel attention sends a token to its k experts in fp8 and gets it back in bf16 (DeepSeek-V3, arXiv
    2412.19437, section 3.2.2 and 3.4), evenly spread. Experts are chosen uniformly.
    """
    if d.parameters is None:
        raise InputError("a decode step cannot be estimated from weights_gb alone; give the model's config.json.")
    positive_int("users", users)
    p, n, layers = d.parameters, d.gpus, d.model.num_hidden_layers
    bandwidth, own = d.gpu.bandwidth_tb * 1e12 * efficiency, users / (n if d.parallel == "dp" else 1)
    link = 1e9 * (link_gb or (d.gpu.link_gb if n <= NODE else NETWORK_GB))
    groups, shares = d.groups(), d.shares()
    groups["vocabulary"] = 2 * (p.head or p.embedding)  # one row of the input embedding is read, not all
    read = sum(float(size * shares[name]) for name, size in groups.items() if name != "experts")
    read += float(groups["experts"] * shares["experts"]) * p.experts_touched(users) / p.experts_per_layer
    dense = p.active - p.experts * p.experts_per_token // p.experts_per_layer
    if d.parallel == "tp":
        flop = 2 * users * (dense - p.for_all_heads - p.small) / n + 2 * users * (p.for_all_heads + p.small)
    else:
        flop = 2 * own * dense
    flop += 2 * users * p.experts * p.experts_per_token / p.experts_per_layer / n
    pairs = own * attention_flops(d.model, d.context) / (n if d.parallel == "tp" else 1)
    if d.parallel == "tp":
        sent = 2 * layers * 2 * (n - 1) / n * users * p.hidden_size * 2
    else:
        sent = p.moe_layers * own * p.experts_per_token * p.hidden_size * (1 + 2) * (n - 1) / n
    return Step(users=users, weights=read / bandwidth,
                products=flop / (d.gpu.flops(float(WEIGHT_DTYPES[d.weight_dtype][0])) * efficiency),
                cache=own * d.context * float(d.token_bytes_per_gpu()) / bandwidth,
                attention=pairs / (d.gpu.flops(2) * efficiency), communication=sent / link if n > 1 else 0.0)
