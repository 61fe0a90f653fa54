"""TPLA (arXiv 2508.15881): the latent's channels dealt out to tensor-parallel ranks, behind a change of basis."""
from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..errors import InputError, positive_int
from ..recipe import keep


def hadamard(n: int) -> np.ndarray:
    """Sylvester's matrix of 1 and -1, ``n`` a power of 2: ``H H^T = n I``. It spreads each channel over all ranks."""
    if positive_int("n", n) & (n - 1):
        raise InputError(f"n must be a power of 2, not {n}.")
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def shard_scores(q_latent: Array, c_kv: Array, ranks: int, store=keep) -> list[Array]:
    """What each rank contributes to the content scores ``[b, h, t, s]`` from its share of the r channels."""
    if c_kv.shape[-1] % positive_int("ranks", ranks):
        raise InputError(f"a latent of {c_kv.shape[-1]} channels cannot be dealt out evenly to {ranks} ranks.")
    width = c_kv.shape[-1] // ranks
    parts = (slice(a * width, (a + 1) * width) for a in range(ranks))
    return [store(q_latent[..., part] @ c_kv[:, None, :, part].mT) for part in parts]
