"""Values cached for a token in a layer, by MLA and by what came after, at DeepSeek-V3's dimensions where they apply."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..models import get_model

V3 = get_model("DeepSeek-V3").mla
R, P, D, H = V3.kv_lora_rank, V3.qk_rope_head_dim, V3.v_head_dim, V3.num_attention_heads
INDEX = get_model("DeepSeek-V3.2").index_head_dim
GROUPS = 8


@dataclass(frozen=True)
class Method:
    """One way to cache.

    Parameters
    ----------
    name, formula, source : str
    on : callable
        Values on each of so many tensor-parallel GPUs; on one GPU that is all of them.
    """

    name: str
    formula: str
    on: Callable[[int], int]
    source: str


def heads_on(n: int, heads: int) -> int:
    """Key-value heads, or groups, of each of ``n`` GPUs: dealt out until each holds one."""
    return max(1, heads // n)


METHODS = (
    Method("MHA", "2 h d", lambda n: 2 * heads_on(n, H) * D, "arXiv 2405.04434, table 1"),
    Method("GQA-8", "2 g d", lambda n: 2 * heads_on(n, GROUPS) * D, "arXiv 2405.04434, table 1"),
    Method("MQA", "2 d", lambda n: 2 * D, "arXiv 2405.04434, table 1"),
    Method("MLA", "r + p", lambda n: R + P, "arXiv 2405.04434, table 1"),
    Method("MLA + DSA", "r + p + index key", lambda n: R + P + INDEX, "deepseek-ai/DeepSeek-V3.2-Exp@3b99a53"),
    Method("GTA-8", "g d + d / 2", lambda n: heads_on(n, GROUPS) * D + D // 2, "arXiv 2505.21487"),
    Method("GLA-2", "2 (r / 2) + p", lambda n: heads_on(n, 2) * R // 2 + P, "arXiv 2505.21487"),
    # Whether the rope key is whole on every rank could not be read in the paper; this takes it to be.
    Method("TPLA", "r + p, r dealt out", lambda n: R // n + P, "arXiv 2508.15881; rope key on each GPU assumed"),
    Method("TransMLA", "r + p", lambda n: R + P, "arXiv 2502.07864"),
)
