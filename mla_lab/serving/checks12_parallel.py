"""Case 12: one layer on several ranks gives what one process gives; what each rank keeps, and what it sends.

Equalities are held against the rounding of the very sums that ranks form, computed on balls. Two checks run real
processes; the others run the same code on threads.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..arrays import Backend, to_numpy
from ..attention import attend, project, project_out, visible_keys
from ..ball import Ball, Rounding
from ..bounds import ball, compare
from ..checks.common import BALLS, ball_weights, judge, right, under_test, worst_of
from ..decode import full_recompute, positions_from
from ..recipe import merge_by_lse
from ..verdict import Check, Setting, Verdict, exactly
from ..weights import random_state
from .comm import in_threads
from .hosting import alive
from .launch import run
from .parallel import RIGHT, Rules, shard
from .planted import fault_of
from .trial import BATCH, CALLS, CAPACITY, CONFIG, PLANS, TOKENS, Outcome, inputs, on_rank, one_process

RANKS = (2, 4)


# --- the rounding of each way to add up -------------------------------------------------------------------------------

def real_tokens() -> list[list[int]]:
    """For each request, which columns of the trial are its tokens and not padding."""
    starts = np.cumsum([0] + [tokens for tokens, _ in CALLS])
    return [[int(at) + i for at, (_, counts) in zip(starts, CALLS, strict=False) for i in range(counts[request])]
            for request in range(BATCH)]


@lru_cache(maxsize=16)
def radius(backend: Backend, plan: str, size: int) -> Ball:
    """The outputs of the trial ``[b, t, d]`` as a ball, added up as ``size`` ranks do under ``plan``."""
    hidden = to_numpy(inputs(backend)[1])
    weights = ball_weights(random_state(CONFIG, backend, seed=120), CONFIG, backend)
    parts = {name: np.zeros((BATCH, TOKENS, CONFIG.hidden_size)) for name in ("value", "worst", "spread")}
    for request, columns in enumerate(real_tokens()):
        sphere = _added_up(ball(hidden[request : request + 1, columns, :], Rounding.of(backend)), weights, plan, size)
        for name, array in parts.items():
            array[request, columns, :] = getattr(sphere, name)[0]
    return Ball(parts["value"], Rounding.of(backend), parts["worst"], parts["spread"])


def _added_up(hidden: Ball, weights: object, plan: str, size: int) -> Ball:
    """One request's outputs, as one process forms them or as ``size`` ranks do."""
    if plan == "tp":
        pieces = [full_recompute(hidden, *shard(weights, CONFIG, rank, size), "absorb", BALLS) for rank in range(size)]
        return sum(pieces[1:], start=pieces[0])
    if plan != "cp":
        return full_recompute(hidden, weights, CONFIG, "absorb", BALLS)
    t = hidden.shape[1]
    q = project(hidden, weights, CONFIG, positions_from((0,), t, hidden), BALLS)
    seen = visible_keys((0,), (t,), t, t, hidden)
    done = [attend(q, q.c_kv[:, rank::size, :], q.k_rope[:, rank::size, :], weights.w_uk, weights.w_uv, CONFIG,
                   seen[..., rank::size], "absorb", BALLS) for rank in range(size)]
    heads, _ = merge_by_lse([(part.heads, part.lse) for part in done])
    return project_out(heads, hidden, weights, BALLS)


# --- the checks -------------------------------------------------------------------------------------------------------

def outcomes(setting: Setting, plan: str, size: int, rules: Rules) -> tuple[Outcome, list[Outcome]]:
    """The trial in one process by the right conventions, and on every rank."""
    backend = setting.backend
    reference = one_process(*inputs(backend), backend, right(backend))
    given = inputs(backend, under_test(setting))
    return reference, in_threads(size, lambda comm: on_rank(plan, comm, *given, backend, rules, under_test(setting)))


def equals_one_process(plan: str, claim: str) -> Callable[[Setting, Rules], Verdict]:
    def check(setting: Setting, rules: Rules = RIGHT) -> Verdict:
        distances = []
        for size in RANKS:
            reference, ranks = outcomes(setting, plan, size, rules)
            radii = radius(setting.backend, plan, size), radius(setting.backend, "one", 1)
            distances += [compare(rank.output, reference.output, *radii) for rank in ranks]
        return judge(claim, worst_of(distances), "each of 2 and 4 ranks; a ragged prefill, a chunk, two steps")
    return check


def replicated(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Bytes of the buffers themselves against the formula under test."""
    saw, want = {}, {}
    for size in RANKS:
        for plan in PLANS:
            reference, ranks = outcomes(setting, plan, size, RIGHT)
            value = reference.cache_bytes // (BATCH * CAPACITY * CONFIG.cached_width)
            each = {"tp": rules.elements(CONFIG, size), "dp": CONFIG.cached_width // size,
                    "cp": CONFIG.cached_width // size}[plan]
            saw[f"{plan} on {size}"] = [rank.cache_bytes // (BATCH * CAPACITY * value) for rank in ranks]
            want[f"{plan} on {size}"] = [each] * size
    return exactly(REPLICATED, saw, want, "values of a layer's cache on each rank, for a token of the batch")


def communication(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    c, saw, want = CONFIG, {}, {}
    for size in RANKS:
        for plan in PLANS:
            counts = outcomes(setting, plan, size, rules)[1][-1].counts
            width = to_numpy(inputs(setting.backend)[1]).dtype.itemsize
            payload = {name: count.payload // width for name, count in counts.items()}
            saw[f"{plan} on {size}"] = [{name: count.calls for name, count in counts.items()}, payload]
            values = BATCH * TOKENS * c.hidden_size
            heads = BATCH * TOKENS * c.num_attention_heads
            calls, numbers = {"tp": ((4, 0), (values, 0)), "dp": ((0, 4), (0, values // size)),
                              "cp": ((0, 8), (0, heads * (c.v_head_dim + 1)))}[plan]
            want[f"{plan} on {size}"] = [dict(zip(("all_reduce", "all_gather"), pair, strict=True))
                                         for pair in (calls, numbers)]
    return exactly(COMMUNICATION, saw, want, "calls, and numbers that each rank puts in; 4 calls of the layer")


@lru_cache(maxsize=4)
def on_processes(size: int, rules: Rules = RIGHT) -> dict:
    """One start of real ranks: a run, and one in which rank 1 is killed."""
    fault = fault_of(rules)
    return run(size, lose=1) if fault is None else run(size, fault=fault)


def processes(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Real processes, whatever the backend: torch in float64."""
    backend = setting.backend.with_dtype("float64")
    found = on_processes(2, rules)["ranks"]
    reference = to_numpy(one_process(*inputs(backend), backend, right(backend)).output)
    apart = max(rank[plan]["distance"] for rank in found for plan in PLANS)
    reach = max(float(np.max(radius(backend, plan, 2).worst + radius(backend, "one", 1).worst)) for plan in PLANS)
    bound, left = reach / float(np.abs(reference).max()), sum(alive(rank["pid"]) for rank in found)
    same = all(rank["tp"]["cache_bytes"] == rank["one process"]["cache_bytes"] for rank in found)
    return Verdict(PROCESSES, apart, 0.0, bound, apart <= bound and not left and same,
                   f"2 ranks, largest distance over the largest output; {left} processes left; gloo, torch in float64")


def lost_rank(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    return exactly(LOST, on_processes(2)["lost"], "rank 1 of 2 was killed by SIGKILL; the other ranks were stopped",
                   "what the one error says")


TP = "tensor parallelism over heads gives what one process gives"
DP = "data-parallel attention gives what one process gives"
CP = "attention to tokens dealt out over ranks, merged by LSE, gives what one process gives"
REPLICATED = "under tensor parallelism every rank caches the whole latent; the other two keep each token once"
COMMUNICATION = "tensor parallelism sums b t d numbers a call; context parallelism gathers b t h (v + 1)"
PROCESSES = "ranks that are processes agree with one process as threads do, and leave nothing behind"
LOST = "a rank that is killed ends the run with one error that names it"

CHECKS = (
    Check("12.tp", TP, equals_one_process("tp", TP)), Check("12.dp", DP, equals_one_process("dp", DP)),
    Check("12.cp", CP, equals_one_process("cp", CP)), Check("12.replicated", REPLICATED, replicated),
    Check("12.communication", COMMUNICATION, communication), Check("12.processes", PROCESSES, processes),
    Check("12.lost_rank", LOST, lost_rank),
)
