"""Where expanding the cache becomes cheaper than absorbing, timed: the crossover of `counts.crossover` on this machine.

Both forms are those of `mla_lab.attention`, on the same queries and the same cached rows; they compute every pair of
query and key, visible or not, and are counted so. The FLOPs of both grow with the number of heads alike, so a few will
do.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..arrays import Backend, fresh
from ..attention import Projected, attend
from ..config import MLAConfig
from .counts import attention
from .timing import Contender, measure, ratio

MODES = {"naive": "naive", "absorbed": "absorb"}  # form in `counts`: mode in `mla_lab.attention`


def both_forms(config: MLAConfig, new: int, cached: int, backend: Backend) -> tuple[Contender, Contender]:
    """The naive and the absorbed form of attention for ``new`` tokens over ``cached`` earlier ones."""
    h, n, p, r, v = (config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank,
                     config.v_head_dim)
    draw, s, xp = fresh(), cached + new, backend.xp
    q_nope, q_rope, c_kv, k_rope, w_uk, w_uv = (backend.asarray(draw(*shape)) for shape in (
        (1, h, new, n), (1, h, new, p), (1, s, r), (1, s, p), (h, n, r), (h, r, v)))
    key, query = (xp.arange(size, device=backend.device) for size in (s, new))
    visible = key[None, :] <= cached + query[:, None]
    q = Projected(q_nope, q_rope, c_kv, k_rope)
    itemsize = xp.finfo(backend.native).bits // 8
    return tuple(Contender(form, backend.name, partial(attend, q, c_kv, k_rope, w_uk, w_uv, config, visible, mode),
                           attention(config, new, cached, form, itemsize, causal=False))
                 for form, mode in MODES.items())


def crossing(
    config: MLAConfig, news: Sequence[int], cached: int, backend: Backend, rounds: int = 5
) -> list[tuple[int, float, float]]:
    """For each number of new tokens: time of the absorbed form over that of the naive one, and the same of FLOPs.

    Below 1 absorbing is cheaper. All sizes take turns in every round.
    """
    pairs = [both_forms(config, new, cached, backend) for new in news]
    for _ in measure([c for pair in pairs for c in pair], rounds):
        pass
    return [(new, ratio(absorbed, naive)[0], absorbed.work.flops / naive.work.flops)
            for new, (naive, absorbed) in zip(news, pairs, strict=True)]
