"""Several ranks give what one process gives: on threads with every array library, and as real processes."""
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mla_lab.arrays import fresh, get_backend, to_numpy
from mla_lab.cache import LatentCache
from mla_lab.errors import InputError
from mla_lab.models import get_model
from mla_lab.serving import checks12_parallel as checks12
from mla_lab.serving import hosting, launch
from mla_lab.serving.comm import Count, PeerLost, in_threads, wire_bytes
from mla_lab.serving.common import caught
from mla_lab.serving.parallel import RIGHT, Stripe, context_parallel, data_parallel, shard, tensor_parallel
from mla_lab.serving.planted import PLANTED, rules_under
from mla_lab.serving.trial import BATCH, CONFIG, PLANS, distance, inputs, on_rank, one_process
from mla_lab.verdict import Setting
from mla_lab.weights import MLAWeights, random_state

CLOSE = 1e-12


def trial(plan, ranks, backend, rules=None):
    weights, hidden = inputs(backend)
    reference = one_process(weights, hidden, backend)
    done = in_threads(ranks, lambda comm: on_rank(plan, comm, weights, hidden, backend, rules or rules_under(None)))
    return reference, done


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("plan", PLANS)
def test_ranks_give_what_one_process_gives(plan, ranks, backend):
    reference, done = trial(plan, ranks, backend)
    assert max(distance(rank.output, reference.output) for rank in done) < CLOSE


@pytest.mark.parametrize("dtype, close", [("float32", 2e-5), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("plan", PLANS)
def test_other_dtypes(plan, dtype, close):
    for name in ("numpy", "torch"):
        reference, done = trial(plan, 2, get_backend(name, dtype))
        assert max(distance(rank.output, reference.output) for rank in done) < close


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_latent_is_copied_by_tp_and_divided_by_the_others(ranks):
    held = {plan: trial(plan, ranks, get_backend("numpy")) for plan in PLANS}
    whole = held["tp"][0]
    assert all(rank.cache_bytes == whole.cache_bytes for rank in held["tp"][1])
    for plan in ("dp", "cp"):
        assert sum(rank.cache_bytes for rank in held[plan][1]) == whole.cache_bytes
        assert all(rank.weight_bytes == whole.weight_bytes for rank in held[plan][1])
    # Down-projections and norms are on every rank, the rest is cut; the output bias is on one of them only.
    c = CONFIG
    copied = 8 * ((c.q_lora_rank + c.cached_width) * (c.hidden_size + 1) + c.q_lora_rank + c.kv_lora_rank)
    weights = [rank.weight_bytes for rank in held["tp"][1]]
    assert sum(weights) == whole.weight_bytes + (ranks - 1) * copied
    assert weights[0] - weights[1] == 8 * c.hidden_size and len(set(weights[1:])) == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_sent(ranks):
    tokens, d, h, v = 12, CONFIG.hidden_size, CONFIG.num_attention_heads, CONFIG.v_head_dim
    for plan, name, calls, values in (("tp", "all_reduce", 4, d), ("cp", "all_gather", 8, h * (v + 1)),
                                      ("dp", "all_gather", 4, d / ranks)):
        counts = trial(plan, ranks, get_backend("numpy"))[1][-1].counts
        assert counts.pop(name) == Count(calls, int(8 * BATCH * tokens * values))
        assert list(counts.values()) == [Count()]


def test_bytes_on_a_ring_by_simulation():
    """Pass chunks round, as the ring algorithms do, and count them."""
    n, chunk = 4, 10
    reduced = sum(chunk for _ in range(2) for _ in range(n - 1))  # reduce-scatter, then all-gather, of payload / n
    assert wire_bytes("all_reduce", n * chunk, n) == reduced
    assert wire_bytes("all_gather", chunk, n) == sum(chunk for _ in range(n - 1))
    assert wire_bytes("all_reduce", 40, 1) == wire_bytes("all_gather", 40, 1) == 0


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.id)
def test_every_planted_fault_shows(planted):
    """All but the miscount of elements change an output; that one is checked with the bytes."""
    plan = planted.caught_by[0].removeprefix("12.")
    if plan == "replicated":
        assert planted.spoil(RIGHT).elements(CONFIG, 2) * 2 == CONFIG.cached_width
        return
    reference, done = trial(plan, 2, get_backend("numpy"), planted.spoil(RIGHT))
    assert 1e-3 < max(distance(rank.output, reference.output) for rank in done) < np.inf


def test_a_stripe_holds_every_nth_token():
    backend = get_backend("numpy")
    rows = backend.asarray(np.arange(2 * 7, dtype=float).reshape(2, 7, 1))
    c_kv, k_rope = (np.tile(rows, (1, 1, n)) for n in (CONFIG.kv_lora_rank, CONFIG.qk_rope_head_dim))
    for rank in range(3):
        stripe = Stripe.allocate(CONFIG, 2, 12, backend, 3)
        stripe = stripe.append(c_kv[:, :4, :], k_rope[:, :4, :], (4, 2), rank, 3)
        stripe = stripe.append(c_kv[:, 4:7, :], k_rope[:, 4:7, :], (3, 1), rank, 3)
        held = [stripe.cache.rows[i, :n, 0].tolist() for i, n in enumerate(stripe.cache.lengths)]
        assert held == [[0, 1, 2, 3, 4, 5, 6][rank::3], [7, 8, 11][rank::3]] and stripe.lengths == (7, 3)


def test_layers_without_the_extras():
    """No query compression, no biases, no gate; a single token on four ranks leaves three of them without a key."""
    backend = get_backend("numpy")
    config = replace(CONFIG, q_lora_rank=None, attention_bias=False, output_gate=None)
    weights = MLAWeights.from_hugging_face(random_state(config, backend, 3), config)
    hidden = backend.asarray(fresh(4)(4, 1, config.hidden_size))
    whole = in_threads(1, lambda comm: data_parallel(
        hidden, weights, config, LatentCache.allocate(config, 4, 1, backend), comm))[0][0]

    def on(comm):
        parts = shard(weights, config, comm.rank, comm.size)
        return (tensor_parallel(hidden, *parts, LatentCache.allocate(parts[1], 4, 1, backend), comm)[0],
                context_parallel(hidden, weights, config, Stripe.allocate(config, 4, 1, backend, 4), comm)[0])
    for outputs in in_threads(4, on):
        assert all(distance(out, whole) < CLOSE for out in outputs)


def test_what_does_not_divide_is_refused():
    backend = get_backend("numpy")
    weights, hidden = inputs(backend)
    with pytest.raises(InputError, match="num_attention_heads 8 must be a multiple"):
        shard(weights, CONFIG, 0, 3)
    with pytest.raises(InputError, match="batch of 4 requests"):
        in_threads(3, lambda comm: data_parallel(hidden, weights, CONFIG, None, comm))


def test_a_thread_that_raises_stops_the_others():
    def work(comm):
        if comm.rank == 1:
            raise ValueError("mine")
        return comm.all_reduce(np.ones(1))
    with pytest.raises(ValueError, match="mine"):
        in_threads(3, work)


def test_threads_that_lose_one_another_say_so(monkeypatch):
    monkeypatch.setattr("mla_lab.serving.comm.PATIENCE", 0.1)
    with pytest.raises(PeerLost, match="another rank stopped"):
        in_threads(2, lambda comm: comm.all_reduce(np.ones(1)) if comm.rank else None)


def test_outputs_agree_to_the_bit_between_ranks():
    for plan in PLANS:
        first, *others = (to_numpy(rank.output) for rank in trial(plan, 4, get_backend("torch"))[1])
        assert all(np.array_equal(first, other) for other in others)


# --- processes ------------------------------------------------------------------------------------------------------


def ranks_left():
    """Processes of this user that run ranks."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "mla_lab.serving.launch" in line]


@pytest.fixture
def nothing_left():
    before = set(ranks_left())
    yield
    deadline = time.monotonic() + 10
    while set(ranks_left()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not set(ranks_left()) - before


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_give_what_one_process_gives(processes, nothing_left):
    found = checks12.on_processes(processes)
    reports = found["ranks"]
    assert found["lost"] == f"rank 1 of {processes} was killed by SIGKILL; the other ranks were stopped"
    assert len(reports) == processes and launch.equal(reports)
    assert not any(map(hosting.alive, (found["pid"] for found in reports)))
    threads = {plan: trial(plan, processes, get_backend("torch"))[1] for plan in PLANS}
    for plan in PLANS:
        for found, rank in zip((r[plan] for r in reports), threads[plan], strict=True):
            assert found["distance"] <= CLOSE
            assert (found["cache_bytes"], found["weight_bytes"]) == (rank.cache_bytes, rank.weight_bytes)
            assert found["collectives"] == {name: vars(count) for name, count in rank.counts.items()}


def test_a_killed_rank_is_named(nothing_left):
    with pytest.raises(hosting.RankLost, match=r"^rank 1 of 2 was killed by SIGKILL; the other ranks were stopped\.$"):
        launch.run(2, plan=("tp",), break_rank=1)


def test_alive():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert hosting.alive(os.getpid()) and not hosting.alive(ended.pid)


def test_a_frozen_rank_is_named_within_the_limit(nothing_left):
    with pytest.raises(hosting.RankLost, match="rank 0 of 2 gave no result within the limit of 4 s"):
        launch.run(2, plan=("cp",), break_rank=0, how="hang", limit=4)


def test_ranks_end_with_the_process_that_started_them(nothing_left):
    """Even if that one is killed outright, and even a rank that stands still."""
    command = [sys.executable, "-m", "mla_lab.serving.launch", "--break-rank", "1", "--how", "hang", "--limit", "60"]
    root = Path(__file__).parent.parent
    host = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(root)})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = subprocess.run(["ps", "-o", "stat=", "--ppid", str(host.pid)], capture_output=True, text=True).stdout
        if "T" in children:
            break
        time.sleep(0.2)
    assert "T" in children, "no rank was seen to stand still"
    host.send_signal(signal.SIGKILL)
    host.wait()


def test_torchrun_starts_the_same_ranks(tmp_path, nothing_left):
    root, target = Path(__file__).parent.parent, tmp_path / "reports.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
               "mla_lab.serving.launch", "--json", str(target)]
    ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True,
                         timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert launch.equal(json.loads(target.read_text())["ranks"]) and ran.stdout.count("equal to one process") == 3


@pytest.mark.parametrize("codes, said", [
    ([0, 0], ""), ([hosting.LOST, -9], "rank 1 of 2 was killed by SIGKILL"),
    ([None, 1, hosting.LOST], "rank 1 of 3 ended"),
    ([hosting.LOST, None], "rank 1 of 2 gave no result within the limit of 7 s"),
    ([1, -15], "rank 1 of 2 was killed"),
    ([None, None], "ranks 0, 1 of 2 gave no result"), ([hosting.LOST, hosting.LOST], "the 2 ranks lost one another"),
])
def test_the_cause_is_named_and_not_its_consequences(codes, said):
    assert hosting.cause(codes, 7).startswith(said) and bool(hosting.cause(codes, 7)) == bool(said)


@pytest.mark.parametrize("options, hint", [
    ("--processes 3", "1, 2 or 4"), ("--processes 0", "processes"), ("--plan pp", "plan 'pp'"),
    ("--fault x", "fault"), ("--limit 0", "limit"), ("--break-rank 2", "break-rank"), ("--lose 5", "lose"),
    ("--how melt", "how 'melt'"), ("--transport mpi", "mpi"), ("--processes two", "processes"),
    ("--dtype float16", "dtype"),
])
def test_bad_input_is_one_sentence(options, hint, capsys):
    assert launch.main(options.split()) == 2
    said = capsys.readouterr().err
    assert hint in said and said.startswith("mla_lab: ") and said.count("\n") == 1


def test_a_rank_without_a_gpu_is_refused_in_one_sentence(nothing_left):
    if get_torch_gpus():
        pytest.skip("there are GPUs here")
    with pytest.raises(InputError, match="needs a GPU of its own"):
        launch.run(2, plan=("tp",), transport="nccl")


def get_torch_gpus():
    import torch
    return torch.cuda.device_count()


@pytest.mark.skipif(not get_torch_gpus(), reason="no GPU")
def test_nccl_on_one_gpu():
    assert launch.equal(launch.run(1, transport="nccl")["ranks"])


# --- the checks -----------------------------------------------------------------------------------------------------

CHECKS = {check.id: check for check in checks12.CHECKS}
IN_PROCESSES = ("12.processes", "12.lost_rank")


@pytest.mark.parametrize("id", CHECKS)
def test_the_checks_hold_and_catch_their_faults(id, backend):
    if id in IN_PROCESSES and backend.name != "numpy":
        pytest.skip("real ranks run torch whatever the backend is")
    setting = Setting(backend, get_model("DeepSeek-V3").mla)
    verdict = CHECKS[id].run(setting)
    assert verdict.ok, verdict
    missed = [fault for fault, seen in caught(CHECKS[id], PLANTED, setting, RIGHT).items() if not seen]
    assert not missed


def test_every_fault_has_a_check_and_every_check_a_fault():
    assert {id for fault in PLANTED for id in fault.caught_by} == set(CHECKS) - {"12.lost_rank"}
    assert all(fault.why and "#" in fault.thread for fault in PLANTED)


@pytest.mark.parametrize("said", [None, "rank 0 of 2 was killed by SIGKILL; the other ranks were stopped"])
def test_a_lost_rank_that_is_not_named_fails(said, monkeypatch):
    monkeypatch.setattr(checks12, "on_processes", lambda size: {"lost": said})
    assert not CHECKS["12.lost_rank"].run(None).ok


def test_a_process_left_behind_fails(monkeypatch):
    found = checks12.on_processes(2)
    monkeypatch.setattr(checks12, "on_processes",
                        lambda size, rules: {"ranks": [rank | {"pid": os.getpid()} for rank in found["ranks"]]})
    assert not CHECKS["12.processes"].run(Setting(get_backend("numpy"), get_model("DeepSeek-V3").mla)).ok
