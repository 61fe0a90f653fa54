"""Faults of case 2: the rank of keys and values, and the tolerance it is judged by."""
from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, device

from ..arrays import Array
from ..rope import rotate
from .fault import Fault


def keys_turned(keys: Array) -> Array:
    """RoPE over all channels of the rebuilt keys ``[b, h, s, n]``, if there is an even number of them."""
    if keys.shape[3] % 2:
        return keys
    at = array_namespace(keys).arange(keys.shape[2], device=device(keys))
    return rotate(keys, at, 1e4 ** (-np.arange(0, keys.shape[3], 2) / keys.shape[3]))


def keys_turned_by_quarters(keys: Array) -> Array:
    """The one rotation with whole-number entries, a quarter turn a token: exact in every arithmetic."""
    xp = array_namespace(keys)
    half, odd = keys.shape[3] // 2, xp.arange(keys.shape[2], device=device(keys))[:, None] % 2 == 1
    return xp.where(odd, xp.concat([-keys[..., half:], keys[..., :half]], axis=-1), keys)


def first_channels(latents: Array, up: Array, k: int) -> Array:
    return latents[:, :k] @ up[:k, :]


def zero_tolerance(sigma: Array, rows: int, columns: int, radius: float) -> float:
    return 0.0


FAULTS = (
    Fault("rope_on_rebuilt_keys", "RoPE over all channels of the keys rebuilt from the latent", "fxmeng/TransMLA#2",
          {"expanded_keys": keys_turned}, ("2.keys", "2.joint", "2.rope_key", "2.model"),
          "outputs stay plausible, and no test looks at the rank of the keys"),
    Fault("quarter_turns_on_rebuilt_keys", "the same with quarter turns, which have no rounding", "fxmeng/TransMLA#2",
          {"expanded_keys": keys_turned_by_quarters}, ("2.keys", "2.exact"),
          "outputs stay plausible, and no test looks at the rank of the keys"),
    Fault("zero_rank_tolerance", "singular values of rounding size counted as rank", "numpy/numpy#28716",
          {"rank_tolerance": zero_tolerance}, ("2.keys", "2.joint", "2.rope_key", "2.model"),
          "with no more tokens than the rank, every matrix has the rank that was expected"),
    Fault("latent_sliced", "the latent cut to its first channels instead of its largest directions",
          "marin-community/marin#7424", {"truncate": first_channels}, ("2.eckart_young",),
          "any truncation has the right rank; only the error tells a good one"),
)
