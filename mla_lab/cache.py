"""The latent cache: for each token one row of r + p values, the same for all heads."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from array_api_compat import array_namespace

from .arrays import Array, Backend, expect_shape, same_kind
from .config import MLAConfig
from .errors import InputError, positive_int


@dataclass(frozen=True)
class LatentCache:
    """A buffer of ``rows [b, s, r+p]``: the latent after its norm, then the rope key after its rotation.

    ``append`` writes into the shared buffer behind the used rows and returns a new handle; an older handle still sees
    its own rows. (Two continuations of one handle would overwrite each other: copy first.)
    """

    rows: Array
    lengths: tuple[int, ...]
    latent: int  # r

    @classmethod
    def allocate(cls, config: MLAConfig, batch: int, capacity: int, backend: Backend, fill: float = 0.0) -> LatentCache:
        """An empty cache for ``capacity`` tokens a row; ``fill`` NaN shows up whoever reads an unused slot."""
        shape = (positive_int("batch", batch), positive_int("capacity", capacity), config.cached_width)
        return cls(backend.full(shape, fill), (0,) * batch, config.kv_lora_rank)

    @property
    def c_kv(self) -> Array:
        """``[b, s, r]``, a view."""
        return self.rows[..., : self.latent]

    @property
    def k_rope(self) -> Array:
        """``[b, s, p]``, a view."""
        return self.rows[..., self.latent :]

    @property
    def capacity(self) -> int:
        return self.rows.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer as it is: size times the dtype's width."""
        return math.prod(self.rows.shape) * array_namespace(self.rows).finfo(self.rows.dtype).bits // 8

    def append(self, c_kv: Array, k_rope: Array, counts: Sequence[int] | None = None) -> LatentCache:
        """Write the first ``counts[i]`` of the new rows of batch row i behind its used ones.

        Parameters
        ----------
        c_kv : array [b, t, r]
        k_rope : array [b, t, p]
        counts : sequence of int, optional
            New tokens of each batch row, 0 to t; all t by default.
        """
        b, t, r = self.rows.shape[0], c_kv.shape[1], self.latent
        expect_shape("c_kv", c_kv, (b, None, r), "this cache")
        expect_shape("k_rope", k_rope, (b, t, self.rows.shape[2] - r), "this cache")
        same_kind(cache=self.rows, c_kv=c_kv, k_rope=k_rope)
        counts = check_counts(counts, b, t)
        lengths = tuple(have + new for have, new in zip(self.lengths, counts, strict=True))
        if max(lengths) > self.capacity:
            raise InputError(f"the cache holds {self.capacity} tokens a row, but {max(lengths)} are needed.")
        for i, (have, new) in enumerate(zip(self.lengths, counts, strict=True)):
            self.rows[i, have : have + new, :r] = c_kv[i, :new, :]
            self.rows[i, have : have + new, r:] = k_rope[i, :new, :]
        return replace(self, lengths=lengths)


def check_counts(counts: Sequence[int] | None, batch: int, tokens: int) -> tuple[int, ...]:
    """``counts`` as a tuple, ``tokens`` for every row by default; refuse what does not fit."""
    if counts is None:
        return (tokens,) * batch
    whole = hasattr(counts, "__len__") and all(hasattr(c, "__index__") for c in counts)
    if not whole or len(counts) != batch or any(not 0 <= int(c) <= tokens for c in counts):
        raise InputError(f"counts must give a number from 0 to {tokens} for each of {batch} rows, not {counts!r}.")
    return tuple(int(c) for c in counts)
