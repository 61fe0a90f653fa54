"""GTA and GLA (Zadouri et al., arXiv 2505.21487): keys and values tied in one state; latents dealt out to groups."""
from __future__ import annotations

from array_api_compat import array_namespace

from ..arrays import Array
from ..recipe import keep


def consecutive(head: int, heads: int, groups: int) -> int:
    """The group of a query head: neighbours share one."""
    return head // (heads // groups)


def gta_row(tied: Array, k_rope: Array) -> tuple[Array, Array]:
    """Keys and values ``[b, g, s, d]`` of GTA out of what is cached: tied states and one rope key ``[b, s, d/2]``.

    The value is the tied state; the key is its first half, and then the rope key that all groups share.
    """
    xp, (b, g, s, d) = array_namespace(tied), tied.shape
    shared = xp.broadcast_to(k_rope[:, None, :, :], (b, g, s, d // 2))
    return xp.concat([tied[..., : d // 2], shared], axis=-1), tied


def gla_scores(q: Array, latents: Array, w_uk: Array, group_of=consecutive, store=keep) -> Array:
    """Content scores ``[b, h, t, s]`` of GLA: head i absorbs into the latent ``[b, g, s, r/g]`` of its own group."""
    xp, h, g = array_namespace(q), q.shape[1], latents.shape[1]
    return xp.stack([store(store(q[:, i, :, :] @ w_uk[i, ...]) @ latents[:, group_of(i, h, g), :, :].mT)
                     for i in range(h)], axis=1)


def as_mla(w_uk: Array, groups: int) -> Array:
    """GLA's up-projections ``[h, n, r/g]`` as MLA's ``[h, n, r]``: zero for the latents of other groups."""
    xp, h = array_namespace(w_uk), w_uk.shape[0]
    nothing = xp.zeros_like(w_uk[0, ...])
    return xp.stack([xp.concat([w_uk[i, ...] if consecutive(i, h, groups) == g else nothing for g in range(groups)],
                               axis=-1) for i in range(h)], axis=0)
