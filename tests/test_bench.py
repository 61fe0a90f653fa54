"""The benchmark without its times: what it counts, what it compares, and that a wrong or slow kernel shows."""
import json
import subprocess
import sys
from dataclasses import replace
from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest
from kernels import HAS_CUDA

from mla_lab.__main__ import main
from mla_lab.arrays import to_numpy
from mla_lab.errors import InputError
from mla_lab.kernels import bench, decode, peers, targets, timing
from mla_lab.kernels.counts import Work
from mla_lab.kernels.timing import Contender
from mla_lab.models import get_mla

V3 = get_mla("DeepSeek-V3").mla
SIZE = bench.Size(3, 17)


@pytest.fixture(scope="module")
def group():
    """All contenders at a small size, with limits that take no time to measure."""
    patch = pytest.MonkeyPatch()
    patch.setattr(bench, "LIMITS", {"cpu": (4, 2)})
    yield bench.group(V3, SIZE, "cpu")
    patch.undo()


# --- contenders -----------------------------------------------------------------------------------------------------


def test_every_contender_computes_what_it_should(group):
    """Those with the same inputs against float64, each at the rounding of float32."""
    seen = 0
    for c in group.contenders:
        c.result = c.run()
        error = group.error(c)
        if c.same_inputs and c.kind in ("kernel", "stock"):
            assert error < 2e-6, c
            seen += 1
    assert seen >= 2 and {c.name for c in group.contenders} >= {"rows", "tiled"}
    wrong = replace(group.contenders[0], name="wrong", kind="kernel", result=np.full((1, 1, 3, 512), 0.3))
    assert group.error(wrong) > 0.1


def test_a_size_that_does_not_fit_is_refused_before_it_is_drawn(monkeypatch):
    """The system would rather end the process than refuse the memory."""
    small = 8 * 20 * 576  # bytes of its numbers in float64
    assert bench.Size(3, 17).numbers(V3) * 8 == small
    monkeypatch.setattr(peers, "available_bytes", lambda device: 3.0 * small)
    monkeypatch.setattr(bench, "fresh", lambda: pytest.fail("drawn"))
    with pytest.raises(InputError, match=r"^3 heads, 18 tokens, batch 9 take about .* GB, and 0.000276 GB are free"):
        bench.group(V3, bench.Size(3, 18, 9), "cpu")
    monkeypatch.setattr(bench, "fresh", lambda: (_ for _ in ()).throw(LookupError))
    with pytest.raises(LookupError):  # numbers and their copies for two libraries are twice as many
        bench.group(V3, SIZE, "cpu")


def test_flash_mla_is_called_with_our_scale_pages_and_lengths(monkeypatch):
    """No GPU has run the wheel; this stands in for it and computes in PyTorch what its arguments say."""
    torch = pytest.importorskip("torch")

    def stand_in(q, pages, table, lengths, latent, plan, softmax_scale=576**-0.5, causal=False, use_legacy=False):
        assert plan == "plan" and causal and use_legacy
        return decode(q, pages[:, :, 0], lengths, softmax_scale, latent, table)
    monkeypatch.setitem(sys.modules, "flash_mla", SimpleNamespace(
        flash_mla_with_kvcache=stand_in, get_mla_metadata=lambda: ("plan", None)))
    draw = bench.fresh(3)
    q, cache = (torch.tensor(draw(*shape)).to(torch.float16) for shape in ((2, 1, 3, 576), (2, 128, 576)))
    at = bench.Step(V3, q, cache, Work(1, 1), "cpu", "torch")
    found, want = peers.flash_mla(at).run()[0], decode(q, cache, [128, 128], 192**-0.5, 512)[0]
    assert torch.allclose(found, want, atol=1e-2) and not torch.allclose(found, want / 2, atol=1e-2)
    with pytest.raises(InputError, match="whole pages of 64"):
        peers.flash_mla(replace(at, cache=cache[:, :127]))


def test_the_products_are_both_done(group):
    for c in group.contenders:
        if c.name.startswith("products"):
            logits, out = map(to_numpy, c.run())
            draw = bench.fresh()
            q, rows = draw(1, 1, 3, 576)[0, 0], draw(1, 17, 576)[0]
            want = q @ rows.T
            assert np.allclose(logits if logits.shape == want.shape else logits.T, want, atol=1e-3)
            assert np.allclose(out, want @ rows[:, :512], atol=1e-2)


def test_the_step_with_weights_is_the_layers_own(group):
    from mla_lab.attention import Projected, attend
    step = next(c for c in group.contenders if c.name.startswith("step") and c.package == "numpy")
    draw = bench.fresh()
    q, rows = draw(1, 1, 3, 576), draw(1, 17, 576)
    nope, rope = (x.transpose(0, 2, 1, 3) for x in (q[..., :128], q[..., 512:]))
    config = replace(V3, num_attention_heads=3)
    want = attend(Projected(nope, rope, rows[..., :512], rows[..., 512:]), rows[..., :512], rows[..., 512:],
                  np.full((3, 128, 512), 0.5), np.full((3, 512, 128), 0.5), replace(config, rope_scaling=None),
                  np.ones((1, 1, 1, 17), dtype=bool))
    assert np.abs(step.run() - want.heads).max() < 1e-3 * np.abs(want.heads).max()


def test_torch_contenders_do_the_work_they_are_measured_by(group):
    """FLOPs by torch's own counter; the fused calls are invisible to it or count the padded channels."""
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    seen = set()
    fused = next(c for c in group.contenders if c.name == "sdpa")  # what the step attends with
    for c in group.contenders:
        if c.package != "torch" or c.name in ("copy", "sdpa", "SDPA, heads folded, value = padded row"):
            continue
        with FlopCounterMode(display=False) as counter:
            c.run()
        seen.add(c.name)
        # transformers: its projections from and to the hidden size, and one token more in its cache
        slack = 0.7 if c.name.startswith("transformers") else 0
        seen_flops = counter.get_total_flops() + (fused.work.flops if c.name.startswith("step") else 0)
        assert seen_flops == pytest.approx(c.work.flops, rel=slack), c.name
    assert {"rows", "tiled", "SDPA, enable_gqa", "MHA, expanded cache", "step with W_UK and W_UV"} <= seen


def test_transformers_cache_grows_by_the_new_token(group):
    pytest.importorskip("transformers")
    step = next(c for c in group.contenders if c.name.startswith("transformers"))
    output = step.run()[0]
    assert tuple(output.shape) == (1, 1, peers.NARROW) and np.isfinite(to_numpy(output)).all()


def test_what_does_not_fit_is_left_out_in_one_line(monkeypatch):
    at = SimpleNamespace(cache=np.ones(2, dtype=np.float32), device="cpu")
    monkeypatch.setattr(peers, "available_bytes", lambda device: 1e9)
    peers.room_for("x", 1e8, at)
    with pytest.raises(InputError, match=r"x is left out: it needs about 1 GB, and 1 GB are free\.") as error:
        peers.room_for("x", 2e8, at)
    assert "\n" not in str(error.value)
    assert peers.available_bytes("cpu") > 0


def test_a_missing_library_is_left_out_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="transformers is not installed"):
        pytest.importorskip("torch")
        peers.transformers_step(None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert bench.libraries("cpu")[0] == ["numpy"]
    alone = bench.group(V3, SIZE, "cpu")
    assert {c.package for c in alone.contenders} == {"numpy"} and "PyTorch" in alone.left_out[0]


# --- targets --------------------------------------------------------------------------------------------------------


def made_up(group, **times):
    """The group with times by name instead of measured ones."""
    named = tuple(replace(c, seconds=[times.get(f"{c.name} {c.package}", times.get(c.name, 1.0))])
                  for c in group.contenders)
    return replace(group, size=bench.SIZES["cpu"][0], contenders=named)


GOOD = {"products alone, same shapes": 0.9, "rows numpy": 1.0, "rows torch": 1.1, "tiled": 1.2, "sdpa": 1.5,
        "SDPA, heads folded, value = padded row": 1.4, "SDPA, heads folded, value r wide": 1.6,
        "SDPA, enable_gqa": 300.0, "transformers' DeepseekV3Attention step": 200.0, "step with W_UK and W_UV": 1.3}


def test_targets_are_met_by_good_times_and_missed_by_bad_ones(group):
    pytest.importorskip("transformers")
    good = targets.targets(made_up(group, **GOOD), "cpu")
    assert len(good) == 10 and all(t.met for t in good), [str(t) for t in good if not t.met]
    for name, seconds, missed in [
        ("products alone, same shapes", 0.8, "against the products alone"),
        ("SDPA, heads folded, value r wide", 0.9, "against the best stock call"),
        ("SDPA, enable_gqa", 99.0, "enable_gqa"),
        ("transformers' DeepseekV3Attention step", 59.0, "transformers"),
        ("step with W_UK and W_UV", 4.0, "step with W_UK"),
        ("rows torch", 0.7, "NumPy's best"),
        ("tiled", 1.5, "tiled over rows (numpy)"),
    ]:
        bad = [t.claim for t in targets.targets(made_up(group, **GOOD | {name: seconds}), "cpu") if not t.met]
        assert any(missed in claim for claim in bad), (name, bad)
    heavy = replace(made_up(group, **GOOD), peak={"numpy": 2**24 + 1})
    assert any("memory" in t.claim and "NOT MET" in str(t) for t in targets.targets(heavy, "cpu"))


def test_targets_are_for_the_sizes_of_the_suite(group):
    assert targets.targets(replace(made_up(group, **GOOD), size=SIZE), "cpu") == []


def test_the_roof_is_the_better_of_what_the_libraries_reach(group):
    times = {"copy numpy": 4.0, "copy": 2.0, "square product numpy": 4.0, "square product": 8.0}
    roof, torch = made_up(group, **times).roof, any(c.package == "torch" for c in group.contenders)
    assert roof.bandwidth == 2 * 4 * 4 / (2.0 if torch else 4.0) and roof.flops == 2 * 2**3 / 4.0


def test_the_limits_copy_and_multiply(group):
    copy, product = bench.limits("cpu", "numpy")
    copy.run()
    target, source = copy.run.args
    assert np.array_equal(target, source) and source.any() and not np.shares_memory(target, source)
    a, b = product.run.args
    assert np.allclose(product.run(), a @ b)
    assert copy.work == Work(0, 2 * 4 * 4) and product.work == Work(2 * 2**3, 3 * 4 * 4)


def test_targets_on_a_gpu():
    size = bench.SIZES["cuda"][0]
    work = Work(int(450e12), int(3.4e12))
    fast = Contender("triton", "torch", None, work, seconds=[0.9])
    flash = Contender("FlashMLA (sgl-flash-mla)", "torch", None, work, "stock", seconds=[0.8])
    found = targets.targets(bench.Group(size, (fast, flash), (), None, {}), "cuda")
    assert [(t.met, round(t.value, 2)) for t in found] == [(True, 500.0), (True, 0.89)]
    late = (replace(fast, seconds=[1.1]), flash)
    slow = targets.targets(bench.Group(bench.SIZES["cuda"][1], late, (), None, {}), "cuda")
    assert [(t.met, t.unit) for t in slow] == [(False, " TB/s"), (False, "")]
    for size, unit in zip(bench.SIZES["cuda"], (" TFLOP/s", " TB/s"), strict=False):
        for seconds, met in ((0.999, True), (1.001, False)):
            alone = bench.Group(size, (replace(fast, seconds=[seconds]),), (), None, {})
            assert [(t.met, t.unit) for t in targets.targets(alone, "cuda")] == [(met, unit)]


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST", 0.0)
    file = tmp_path / "out.json"
    assert main(["bench", "--heads", "2", "--tokens", "9", "--rounds", "1", "--json", str(file)]) == 0
    text, record = capsys.readouterr().out, json.loads(file.read_text())
    assert "2 heads, 9 tokens" in text and "rows (numpy)" in text
    (size,) = record["sizes"]
    assert (size["heads"], size["tokens"], size["batch"]) == (2, 9, 1) and record["machine"]["cores"]
    assert record["machine"]["date"] == date.today().isoformat() and record["machine"]["processor"]
    rows = {(row["name"], row["package"]): row for row in size["rows"]}
    one = rows["rows", "numpy"]
    assert one["flops"] == 2 * 2 * 1088 * 9 and one["bytes"] == 4 * (9 * 576 + 2 * 576 + 2 * 512)
    assert one["flops_per_second"] == pytest.approx(one["flops"] / one["seconds"])
    limit = max(one["flops"] / size["roof_flops"], one["bytes"] / size["roof_bandwidth"])
    assert one["fraction_of_limit"] == pytest.approx(limit / one["seconds"])
    assert one["error"] < 2e-6 and one["quartiles"][0] <= one["seconds"] <= one["quartiles"][1]


@pytest.mark.skipif(HAS_CUDA, reason="there is a GPU")
@pytest.mark.parametrize("argv", [["--device", "cuda"], ["--device", "tpu"], ["--rounds", "0"], ["--heads", "x"]])
def test_what_cannot_run_is_said_in_one_sentence(argv, tmp_path, capsys):
    file = tmp_path / "out.json"
    assert main(["bench", *argv, "--json", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("mla_lab: ") and not file.exists()


def test_building_the_parser_loads_no_library():
    command = ("import sys; from mla_lab.__main__ import parser; parser(); "
               "print(*sorted({'numpy', 'torch', 'matplotlib'} & set(sys.modules)))")
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
