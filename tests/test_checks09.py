"""Case 9 holds on every backend, and fails under each planted fault exactly where it is said to."""
import pytest

from mla_lab.arrays import get_backend
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
