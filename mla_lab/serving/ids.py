"""Token ids, as what a block of a cache is known by: text that is not the same must not have the same ids."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InputError


def whole_ids(tokens: Sequence[int]) -> list[int]:
    """``tokens`` as integers of 64 bits; 1.5 would become 1, and be taken for it.

    Raises
    ------
    InputError
        If they are not whole numbers of 64 bits, one behind the other.
    """
    try:
        found = np.asarray(tokens)
    except ValueError:  # rows of different lengths
        found = np.empty((), object)
    if found.ndim == 1 and (found.size == 0 or (found.dtype.kind in "iu" and found.max() < 2**63)):
        return found.tolist()
    raise InputError(f"tokens must be whole numbers of 64 bits, one behind the other, not {tokens!r:.60}.")
