"""Case 13: what fits on GPUs, what a step and a transfer cost, and when prefill and decode should be apart.

Nothing here is measured. The capacity model is held against published sizes and recommended machines, the simulation
against an oracle without events, and DeepSeek's published day against itself.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .. import footprint as fp
from ..models import get_model
from ..verdict import Check, Setting, Verdict, exactly
from . import published_day as day
from .by_steps import by_steps, waits_in_a_queue
from .capacity import Deployment
from .gpus import Gpu, get_gpu
from .parameters import Parameters, parameters, published
from .rates import Link, left_after_prefill, prefill_flops, prefill_seconds, transfer_seconds
from .requests import Rates, Request
from .scenario import Scenario, all_at_once, sweeps, unchanged
from .simulate import simulate
from .step import decode_step

V3 = get_model("DeepSeek-V3")
MHA = replace(V3, name="V3 with MHA", mla=None, num_key_value_heads=128, head_dim=128)
# docs.sglang.io/basic_usage/deepseek_v3.html: machines recommended for DeepSeek-V3 and R1, and the format of weights.
MACHINES = (("H200", 8, "fp8"), ("B200", 8, "fp8"), ("MI300X", 8, "fp8"), ("H100", 16, "fp8"), ("H20", 16, "fp8"),
            ("H200", 16, "bf16"), ("H100", 32, "bf16"), ("A100", 32, "bf16"), ("A100", 16, "int8"),
            ("L40S", 32, "int8"), ("H100", 8, "int4"), ("A100", 8, "int4"), ("H200", 4, "int4"))
HALF_WILL_DO = ("8 MI300X, fp8", "16 H20, fp8")
TTFT, TPOT = 1.0, 0.06  # s, limits on the time to the first token and on the mean time of the others


def as_published(gpu: Gpu) -> Gpu:
    return gpu


def bits_to_bytes(gigabits: float) -> float:
    """GB/s of a link of so many Gb/s."""
    return gigabits / 8


@dataclass(frozen=True)
class Rules:
    """What an estimate of serving has to get right. The defaults are right."""

    deployment: type[Deployment] = Deployment
    active: Callable[[Parameters], int] = field(default=Parameters.active.fget)
    gpu: Callable[[Gpu], Gpu] = as_published
    link: Callable[[float], float] = bits_to_bytes
    ttft: Callable[[Request], float] = field(default=Request.ttft.fget)
    tpot: Callable[[Request], float] = field(default=Request.tpot.fget)
    node: Callable[[Rates], Rates] = unchanged
    revenue: Callable[..., float] = day.revenue

    def on(self, gpu: str, gpus: int, parallel: str = "tp", model: Any = V3, context: int = 8192, **how: Any
           ) -> Deployment:
        """DeepSeek-V3's weights on GPUs, with the cache of ``model``."""
        return self.deployment(model, self.gpu(get_gpu(gpu)), gpus, parallel, context, parameters(V3), **how)


RIGHT = Rules()


def as_said(counted: int, said: str) -> str:
    """``counted`` in the unit and the digits of ``said`` (36.6B), rounded, or cut if that is what is said."""
    number = counted / {"B": 10**9, "T": 10**12}[said[-1]]
    digits = len(said[:-1].partition(".")[2])
    cut = math.floor(number * 10**digits) / 10**digits
    return said if f"{cut:.{digits}f}{said[-1]}" == said else f"{number:.{digits}f}{said[-1]}"


def sizes(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    saw, want = {}, {}
    for name, said in published().items():
        counted = parameters(get_model(name))
        both = {"total": counted.total, "active": rules.active(counted)}
        want[name] = [said[key] for key in both if key in said]
        saw[name] = [as_said(count, said[key]) for key, count in both.items() if key in said]
    return exactly(SIZES, saw, want, "all weights, and those that multiply a token: the embedding is looked up; no MTP")


def machines(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    saw = {f"{gpus} {gpu}, {weights}": [rules.on(gpu, n, weight_dtype=weights).users() > 0 for n in (gpus, gpus // 2)]
           for gpu, gpus, weights in MACHINES}
    want = {name: [True, name in HALF_WILL_DO] for name in saw}
    return exactly(MACHINES_HOLD, saw, want, "a request of 8,192 tokens on the recommended machine, and on half of it; "
                                             f"half will just do for {' and '.join(HALF_WILL_DO)}")


def eight_h100(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """The claim that 8 H100 cannot exceed a batch of 10 with MHA's cache, under each assumption on the weights."""
    saw = {}
    for weights in ("fp8", "int4"):
        for model in (MHA, V3):
            saw[f"{model.name}, {weights}"] = rules.on("H100", 8, model=model, weight_dtype=weights).users()
    nothing = rules.on("H100", 8, model=MHA, weights_gb=1e-9, utilization=1.0)
    saw["V3 with MHA, no weights, all memory"] = nothing.users()
    want = {"V3 with MHA, fp8": 0, "DeepSeek-V3, fp8": 0, "V3 with MHA, int4": 6, "DeepSeek-V3, int4": 48,
            "V3 with MHA, no weights, all memory": 19}
    return exactly(EIGHT, saw, want, "users of 8,192 tokens, bf16 cache, tensor parallel, 90 % of 80 GB; in FP8 the "
                                     "weights alone do not fit, whatever the cache")


def outgrows(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    saw = {}
    for model in (V3, MHA):
        d = rules.on("H200", 8, model=model)
        at, weights, token = d.outgrown_at(), d.weight_bytes(), fp.bytes_per_token(model)
        saw[model.name] = [at, bool((at - 1) * token < weights <= at * token), weights > 670 * 10**9]
    return exactly(OUTGROWS, saw, {"DeepSeek-V3": [9_579_215, True, True], "V3 with MHA": [168_385, True, True]},
                   "tokens of all users together; fp8 weights of 673 GB against a bf16 cache, one copy of each")


def memory_bound(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Which takes longer: reading, or arithmetic."""
    saw = {}
    for gpu in ("H100", "H800", "H200", "H20", "B200"):
        d = rules.on(gpu, 8, "dp")
        steps = [decode_step(replace(d, model=model), 64) for model in (MHA, V3)]
        linear, attention = prefill_flops(d, 8192)
        busy = linear / (8 * d.gpu.flops(1)) + attention / (8 * d.gpu.flops(2))
        pairs = [*((s.cache, s.attention) for s in steps),
                 (float(d.weight_bytes_per_gpu()) / (d.gpu.bandwidth_tb * 1e12), busy)]
        saw[gpu] = ["arithmetic" if work > read else "memory" for read, work in pairs]
    want = {gpu: ["memory", "arithmetic" if gpu in ("H200", "H20") else "memory", "arithmetic"] for gpu in saw}
    return exactly(BOUND, saw, want, "attention in MHA decode, in MLA decode (both bf16), prefill of 8,192 tokens (fp8 "
                                     "weights); published dense peaks, 8 GPUs")


def deal_out(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    tp, dp = (rules.on("H200", 8, kind) for kind in ("tp", "dp"))
    full = [decode_step(d, d.users()).tokens_per_second for d in (tp, dp)]
    alone = [decode_step(d, 1).seconds for d in (tp, dp)]
    saw = {"users": [tp.users(), dp.users()], "more tokens a second when full": "dp" if full[1] > full[0] else "tp",
           "sooner for a single user": "dp" if alone[1] < alone[0] else "tp"}
    want = {"users": [72, 360], "more tokens a second when full": "dp", "sooner for a single user": "tp"}
    return exactly(DEAL, saw, want, "DeepSeek-V3, 8,192 tokens a user, users under tp and dp; by roofline dp gives "
                                    f"{full[1] / full[0]:.1f} times the tokens of tp when full")


def transfers(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """4,096 tokens over one link, and what of it is left when an 8-GPU prefill of them ends."""
    saw, d = {}, rules.on("H200", 8, "dp")
    prefill = prefill_seconds(d, (4096,), efficiency=0.5)
    for model in (V3, MHA):
        d = rules.on("H200", 8, "dp", model=model)
        times = [transfer_seconds(d, 4096, Link(rules.link(gigabits))) for gigabits in (100, 200, 400)]
        left = left_after_prefill(prefill, times[-1], model.num_hidden_layers)
        saw[model.name] = [*(f"{1e3 * t:.1f} ms" for t in times), "hidden" if left < 0.02 * prefill else "not hidden"]
    want = {"DeepSeek-V3": ["23.0 ms", "11.5 ms", "5.8 ms", "hidden"],
            "V3 with MHA": ["1310.0 ms", "655.0 ms", "327.5 ms", "not hidden"]}
    return exactly(TRANSFER, saw, want, f"at 100, 200, 400 Gb/s; at 400 against a prefill of {1e3 * prefill:.0f} ms, "
                                        "layer by layer; bf16, 61 layers")


def simulator(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Against a loop over steps and against Lindley's recursion; the bound is the rounding of that many additions."""
    scenario, worst, bound = Scenario(requests=200, prompt=2048, spread=0.5), 0.0, 0.0
    node = scenario.node()
    for chunked in (False, True):
        for slots in (node.slots, 7):  # 7: requests have to wait for a place
            rates, twins = replace(node, slots=slots), [scenario.draw(20.0) for _ in range(2)]
            simulate(twins[0], rates, "chunked" if chunked else "prefill-first", 1)
            turns = by_steps(twins[1], rates, chunked)
            for ours, theirs in zip(*twins, strict=True):
                worst = max(worst, abs(rules.ttft(ours) - (theirs.first - theirs.arrival)),
                            abs(rules.tpot(ours) * max(ours.outputs - 1, 1) - (theirs.last - theirs.first)))
            bound = max(bound, 2 * turns * 2.0**-53 * max(r.last for r in twins[1]))
    single = replace(scenario, outputs=1, spread=0.0)
    lone, service = single.draw(15.0), node.prefill((2048,))
    simulate(lone, replace(node, batch_tokens=1), "prefill-first", 1)
    waits = waits_in_a_queue([r.arrival for r in lone], service)
    worst = max(worst, *(abs(rules.ttft(r) - service - wait) for r, wait in zip(lone, waits, strict=True)))
    return Verdict(SIMULATOR, worst, 0.0, bound, worst <= bound,
                   "seconds; 5 runs of 200 requests: whole and chunked prompts, many and few places, no decode")


def apart(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    found, at_once = sweeps(None, rules.node), all_at_once(None, rules.node)
    together, chunked, split = (found[name].goodput(TTFT, TPOT) for name in found)
    step = found["prefill first"].rates[1] - found["prefill first"].rates[0]
    first = min(at_once, key=at_once.get)
    saw = {"requests/s in time": [together, chunked, split],
           "seconds for all at once": {name: round(seconds, 1) for name, seconds in at_once.items()}}
    ok = 3 * together <= split <= 4 * together and abs(split - chunked) <= step and first == "prefill first"
    return Verdict(APART, saw, "3 to 4 times prefill-first in time, as many as chunked prefill, fewer without limits",
                   None, ok, "prefill first, chunked prefill, 2 + 2 nodes apart; 90 % of the requests have their first "
                             "token in 1 s and then one in 60 ms")


def the_day(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    found = day.recomputed(sums=rules.revenue)
    gpu = day.on_a_gpu()
    saw = {name: day.agrees(said, found[name]) for name, said in day.FOLLOWS.items()}
    saw["decode below its roofline and above half of it"] = 0.5 < gpu.share_of_roofline < 1
    return exactly(DAY, saw, dict.fromkeys(saw, True), f"{gpu.tokens_per_second:,.0f} tokens/s on each of 144 GPUs, "
                   f"{gpu.users:.0f} users and {gpu.cache_gb:.0f} GB of cache each, "
                   f"{100 * gpu.share_of_roofline:.0f} % of the roofline")


SIZES = "counted from their fields, models have the weights that their makers publish"
MACHINES_HOLD = "the capacity model fills the machines that are recommended for DeepSeek-V3, and not half of them"
EIGHT = "on 8 H100, 4-bit weights leave MHA's cache 6 users and MLA's 48; FP8 weights leave nobody a place"
OUTGROWS = "DeepSeek-V3's cache outgrows its FP8 weights at 9.6 million tokens, and at 168 thousand with MHA"
BOUND = "MHA decode is bound by memory and prefill by arithmetic; MLA decode by either, depending on the GPU"
DEAL = "on 8 H200 data-parallel attention serves five times the users, and tensor parallelism the single user sooner"
TRANSFER = "4,096 tokens of MLA's cache hide behind their own prefill at 400 Gb/s, and of MHA's cache do not"
SIMULATOR = "the simulation gives every request the times that a loop over steps gives it"
APART = "splitting prefill and decode serves 3 to 4 times the requests, under one condition and against one baseline"
DAY = "DeepSeek's published day follows from its own few numbers"

CHECKS = (
    Check("13.sizes", SIZES, sizes), Check("13.machines", MACHINES_HOLD, machines),
    Check("13.eight_h100", EIGHT, eight_h100), Check("13.outgrows", OUTGROWS, outgrows),
    Check("13.memory_bound", BOUND, memory_bound), Check("13.deal_out", DEAL, deal_out),
    Check("13.transfer", TRANSFER, transfers), Check("13.simulator", SIMULATOR, simulator),
    Check("13.apart", APART, apart), Check("13.day", DAY, the_day),
)
