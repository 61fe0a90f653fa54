"""The claims of two articles on MLA as data (``data/claims.json``), each with a computation that settles it.

::

    python -m mla_lab claims --id A03 A25
"""
from __future__ import annotations

from . import maths, serving, size, speed
from .ledger import ARTICLES, KINDS, Claim, Finding, Settled, read, select, settle, tally

CLAIMS = read({**size.SETTLE, **maths.SETTLE, **speed.SETTLE, **serving.SETTLE})

__all__ = ["ARTICLES", "CLAIMS", "KINDS", "Claim", "Finding", "Settled", "select", "settle", "tally"]
