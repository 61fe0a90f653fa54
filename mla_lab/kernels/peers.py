"""What a user would call today for the same attention: the baselines of the benchmark.

Each function takes the arrays of a step (``q [b, 1, h, r+p]``, ``cache [b, s, r+p]``, ``config``, ``scale``, ``work``,
``device``) and returns a `Contender`, or raises `InputError` with the line that says why it is left out.
"""
from __future__ import annotations

import math
from typing import Any, Protocol

from ..config import MLAConfig
from ..errors import InputError
from .counts import Work, attention, mha_kernel
from .timing import Contender

NARROW = 512  # hidden size of the layer from transformers: its projections shall not count, its attention shall


class Arrays(Protocol):
    """What a baseline is made of; `mla_lab.kernels.bench.Step` has it."""

    config: MLAConfig
    q: Any
    cache: Any
    scale: float
    work: Work
    device: str


def available_bytes(device: str) -> float:
    """Memory that may be taken now; infinite where the system does not say."""
    if device == "cuda":
        import torch
        return float(torch.cuda.mem_get_info()[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf


def room_for(name: str, elements: float, at: Arrays) -> None:
    """Refuse what would need more than two thirds of the free memory."""
    need, free = elements * at.cache.itemsize, available_bytes(at.device)
    if need > free * 2 / 3:
        raise InputError(f"{name} is left out: it needs about {need / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free.")


def padded(at: Arrays) -> Contender:
    """The public fused call with heads folded into rows; the cached row is the value, too, so that it can be fused."""
    import torch.nn.functional as F
    q, k, scale, r = at.q, at.cache[:, None], at.scale, at.config.kv_lora_rank
    return Contender("SDPA, heads folded, value = padded row", "torch",
                     lambda: F.scaled_dot_product_attention(q, k, k, scale=scale)[..., :r], at.work, "stock")


def unpadded(at: Arrays) -> Contender:
    """The same with the value r wide, which torch does not fuse."""
    import torch.nn.functional as F
    q, k, scale, r = at.q, at.cache[:, None], at.scale, at.config.kv_lora_rank
    return Contender("SDPA, heads folded, value r wide", "torch",
                     lambda: F.scaled_dot_product_attention(q, k, k[..., :r], scale=scale), at.work, "stock")


def enable_gqa(at: Arrays) -> Contender:
    """The documented way to share one key head; it expands the cache to all heads."""
    import torch.nn.functional as F
    (b, _, h, width), k, scale, r = at.q.shape, at.cache[:, None], at.scale, at.config.kv_lora_rank
    q = at.q.transpose(1, 2)  # [b, h, 1, r+p]
    room_for("SDPA, enable_gqa", b * h * k.shape[2] * (2 * width + r), at)
    return Contender("SDPA, enable_gqa", "torch", lambda: F.scaled_dot_product_attention(
        q, k, k[..., :r], scale=scale, enable_gqa=True), at.work, "stock")


def expanded_mha(at: Arrays) -> Contender:
    """One step of MHA over keys and values that were expanded once and kept."""
    import torch
    import torch.nn.functional as F
    c, (b, s, _), like = at.config, at.cache.shape, at.cache
    h, width, v = c.num_attention_heads, c.qk_head_dim, c.v_head_dim
    room_for("MHA, expanded cache", b * s * h * (width + v), at)
    q = like.new_ones(b, h, 1, width)
    keys, values = (torch.full((b, h, s, w), 0.5, dtype=like.dtype, device=like.device) for w in (width, v))
    return Contender("MHA, expanded cache", "torch", lambda: F.scaled_dot_product_attention(
        q, keys, values, scale=at.scale), b * mha_kernel(c, 1, s - 1, like.itemsize), "stock", same_inputs=False)


def transformers_step(at: Arrays) -> Contender:
    """One step of transformers' DeepseekV3Attention: a latent cache that is expanded whole in every step.

    The hidden size is `NARROW`, so that what is timed is attention and not the projections. Its cache grows by a token
    in every call.
    """
    import torch
    try:
        from transformers import DynamicCache
        from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
    except ImportError:
        raise InputError("transformers' step is left out: transformers is not installed, or has no "
                         "DeepseekV3Attention.") from None
    c, (b, s, _) = at.config, at.cache.shape
    h, r, p = c.num_attention_heads, c.kv_lora_rank, c.qk_rope_head_dim
    room_for("transformers' step", 3 * b * s * h * (c.qk_head_dim + c.v_head_dim), at)
    theirs = DeepseekV3Config(
        hidden_size=NARROW, num_attention_heads=h, num_key_value_heads=h, q_lora_rank=None, kv_lora_rank=r,
        qk_nope_head_dim=c.qk_nope_head_dim, qk_rope_head_dim=p, v_head_dim=c.v_head_dim, num_hidden_layers=1,
        attn_implementation="sdpa")
    like = {"dtype": at.cache.dtype, "device": at.cache.device}
    layer, cache = DeepseekV3Attention(theirs, 0).to(**like).eval(), DynamicCache()
    cache.update(torch.full((b, 1, s - 1, r), 0.5, **like), torch.full((b, 1, s - 1, p), 0.5, **like), 0)
    hidden, turn = torch.full((b, 1, NARROW), 0.5, **like), torch.full((b, 1, p), math.sqrt(0.5), **like)

    def step() -> Any:
        with torch.no_grad():
            return layer(hidden, (turn, turn), None, cache)  # turn: cosine and sine alike

    return Contender("transformers' DeepseekV3Attention step", "torch", step,
                     b * attention(c, 1, s - 1, "naive", at.cache.itemsize), "stock", same_inputs=False)


def flash_mla(at: Arrays) -> Contender:
    """The dense Hopper kernel of FlashMLA, from the wheel sgl-flash-mla. No GPU has run this yet."""
    import torch
    try:
        from flash_mla import flash_mla_with_kvcache, get_mla_metadata
    except (ImportError, OSError) as error:
        raise InputError(f"FlashMLA is left out: {str(error).splitlines()[0]}.") from None
    (b, s, width), r, page, q = at.cache.shape, at.config.kv_lora_rank, 64, at.q
    if s % page or q.dtype not in (torch.bfloat16, torch.float16) or (width, r) != (576, 512):
        raise InputError("FlashMLA is left out: it takes 16-bit rows of 576 in whole pages of 64.")
    pages = at.cache.reshape(b * s // page, page, 1, width)
    table = torch.arange(b * s // page, dtype=torch.int32, device=q.device).reshape(b, s // page)
    lengths = torch.full((b,), s, dtype=torch.int32, device=q.device)
    plan = get_mla_metadata()[0]  # filled in by the first call, for these lengths
    # Its default scale would be 576^-1/2, that of the absorbed width.
    return Contender("FlashMLA (sgl-flash-mla)", "torch", lambda: flash_mla_with_kvcache(
        q, pages, table, lengths, r, plan, softmax_scale=at.scale, causal=True, use_legacy=True), at.work, "stock")


FOLDED = (padded, unpadded)
EXPANDING = (enable_gqa, expanded_mha, transformers_step)  # what they expand must fit: one request only
