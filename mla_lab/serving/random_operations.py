"""Random operations on a paged cache, each held against contiguous rows that were told the same.

What a row should hold is decided by its sequence's tokens up to it, as in a real model. So the oracle needs no cache
manager: it looks the rows up, lays them one behind the other in a `LatentCache`, and both must agree to the bit.
"""
from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Backend, fresh, to_numpy
from ..cache import LatentCache
from ..config import MLAConfig
from ..decode import forward
from ..recipe import Recipe
from ..weights import MLAWeights, random_state
from .blocks import CacheFull, Paging, rounded_up
from .paging import PagedCache

ROWS, OPERATIONS, NAN = 997, 10, float("nan")
KINDS = {"begin": 7, "extend": 6, "fork": 3, "drop": 4}  # with their weights
HAPPENED = (*KINDS, "hit", "copy", "evict", "refuse", "step")
WRONG = ("rows that differ", "outputs that differ", "blocks lost", "errors in the books", "wrong refusals")


class Layer(NamedTuple):
    """A layer, the rows that prefixes leave in its cache, and the hidden state of a new token of each sequence."""

    config: MLAConfig
    weights: MLAWeights
    c_kv: Array  # [ROWS, r]
    k_rope: Array  # [ROWS, p]
    rows: np.ndarray  # [ROWS, r+p]
    hidden: Array  # [sequences, 1, d]


@lru_cache(maxsize=4)
def layer(config: MLAConfig, backend: Backend) -> Layer:
    draw = fresh(101)
    weights = MLAWeights.from_hugging_face(random_state(config, backend, 100), config)
    sizes = (ROWS, config.kv_lora_rank), (ROWS, config.qk_rope_head_dim), (OPERATIONS, 1, config.hidden_size)
    c_kv, k_rope, hidden = (backend.asarray(draw(*size)) for size in sizes)
    rows = np.concatenate([to_numpy(c_kv), to_numpy(k_rope)], axis=1)
    return Layer(config, weights, c_kv, k_rope, rows, hidden)


def row_numbers(tokens: list[int]) -> list[int]:
    """Which of the drawn rows belongs to each token: it depends on the token and on all before it."""
    return list(accumulate(tokens, lambda before, token: (31 * before + token + 1) % ROWS, initial=7))[1:]


class Player:
    """One short random history of a small paged cache; ``seen`` counts what happened and what was wrong."""

    def __init__(self, seed: int, backend: Backend, rules: Paging, recipe: Recipe, layer: Layer):
        self.random, self.backend, self.recipe, self.layer = random.Random(seed), backend, recipe, layer
        self.blocks, self.size = self.random.randint(4, 16), self.random.randint(1, 5)
        self.cache = PagedCache.allocate(layer.config, self.blocks, self.size, backend, NAN, rules)
        self.told: dict[int, list[int]] = {}  # the tokens of every open sequence
        self.seen: Counter[str] = Counter()

    def play(self) -> Counter[str]:
        for number in range(OPERATIONS):
            kind = self.random.choices(list(KINDS), list(KINDS.values()))[0] if self.told else "begin"
            getattr(self, kind)(number)
            self.seen[kind] += 1
            self.seen["errors in the books"] += len(self.cache.tables.audit())
        self.step()
        self.seen["errors in the books"] += len(self.cache.tables.audit())
        for name in list(self.told):
            self.close(name)
        self.seen["blocks lost"] += self.blocks - self.cache.tables.available
        self.seen["evict"] += self.cache.tables.evicted
        return self.seen

    # --- operations -------------------------------------------------------------------------------------------------

    def begin(self, name: int) -> None:
        prompt = [self.random.randrange(2) for _ in range(self.random.randint(0, 3 * self.size))]
        hit = self.cache.tables.begin(name, prompt)
        self.told[name] = prompt[:hit]
        self.seen["hit"] += hit > 0
        self.write(name, prompt[hit:])

    def extend(self, _: int) -> None:
        name = self.random.choice(list(self.told))
        self.write(name, [self.random.randrange(2) for _ in range(self.random.randint(1, self.size + 1))])

    def fork(self, child: int) -> None:
        name = self.random.choice(list(self.told))
        self.cache.tables.fork(name, child)
        self.told[child] = list(self.told[name])

    def drop(self, _: int) -> None:
        self.close(self.random.choice(list(self.told)))

    def step(self) -> None:
        """One decode step of all open sequences at once, on pages and on contiguous rows; the first ones make room."""
        tables, layer = self.cache.tables, self.layer
        while self.told and sum(tables.needs(name, 1) for name in self.told) > tables.available:
            self.close(next(iter(self.told)))
        if not self.told:
            return
        names = list(self.told)
        self.compare(names)
        ours, theirs = (to_numpy(forward(layer.hidden[: len(names), :, :], layer.weights, layer.config, cache,
                                         recipe=self.recipe)[0])
                        for cache in (self.cache.batch(*names), self.contiguous(names)))
        self.seen["outputs that differ"] += int(np.sum(~(ours == theirs)))
        self.seen["step"] += 1

    # --- what they are made of --------------------------------------------------------------------------------------

    def close(self, name: int) -> None:
        self.compare([name])
        self.cache.tables.drop(name)
        del self.told[name]

    def write(self, name: int, tokens: list[int]) -> None:
        """Append ``tokens``; a refusal must be due, by a count that knows nothing of free lists."""
        last, had = self.cache.tables[name].blocks[-1:], len(self.told[name])
        listed = [block for t in self.cache.tables.tables.values() for block in t.blocks]
        copy = bool(tokens) and had % self.size > 0 and listed.count(last[0]) > 1
        need = rounded_up(had + len(tokens), self.size) - rounded_up(had, self.size) + copy
        said = tokens if self.random.random() < 0.8 else None  # rows whose tokens the cache is not told
        try:
            self.cache.append(name, *self.looked_up(row_numbers(self.told[name] + tokens)[had:]), said)
        except CacheFull:
            self.seen["refuse"] += 1
            self.seen["wrong refusals"] += need <= self.blocks - len(set(listed))
        else:
            self.told[name] += tokens
            self.seen["copy"] += copy

    def looked_up(self, numbers: list[int]) -> tuple[Array, Array]:
        xp = self.backend.xp
        where = xp.asarray(numbers, dtype=xp.int64, device=self.backend.device)
        return xp.take(self.layer.c_kv, where, axis=0), xp.take(self.layer.k_rope, where, axis=0)

    def compare(self, names: list[int]) -> None:
        """Count the rows that are not what their sequences were told, to the bit."""
        for name, ours in zip(names, to_numpy(self.cache.gather(names)), strict=True):
            right = self.layer.rows[row_numbers(self.told[name])]
            ours = ours[: len(right)]
            differ = np.any(ours != right, axis=1) if ours.shape == right.shape else np.ones(len(right))
            self.seen["rows that differ"] += int(np.sum(differ))

    def contiguous(self, names: list[int]) -> LatentCache:
        """What the sequences were told, in a contiguous cache with room for one token more."""
        xp, lengths = self.backend.xp, tuple(len(self.told[name]) for name in names)
        longest = max(lengths)
        cache = LatentCache.allocate(self.layer.config, len(names), longest + 1, self.backend, NAN)
        padded = [n for name in names for n in row_numbers(self.told[name]) + [0] * (longest - len(self.told[name]))]
        rows = (xp.reshape(x, (len(names), longest, x.shape[1])) for x in self.looked_up(padded))
        return cache.append(*rows, lengths)
