"""Case 5, once more: the layer against an implementation that shares no line with it.

Every other check compares two paths through the same functions; a mistake that both share is invisible to them.
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import by_the_book
from ..arrays import to_numpy
from ..bounds import compare
from ..config import Yarn
from ..verdict import Check, Setting, Verdict
from .case5_decode import in_pieces, layer
from .common import SMALL, judge, under_test, worst_of

# A ramp over most pairs, unequal mscales, an eps that shows; and the other branch of every choice.
FULL = replace(SMALL, qk_rope_head_dim=16, rms_norm_eps=0.05, rope_theta=50.0,
               rope_scaling=Yarn(8.0, 64, beta_fast=6.0, beta_slow=0.5, mscale=0.9, mscale_all_dim=0.6))
PLAIN = replace(SMALL, qk_rope_head_dim=8, q_lora_rank=None, rope_scaling=None, rope_interleave=False)


def paper(setting: Setting) -> Verdict:
    backend, distances = setting.backend, []
    for seed, config in ((70, FULL), (71, PLAIN)):
        state, hidden, _, radius = layer(config, backend, 9, 2, seed)
        plain = {name: to_numpy(w).astype(np.float64) for name, w in state.items()}
        book = np.stack([by_the_book.layer(row, plain, config) for row in to_numpy(hidden)])
        saw, _ = in_pieces(hidden, state, config, backend, [4, 1, 3, 1], under_test(setting), ("absorb", "naive"))
        distances.append(compare(saw, book, radius, radius))
    return judge(PAPER, worst_of(distances), "with and without query compression, YaRN and interleaved pairs; 9 tokens")


PAPER = "the layer gives what the paper's equations give, written out token by token without sharing any code"

CHECKS = (Check("5.paper", PAPER, paper),)
