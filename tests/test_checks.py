"""The checks: they hold, they fail on every fault that they claim to catch, and the machinery cannot be fooled."""
import json
from dataclasses import replace

import numpy as np
import pytest

from mla_lab import suite
from mla_lab.arrays import get_backend, strict_backend
from mla_lab.checks import CHECKS
from mla_lab.checks.common import SMALL
from mla_lab.config import MLAConfig
from mla_lab.faults import FAULTS, Fault
from mla_lab.matrix import TINY
from mla_lab.recipe import RIGHT, Recipe
from mla_lab.report import plain
from mla_lab.verdict import Check, Setting, Verdict, exactly

SETTINGS = [
    ("numpy", "float64"),
    ("numpy", "float32"),
    ("numpy", "bfloat16"),
    ("torch", "float64"),
    ("torch", "float32"),
    ("torch", "bfloat16"),
    ("torch-cuda", "float64"),
    ("torch-cuda", "float32"),
    ("torch-cuda", "bfloat16"),
]


def setting(name, dtype):
    from conftest import make
    return Setting(make(name, dtype), TINY, "tiny")


@pytest.mark.parametrize("name, dtype", SETTINGS)
def test_every_check_holds_and_every_fault_is_caught(name, dtype):
    results = list(suite.run(setting(name, dtype)))
    assert not [(r.check.id, r.verdict) for r in results if not r.verdict.ok]
    assert not [(r.check.id, r.missed) for r in results if r.missed]
    assert suite.summary(results) == (f"{len(CHECKS)} of {len(CHECKS)} checks hold; "
                                      f"{len(FAULTS)} of {len(FAULTS)} faults caught", True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_formulas_lean_on_nothing_but_the_array_standard(dtype):
    """On array-api-strict; checks that use SVD, peaks or bfloat16 are left to the other backends."""
    here = Setting(strict_backend(dtype), TINY, "tiny")
    wanted = ("2.exact", "3.two_terms", "3.relative", "3.norm", "3.pairing", "4.logits", "4.output", "4.lse", "4.mqa",
              "4.to_the_bit", "4.square", "4.all_bits", "4.premultiplied", "5.article", "5.every_split", "5.ragged",
              "5.unused_slots", "5.merge", "5.far", "5.many", "5.merge_many", "5.faint", "5.no_keys", "5.fp8_weights",
              "5.paper")
    for check in CHECKS:
        if check.id in wanted:
            verdict = check.run(here)
            assert verdict.ok, verdict


def test_every_check_catches_something_and_every_fault_is_caught_by_something():
    ids = {c.id for c in CHECKS}
    assert len(ids) == len(CHECKS) and len({f.id for f in FAULTS}) == len(FAULTS) >= 12
    assert all(suite.faults_for(c) for c in CHECKS), [c.id for c in CHECKS if not suite.faults_for(c)]
    for fault in FAULTS:
        assert fault.caught_by and set(fault.caught_by) <= ids, fault.id
        assert (fault.what and "#" in fault.thread) or "/" in fault.thread
        spoiled = fault.spoil(RIGHT)
        assert spoiled != RIGHT and set(fault.changes) <= set(Recipe.__dataclass_fields__)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.id)
def test_a_fault_that_is_silently_disabled_turns_the_run_red(check, monkeypatch):
    """Replace the check's first fault by the right recipe: the summary must not be green any more."""
    if check.id == "5.model_layer":
        pytest.skip("covered by test_every_check_holds_and_every_fault_is_caught: it is the same code as 5.every_split")
    first = suite.faults_for(check)[0]
    harmless = Fault(first.id, first.what, first.thread, {}, first.caught_by)
    monkeypatch.setattr(suite, "FAULTS", tuple(harmless if f.id == first.id else f for f in FAULTS))
    result = suite.run_check(check, setting("numpy", "float64"))
    assert result.verdict.ok and first.id in result.missed
    line, green = suite.summary([result])
    assert not green and not line.endswith(f"{len(result.caught)} of {len(result.caught)} faults caught")


def test_a_check_that_cannot_fail_turns_the_run_red():
    idle = Check("5.article", "always fine", lambda s: exactly("always fine", 1, 1))
    result = suite.run_check(idle, setting("numpy", "float64"))
    assert result.verdict.ok and len(result.missed) == len(suite.faults_for(idle)) > 0
    assert suite.summary([result])[1] is False


def test_a_failing_check_turns_the_run_red_and_an_empty_run_is_not_green():
    bad = suite.Result(CHECKS[0], exactly("off by one", 1, 2), (), ())
    assert suite.summary([bad]) == ("0 of 1 checks hold; 0 of 0 faults caught", False)
    assert suite.summary([])[1] is False


def test_the_line_of_a_verdict_is_the_same_on_every_backend_and_holds_no_raw_number():
    lines = set()
    for name in ("numpy", "torch"):
        for dtype in ("float64", "float32"):
            here = setting(name, dtype)
            lines.add(
                "\n".join(str(c.run(here)) for c in CHECKS if c.case in (3, 4) or c.id in ("5.article", "5.ragged"))
            )
    assert len(lines) == 1 and "e-1" not in lines.pop()


def test_the_report_of_every_check_is_json():
    here = setting("numpy", "float32")
    for check in CHECKS:
        row = plain(suite.run_check(check, here).as_json(here))
        assert json.loads(json.dumps(row, allow_nan=False))["id"] == check.id
        assert {"id", "case", "claim", "backend", "dtype", "saw", "bound", "ok", "faults_caught"} <= set(row)
        assert row["case"] in range(1, 6) and row["dtype"] == "float32"


def test_the_compared_modes_share_a_fault_so_the_oracle_must_not():
    """Naive and absorbed under one wrong scale agree with each other: only the right oracle sees it."""
    from mla_lab.checks.case4_absorption import oracle, run
    wrong = next(f for f in FAULTS if f.id == "scale_by_cached_width").spoil(RIGHT)
    heads, right, *_ = oracle(TINY, get_backend())
    a, b = (run(heads, TINY, mode, wrong).heads for mode in ("naive", "absorb"))
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    assert np.abs(a - right.heads).max() > 1e-3


def test_verdict_words():
    assert str(Verdict("c", 0, 0, None, True)) == "holds  c (exactly equal)"
    assert str(Verdict("c", 1, 0, 0.5, False)) == "FAILS  c (outside the bound)"


def test_models_without_query_compression_or_yarn_pass_too():
    for config in (
        replace(SMALL, q_lora_rank=None, rope_scaling=None),
        replace(TINY, rope_interleave=True, v_head_dim=9),
    ):
        here = Setting(get_backend(), config, "variant")
        for check in CHECKS:
            if check.case in (4, 5):
                assert check.run(here).ok, check.id


def test_a_layer_of_large_weights_is_decided_in_float64_where_float32_is_vacuous():
    from mla_lab.verdict import Given
    from mla_lab.weights import shapes
    config = MLAConfig(hidden_size=1024, num_attention_heads=8, q_lora_rank=192, kv_lora_rank=128, qk_nope_head_dim=32,
                       qk_rope_head_dim=16, v_head_dim=40)
    rng = np.random.default_rng(0)
    state = {name: 1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 2 * rng.standard_normal(shape)
             for name, shape in shapes(config).items()}
    check = next(c for c in CHECKS if c.id == "5.model_layer")
    verdicts = {dtype: check.run(Setting(get_backend("numpy", dtype), config, "large", state=Given(state, "a test")))
                for dtype in ("float64", "float32")}
    assert verdicts["float64"].ok and "float64" in verdicts["float64"].note
    assert not verdicts["float32"].ok and "vacuous" in verdicts["float32"].note
