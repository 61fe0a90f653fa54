"""Exercises of notebook 04: the same products in another order."""
from __future__ import annotations

from .registry import exercise


@exercise("04", "compute", right=((1, 1, 0), (0, 0, 2)), wrong={
    ((1, 1, 0), (2, 4, 0)): "kv_b_proj holds W_UK and W_UV head by head, not all W_UK first",
    (1, 1, 2): "the heads are independent: do not sum over them",
    ((1, 1, 0), (0, 2, 0)): "an entry of q picks a row of W_UK, not a column",
})
def check_absorbed_query(answer):
    """Latent queries ``[2, 3]`` of the small example: q_nope times W_UK, head by head."""
    return answer
