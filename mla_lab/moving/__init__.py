"""Figures that are made to be moved: what each shows is how it changes, or does not, while a slider goes."""
from __future__ import annotations

from .counts import cache_rows, flop, per_gpu
from .maths import faults, logits, pair, rank

__all__ = ["cache_rows", "faults", "flop", "logits", "pair", "per_gpu", "rank"]
