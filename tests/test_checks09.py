"""Case 9 holds on every backend, and fails under each planted fault exactly where it is said to."""
import numpy as np
import pytest

from mla_lab.arrays import get_backend
from mla_lab.kernels import flash_plots
from mla_lab.kernels.checks09_flash_decode import CHECKS, RIGHT
from mla_lab.kernels.faults09 import PLANTED
from mla_lab.models import get_model
from mla_lab.verdict import Setting

V3 = get_model("DeepSeek-V3").mla


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.id)
@pytest.mark.parametrize("name, dtype", [("numpy", "float64"), ("torch", "float64"), ("numpy", "float32"),
                                         ("torch", "float32")])
def test_it_holds(check, name, dtype):
    verdict = check.run(Setting(get_backend(name, dtype), V3))
    assert verdict.ok and verdict.claim == check.claim, (str(verdict), verdict.saw, verdict.note)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("fault", PLANTED, ids=lambda f: f.id)
def test_a_planted_fault_turns_its_checks_red_and_no_other(fault, name):
    setting = Setting(get_backend(name), V3)
    red = {check.id for check in CHECKS if not check.run(setting, fault.spoil(RIGHT)).ok}
    assert red == set(fault.caught_by)


def test_every_check_has_a_fault():
    assert {i for fault in PLANTED for i in fault.caught_by} == {check.id for check in CHECKS}


def test_an_online_softmax_that_saw_all_is_the_softmax():
    z = np.array(flash_plots.LOGITS)
    assert f"in the end {np.log(np.exp(z).sum()):.4f}" in flash_plots.online(1).numbers
    _, lse, _ = flash_plots.online(len(z)).numbers.splitlines()
    now, end = lse.split(";")
    assert now.split()[-1] == end.split()[-1]


def test_a_drawn_schedule_is_the_schedule():
    for rule, splits, wanted in (("greedy", 2, 65), ("fixed", 1, 261), ("fixed", 8, 99)):
        plot = flash_plots.schedule(rule, 16384, 8, splits)
        assert f"slowest part {wanted} blocks" in plot.numbers and plot.alt.endswith(plot.numbers.splitlines()[-1])
    flash_plots.schedule("fixed", 512, 2, 16), flash_plots.schedule("greedy", 65536, 16)


def test_the_65th_row_costs_a_tile():
    assert "64 rows: 1 tile of 64, 100 %" in flash_plots.tile_steps(rows=64).numbers
    assert "65 rows: 2 tiles of 64, 51 %" in flash_plots.tile_steps(rows=65).numbers
