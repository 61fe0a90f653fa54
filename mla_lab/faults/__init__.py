"""Known faults: the right recipe with a value replaced, the checks that must turn red, and why they stay unseen.

Nearly all give finite, plausible numbers, and every one happened in public (where nobody reported the fault in MLA
itself, the thread is one on the same mechanism).
"""
from __future__ import annotations

from . import attending, rank, rotation, scale, weights
from .fault import Fault
from .miscounts import MISCOUNTS

MEMORY = (
    Fault("cache_expanded_every_step", "decode rebuilds all keys and values from the latent cache",
          "huggingface/transformers#47761", {"decode_mode": "naive"}, ("4.memory",),
          "every number is right; only time and memory tell"),
)

FAULTS: tuple[Fault, ...] = (
    *(Fault(m.id, m.what, m.thread, {"elements": m.elements}, (*m.caught_by, "5.grows"), m.why)
      for m in MISCOUNTS if m.elements),
    *rank.FAULTS, *rotation.FAULTS, *scale.FAULTS, *weights.FAULTS, *MEMORY, *attending.FAULTS,
)
