"""Exercises of notebook 12: who keeps what, what it costs, which tokens are whose, and a line that breaks the sum."""
from __future__ import annotations

from .registry import exercise


@exercise("12", "recall", right="b", wrong={
    "a": "key-value heads are dealt out with their query heads; what has no head axis?",
    "c": "routed experts are cut or dealt out, whatever attention does",
    "d": "kv_b_proj holds W_UK and W_UV of each head, so it is cut by head; what has no head axis?",
})
def check_whole_everywhere(answer):
    """What does each of 8 tensor-parallel GPUs keep whole: a GQA's keys, b the latents, c experts, d kv_b_proj?"""
    return answer


@exercise("12", "compute", close=2e-3, right=100 * 4096 * 70272 / 1e9, wrong={
    100 * 4096 * 70272 / 8 / 1e9: "the latent has no heads to deal out: every one of the 8 GPUs keeps all of it",
    100 * 4096 * 70272 * 8 / 1e9: "that is what all 8 GPUs hold together; the question is about one",
    100 * 4096 * 1152 / 1e9: "that is one layer; there are 61",
    100 * 4096 * 61 * 576 / 1e9: "bf16 takes 2 B a value",
    100 * 4096 * 70272 / 2**30: "that is in GiB; GB is 10^9 B",
})
def check_cache_on_each(answer):
    """GB of cache on each of 8 tensor-parallel GPUs: DeepSeek-V3, bf16, 100 users of 4,096 tokens."""
    return answer


def _stripe(start, count, rank, size):
    return [p for p in range(start, start + count) if p % size == rank]


def _ignores_start(start, count, rank, size):
    return [start + i for i in range(count) if i % size == rank]


def _blocks(start, count, rank, size):
    return [start + i for i in range(rank * count // size, (rank + 1) * count // size)]


def _new_index(start, count, rank, size):
    return [i for i in range(count) if (start + i) % size == rank]


@exercise("12", "implement", right=_stripe, wrong={
    _ignores_start: "a token's rank follows from its absolute position, not from its place among the new ones",
    _blocks: "those are consecutive blocks: a step of one token would always land on the same rank",
    _new_index: "right tokens, but their absolute positions are asked for, not their places among the new ones",
})
def check_owned(answer):
    """A function (start, count, rank, size) -> positions of the new tokens start, start + 1, ... that a rank keeps."""
    inputs = ((5, 6, 1, 4), (0, 7, 2, 3), (8, 1, 0, 4), (3, 9, 0, 2))
    return [list(answer(*x)) for x in inputs]


@exercise("12", "find the bug", right=4, wrong={
    1: "a rank projects the queries of its own heads: right",
    2: "every rank needs the whole latent, so every rank makes it: right, if not economical",
    3: "its own heads attend to all cached latents: right",
    5: "the sum over ranks belongs there; look at what each rank puts into it",
})
def check_bias_line(answer):
    """The number of the line that is wrong on more than one rank."""
    return answer
