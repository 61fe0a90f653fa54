"""Rates, the simulation against an oracle without events, the published day, and the checks of case 13."""
import math
import random
from collections import deque
from dataclasses import replace

import pytest

from mla_lab.arrays import get_backend
from mla_lab.errors import InputError
from mla_lab.models import get_model
from mla_lab.serving import checks13_serving as checks13
from mla_lab.serving import published_day as day
from mla_lab.serving.by_steps import by_steps, waits_in_a_queue
from mla_lab.serving.capacity import Deployment
from mla_lab.serving.common import caught
from mla_lab.serving.gpus import get_gpu
from mla_lab.serving.parameters import parameters
from mla_lab.serving.planted13 import PLANTED
from mla_lab.serving.rates import Link, left_after_prefill, node_rates, prefill_flops, prefill_seconds, transfer_seconds
from mla_lab.serving.requests import Rates, Request, Result
from mla_lab.serving.scenario import Scenario, all_at_once, sweeps
from mla_lab.serving.simulate import simulate, take
from mla_lab.serving.step import decode_step
from mla_lab.serving.workload import Sweep, poisson
from mla_lab.verdict import Setting

V3 = get_model("DeepSeek-V3")
# Plain numbers that can be followed by hand: 1 s a prompt, 0.1 s a step and 0.01 s for each request in it.
PLAIN = Rates(prefill=lambda prompts: float(len(prompts)), step=lambda users: 0.1 + 0.01 * users,
              mixed=lambda users, tokens: 0.1 + 0.01 * users + 0.001 * tokens, transfer=lambda tokens: 0.5,
              slots=10, batch_tokens=100, chunk=50)


def times(requests):
    return [(round(r.first, 9), round(r.last, 9)) for r in requests]


# --- the simulation -------------------------------------------------------------------------------------------------


def test_one_request_by_hand():
    for policy, first, last in (("prefill-first", 1.0, 1.0 + 3 * 0.11), ("chunked", 0.3, 0.3 + 3 * 0.11)):
        requests = [Request(0.0, 100, 4)]
        simulate(requests, PLAIN, policy, 1)  # chunked: two pieces of 50 tokens, 0.15 s each
        assert times(requests) == [(first, round(last, 9))]


def test_a_prefill_holds_up_the_others_and_joins_at_the_end_of_a_step():
    requests = [Request(0.0, 100, 11), Request(1.25, 100, 2)]
    simulate(requests, PLAIN, "prefill-first", 1)
    # Steps end at 1.11, 1.22, 1.33; then the second prompt for a second, a step of two, and the rest alone.
    assert times(requests) == [(1.0, round(2.33 + 0.12 + 6 * 0.11, 9)), (2.33, 2.45)]


def test_apart_nobody_is_held_up_and_the_cache_travels():
    requests = [Request(0.0, 100, 11), Request(1.25, 100, 2)]
    result = simulate(requests, PLAIN, "apart", 2, 1)
    # The first cache arrives at 1.5 and decodes until 2.71, the second one at 2.75 (2.25 and half a second).
    assert times(requests) == [(1.0, 2.6), (2.25, 2.86)]
    assert result.busy == pytest.approx((2.0, 10 * 0.11 + 0.11)) and result.seconds == pytest.approx(2.86)


def test_a_link_sends_one_cache_at_a_time():
    requests = [Request(0.0, 50, 2), Request(0.5, 50, 2), Request(0.6, 50, 1)]
    simulate(requests, replace(PLAIN, transfer=lambda tokens: 5.0), "apart", 2, 1)
    # Prefilled until 1 and, the other two together, until 3; sent until 6 and, behind that, until 11.
    assert times(requests) == [(1.0, 6.11), (3.0, 11.11), (3.0, 3.0)]


def test_requests_wait_for_a_place():
    requests = [Request(0.0, 100, 3) for _ in range(3)]
    simulate(requests, replace(PLAIN, slots=1), "prefill-first", 1)
    assert [r.first for r in requests] == pytest.approx([1.0, 2.22, 3.44])


def test_a_request_goes_to_the_node_with_the_fewest():
    requests = [Request(0.1 * i, 100, 50) for i in range(4)]
    result = simulate(requests, PLAIN, "prefill-first", 2)
    assert [r.first for r in requests] == pytest.approx([1.0, 1.1, 2.0, 2.1]) and len(result.busy) == 2


def test_prompts_that_are_done_together():
    queue = deque(Request(0.0, n, 1) for n in (40, 60, 1, 500, 10, 10, 10))
    assert [[r.prompt for r in take(queue, 100, 9)] for _ in range(3)] == [[40, 60], [1], [500]]
    assert [r.prompt for r in take(queue, 100, 2)] == [10, 10]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_events_and_steps_give_the_same_times(chunked, seed):
    """Random rates, lengths, loads and places; a tie of an arrival with a step's end has probability zero."""
    rng = random.Random(seed)
    a, b, c = (rng.uniform(0.001, 0.1) for _ in range(3))
    rates = Rates(lambda prompts: a * sum(prompts) ** 0.9, lambda users: b + c * users,
                  lambda users, tokens: b + c * users + a * tokens, lambda tokens: 0.0, rng.choice([1, 2, 5, 1000]),
                  rng.choice([1, 30, 200]), rng.choice([1, 7, 64]))
    load = rng.uniform(0.1, 20)
    twins = [poisson(load, 120, 20, 12, seed, 0.7) for _ in range(2)]
    simulate(twins[0], rates, "chunked" if chunked else "prefill-first", 1)
    turns = by_steps(twins[1], rates, chunked)
    bound = 2 * turns * 2.0**-53 * max(r.last for r in twins[1])
    for ours, theirs in zip(*twins, strict=True):
        assert abs(ours.first - theirs.first) <= bound and abs(ours.last - theirs.last) <= bound
        assert ours.made == ours.outputs and ours.arrival < ours.first <= ours.last


def test_a_prefill_node_is_a_queue():
    rates = replace(PLAIN, batch_tokens=1)
    requests = poisson(0.8, 500, 3, 1, seed=4)
    simulate(requests, rates, "apart", 2, 1)
    waits = waits_in_a_queue([r.arrival for r in requests], 1.0)
    assert max(waits) > 3
    for request, wait in zip(requests, waits, strict=True):
        assert request.ttft == pytest.approx(1.0 + wait, abs=1e-9)


@pytest.mark.parametrize("policy, nodes, prefill_nodes, hint", [
    ("both", 2, 0, "policy 'both'"), ("apart", 2, 0, "prefill nodes"), ("apart", 2, 2, "prefill nodes"),
    ("chunked", 2, 1, "prefill nodes"), ("chunked", 0, 0, "nodes"),
])
def test_arrangements_that_make_no_sense_are_refused(policy, nodes, prefill_nodes, hint):
    with pytest.raises(InputError, match=hint):
        simulate([], PLAIN, policy, nodes, prefill_nodes)


@pytest.mark.parametrize("requests, change, words", [
    ([], {}, "at least one request"), ([(5, 9, 3), (1, 9, 3)], {}, "request 1 arrives at 1 s"),
    ([(math.nan, 9, 3)], {}, "request 0 arrives at nan s"), ([(-1, 9, 3)], {}, "arrives at -1 s"),
    ([(0, 0, 3)], {}, "prompt of request 0"), ([(0, 9, 3), (0, 9, 0)], {}, "outputs of request 1"),
    ([(0, 9, 3)], {"slots": 0}, "slots"), ([(0, 9, 3)], {"chunk": 0}, "chunk"),
    ([(0, 9, 3)], {"batch_tokens": 0.5}, "batch_tokens"),
])
@pytest.mark.parametrize("policy, prefill_nodes", [("prefill-first", 0), ("chunked", 0), ("apart", 1)])
def test_what_has_no_end_or_no_beginning_is_refused(requests, change, words, policy, prefill_nodes):
    with pytest.raises(InputError, match=words):
        simulate([Request(*request) for request in requests], replace(PLAIN, **change), policy, 2, prefill_nodes)


def test_the_same_requests_can_be_simulated_again():
    """An earlier run leaves in a request how far it came; chunked prefill would begin there."""
    requests = [Request(0.0, 100, 60), Request(0.1, 100, 2)]
    seconds = [simulate(requests, PLAIN, "chunked", 1).seconds for _ in range(2)]
    assert seconds[0] == seconds[1]


# --- requests and goodput -------------------------------------------------------------------------------------------


def test_the_same_requests_at_every_rate():
    slow, fast = (poisson(rate, 4000, 300, 50, seed=2, spread=0.4) for rate in (1.0, 10.0))
    assert [(r.prompt, r.outputs) for r in slow] == [(r.prompt, r.outputs) for r in fast]
    assert [r.arrival for r in slow] == pytest.approx([10 * r.arrival for r in fast])
    assert slow[-1].arrival / 4000 == pytest.approx(1.0, abs=4 / math.sqrt(4000))  # four standard errors
    error = 4 * 300 * math.sqrt(math.expm1(0.16) / 4000)
    assert sum(r.prompt for r in slow) / 4000 == pytest.approx(300, abs=error)
    assert {(r.prompt, r.outputs) for r in poisson(1.0, 5, 7, 3)} == {(7, 3)}


def test_goodput_is_the_highest_rate_at_which_enough_are_in_time():
    def at(*ttfts):
        return Result(tuple(Request(0.0, 1, 3, first=t, last=t + 2 * 0.1, made=3) for t in ttfts), (), 10.0)
    s = Sweep("x", (1.0, 2.0, 3.0), (at(0.1, 0.2), at(0.3, 0.9), at(2.0, 3.0)))
    assert s.goodput(1.0, 0.11) == 2.0 and s.goodput(0.5, 0.11) == 1.0 and s.goodput(0.5, 0.11, share=0.5) == 2.0
    assert s.goodput(1.0, 0.09) == 0.0 and s.goodput(9.0, 9.0) == 3.0
    assert at(0.1, 0.2).tokens_per_second() == pytest.approx(0.6) and at(1.0).requests[0].tpot == pytest.approx(0.1)
    assert Request(0.0, 1, 1, first=2.0, last=2.0).tpot == 0.0


# --- rates ----------------------------------------------------------------------------------------------------------


def deployment(**how):
    return Deployment(V3, get_gpu("H200"), 8, "dp", 4096, parameters(V3), **how)


def test_flop_of_a_prompt_by_counting_pairs():
    c, tokens = V3.mla, 5
    pairs = sum(1 for query in range(tokens) for key in range(query + 1))
    linear, attention = prefill_flops(deployment(), tokens)
    assert attention == 61 * 128 * pairs * 2 * (c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim)
    assert linear == 2 * tokens * (parameters(V3).active - 129280 * 7168)
    grouped = replace(V3, mla=None, num_key_value_heads=8, head_dim=128)
    assert prefill_flops(replace(deployment(), model=grouped), tokens)[1] == 61 * 128 * pairs * 4 * 128


def test_a_prefill_reads_the_weights_once_or_is_bound_by_arithmetic():
    d = deployment()
    short, long = prefill_seconds(d, (1,)), prefill_seconds(d, (100_000,))
    linear, attention = prefill_flops(d, 100_000)
    assert long == pytest.approx(linear / (8 * 1979e12) + attention / (8 * 989e12))
    assert short == pytest.approx(decode_step(d, 1).weights, rel=1e-4)
    assert prefill_seconds(d, (3000, 3000)) < 2 * prefill_seconds(d, (3000,))
    assert prefill_seconds(d, (100_000,), efficiency=0.5) == pytest.approx(2 * long)


@pytest.mark.parametrize("prefill, transfer", [(6.1, 0.61), (6.1, 6.1), (6.1, 61.0), (0.01, 5.0)])
def test_what_is_left_of_a_transfer_by_running_the_pipeline(prefill, transfer):
    layers = 61
    done = 0.0
    for layer in range(1, layers + 1):  # a layer can be sent when it is computed and the link is free
        done = max(done, layer * prefill / layers) + transfer / layers
    assert left_after_prefill(prefill, transfer, layers) == pytest.approx(done - prefill)
    assert left_after_prefill(prefill, transfer, layers, by_layer=False) == transfer


def test_transfers():
    assert transfer_seconds(deployment(), 4096, Link(50.0)) == pytest.approx(4096 * 70272 / 50e9)
    quick, slow = node_rates(deployment()), node_rates(deployment(), link=Link(1.0))
    assert slow.transfer(4096) == pytest.approx(4096 * 70272 / 1e9 + quick.prefill((4096,)) * (1 / 61 - 1))
    assert node_rates(deployment(), link=Link(1.0, by_layer=False)).transfer(4096) == pytest.approx(4096 * 70272 / 1e9)


def test_rates_of_a_node_are_those_of_its_step():
    d = deployment()
    rates = node_rates(d, 0.5)
    assert rates.step(7) == decode_step(d, 7, 0.5).seconds and rates.slots == d.users()
    assert node_rates(d, slots=3).slots == 3
    assert rates.step(64) < rates.mixed(64, 2048) < rates.step(64) + rates.prefill((2048,))  # the weights are read once
    assert rates.mixed(0, 8192) == pytest.approx(rates.prefill((8192,)), rel=1e-6)


# --- the published day ----------------------------------------------------------------------------------------------


def test_the_day_closes():
    found = day.recomputed()
    assert all(day.agrees(said, found[name]) for name, said in day.FOLLOWS.items())
    assert found["cost in dollars"] == (87_072, 87_072)
    low, high = found["nodes"]  # 95.5 that prefill and 131.4 that decode
    assert low < 608e9 / 86400 / 73.7e3 + 168e9 / 86400 / 14.8e3 < high


def test_spans_are_the_extremes_of_what_rounds_to_the_printed_numbers():
    assert day.span(lambda x, y: x - y, day.Printed(10, 2), day.Printed(3, 1)) == (9 - 3.5, 11 - 2.5)
    assert day.agrees(day.Printed(5, 1), (5.4, 6)) and not day.agrees(day.Printed(5, 1), (5.6, 6))


def test_one_gpu_of_the_day():
    gpu = day.on_a_gpu()
    assert gpu.tokens_per_second == 1850 and gpu.users == pytest.approx(1850 / 21)
    assert gpu.attention_tflops == pytest.approx(157, abs=0.5)
    assert gpu.cache_tb_per_second == pytest.approx(0.65, abs=0.005)
    assert gpu.cache_gb == pytest.approx(gpu.users * 4989 * 70272 / 1e9)
    assert 0.5 < gpu.share_of_roofline < 1


# --- the checks -----------------------------------------------------------------------------------------------------

CHECKS = {check.id: check for check in checks13.CHECKS}
SETTING = Setting(get_backend("numpy"), V3.mla)


@pytest.mark.parametrize("id", CHECKS)
def test_the_checks_hold_and_catch_their_faults(id):
    verdict = CHECKS[id].run(SETTING)
    assert verdict.ok, (verdict.saw, verdict.expected)
    assert all(caught(CHECKS[id], PLANTED, SETTING, checks13.RIGHT).values())


def test_every_fault_has_a_check_and_every_check_a_fault():
    assert {id for fault in PLANTED for id in fault.caught_by} == set(CHECKS)
    assert all(fault.why and "#" in fault.thread for fault in PLANTED)


@pytest.mark.parametrize("counted, said, expected", [
    (671_026_419_200, "671B", "671B"), (70_553_706_496, "70B", "70B"), (70_553_706_496, "69B", "71B"),
    (1_026_408_232_448, "1T", "1T"), (36_625_618_432, "36.6B", "36.6B"), (36_625_618_432, "37B", "37B"),
])
def test_numbers_as_they_are_said(counted, said, expected):
    assert checks13.as_said(counted, said) == expected


def test_more_requests_do_not_change_who_wins():
    """The scenario's 1,500 requests are enough: 4,000 give the same picture."""
    found = sweeps(Scenario(requests=4000, rates=(30.0, 45.0, 75.0, 90.0, 105.0)))
    assert {name: s.goodput(checks13.TTFT, checks13.TPOT) for name, s in found.items()} == {
        "prefill first": 30.0, "chunked prefill": 75.0, "2 + 2 nodes apart": 90.0}
    at_once = all_at_once(Scenario(requests=4000))
    assert min(at_once, key=at_once.get) == "prefill first" and len(at_once) == 5


def test_a_mixed_step_by_hand():
    d = deployment()
    s, linear = decode_step(d, 64), prefill_flops(d, 2048)
    products = linear[0] / (8 * 1979e12) + s.products
    read = decode_step(d, 64 + 2048).weights
    assert node_rates(d).mixed(64, 2048) == pytest.approx(
        max(read, products) + max(s.cache, s.attention) + s.communication + linear[1] / (8 * 989e12))


def test_without_simpy_it_says_what_to_install(monkeypatch, capsys):
    import sys

    from mla_lab import __main__ as cli
    from mla_lab.serving import scenario
    for kept in (scenario._all_at_once, scenario._sweeps):  # what other tests simulated would need no SimPy
        kept.cache_clear()
    monkeypatch.setitem(sys.modules, "simpy", None)
    assert cli.main(["claims", "--id", "A28"]) == 2
    said = capsys.readouterr()
    assert "needs simpy, which is not installed" in said.err and "Traceback" not in said.err
