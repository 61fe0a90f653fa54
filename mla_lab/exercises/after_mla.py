"""Exercises of notebook 15: what sparse attention cuts, two widths, the best visible keys, and a split softmax."""
from __future__ import annotations

from .registry import exercise


@exercise("15", "recall", right="c", wrong={
    "a": "the row gets longer: 704 values instead of 576",
    "b": "the indexer compares every query with every cached token; only the attention behind it is cut",
    "d": "all rows stay in the cache, for the next query may choose others",
})
def check_what_dsa_saves(answer):
    """What does sparse attention on top of MLA cut: a the cache, b the index scores, c attention's work, d old rows?"""
    return answer


@exercise("15", "compute", right=320, wrong={
    288: "half of the rope key would be half of an angle: each GPU keeps all 64",
    576: "that is all of it; each group's latent of 256 lies on one GPU",
    256: "the rope key of 64 is kept on each GPU as well",
    640: "that is both GPUs together",
})
def check_gla_on_two(answer):
    """Values for a token and layer on each of 2 GPUs: GLA with two latents of 256 and a rope key of 64."""
    return answer


@exercise("15", "compute", right=1024, wrong={
    2048: "more rows than columns: the rank cannot pass the hidden size",
    4096: "count keys and values of the 8 groups, not of the 32 query heads",
    512: "the latent holds keys and values together",
    1088: "nothing is rotated here; the rope key comes apart",
})
def check_latent_width(answer):
    """Largest latent of an exact conversion: 8 groups, keys and values 128 wide, hidden size 1,024, no rotation."""
    return answer


def _best(scores, visible, k):
    allowed = [s for s in range(len(scores)) if visible[s]]
    return sorted(sorted(allowed, key=lambda s: (-scores[s], s))[:k])


def _future(scores, visible, k):
    return sorted(sorted(range(len(scores)), key=lambda s: (-scores[s], s))[:k])


def _masked_late(scores, visible, k):
    return [s for s in _future(scores, visible, k) if visible[s]]


def _lowest(scores, visible, k):
    allowed = [s for s in range(len(scores)) if visible[s]]
    return sorted(sorted(allowed, key=lambda s: (scores[s], s))[:k])


def _largest_size(scores, visible, k):
    allowed = [s for s in range(len(scores)) if visible[s]]
    return sorted(sorted(allowed, key=lambda s: (-abs(scores[s]), s))[:k])


@exercise("15", "implement", right=_best, wrong={
    _future: "some of these keys lie in the future: look at visible",
    _masked_late: "masked too late: future keys took places that visible ones should have",
    _lowest: "those are the lowest scores",
    _largest_size: "a score of -9 is worse than one of 0: no absolute value",
})
def check_best_keys(answer):
    """A function (scores, visible, k) -> the positions, in rising order, of the k best visible keys."""
    inputs = (([3, -9, 7, 1, 8, 2], [1, 1, 1, 1, 0, 0], 2), ([5, 4, 6, 9], [1, 1, 1, 1], 3),
              ([-2, -7, -1, 5], [1, 1, 1, 0], 2), ([2, 1, 3], [1, 1, 0], 4))
    return [list(answer(*x)) for x in inputs]


@exercise("15", "find the bug", right=3, wrong={
    1: "the query's latent channels are dealt out like the cache's: right",
    2: "a rank's part of the products: right, and the parts add up",
    4: "a rank averages its own channels with the weights that it has; are those the right weights?",
})
def check_softmax_line(answer):
    """The number of the line that makes dealt-out channels an approximation."""
    return answer
