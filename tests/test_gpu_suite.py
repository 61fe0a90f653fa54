"""The GPU suite where there is no GPU: it says so, and its table holds what it was given."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kernels import HAS_CUDA

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
spec = importlib.util.spec_from_file_location("gpu_table", BENCHMARKS / "gpu_table.py")
gpu_table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_table)

JUNIT = """<testsuites><testsuite><testcase classname="tests.test_a" name="good"/>
<testcase classname="tests.test_a" name="bad"><failure message="x"/></testcase>
<testcase classname="tests.test_a" name="broken"><error message="x"/></testcase>
<testcase classname="tests.test_a" name="away"><skipped message="x"/></testcase></testsuite></testsuites>"""
ROW = {"name": "triton", "seconds": 1e-3, "quartiles": [0.9e-3, 1.2e-3], "flops_per_second": 5e14, "error": 4e-3,
       "bytes_per_second": 2.5e12, "fraction_of_limit": 0.61, "nearer_limit": "compute"}
TARGET = {"claim": "triton (torch)", "value": 500.4, "unit": " TFLOP/s", "wanted": 450, "at_most": False, "met": True}
BENCH = {"machine": {"GPU": "a GPU"}, "sizes": [{"heads": 128, "tokens": 4096, "batch": 128, "rows": [ROW],
         "targets": [TARGET, TARGET | {"met": False, "at_most": True}], "left_out": ["FlashMLA is left out: x."]}] * 2}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tests.xml").write_text(JUNIT)
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    return tmp_path


def test_the_table_holds_what_was_measured(folder):
    assert gpu_table.main(str(folder), "1", "0") == 1
    found, text = json.loads((folder / "gpu_suite.json").read_text()), (folder / "gpu_suite.md").read_text()
    assert found["tests"]["failed"] == ["tests.test_a::bad", "tests.test_a::broken"]
    assert (found["tests"]["passed"], found["tests"]["skipped"]) == (1, 1) and found["bench"] == BENCH
    assert "Tests: 1 passed, 2 failed, 1 skipped (exit code 1)." in text and "* failed: `tests.test_a::bad`" in text
    assert "| triton | 1.000 | [0.900, 1.200] | 500.0 | 2.50 | 0.61 compute | 4e-03 |" in text
    assert "| 500 TFLOP/s | at least 450 TFLOP/s | yes |" in text and "| at most 450 TFLOP/s | NO |" in text
    assert text.count("FlashMLA is left out") == 1
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(("tests", "bench", "code"), [("0", "0", 0), ("124", "0", 1), ("0", "137", 1), ("5", "0", 1)])
def test_what_did_not_end_is_no_success(folder, tests, bench, code):
    good = JUNIT.replace('<failure message="x"/>', "").replace('<error message="x"/>', "")
    (folder / "tests.xml").write_text(good)
    assert gpu_table.main(str(folder), tests, bench) == code
    text = (folder / "gpu_suite.md").read_text()
    assert ("out of time" in text) == (tests == "124" or bench == "137")


def test_half_a_run_leaves_half_a_report(tmp_path):
    assert gpu_table.main(str(tmp_path), "124", "124") == 1
    assert "Tests: 0 passed" in (tmp_path / "gpu_suite.md").read_text()


@pytest.mark.skipif(HAS_CUDA, reason="there is a GPU, and the suite would run on it")
def test_without_a_gpu_nothing_is_run(tmp_path):
    ran = subprocess.run([BENCHMARKS / "gpu_suite.sh", tmp_path / "out"], capture_output=True, text=True, check=False,
                         env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"})
    assert ran.returncode == 2 and not (tmp_path / "out").exists()
    assert ran.stderr.count("\n") == 1 and "no CUDA GPU" in ran.stderr


def test_the_limits_of_its_parts_add_up_to_less_than_eight_minutes():
    words = (BENCHMARKS / "gpu_suite.sh").read_text().split()
    limits = [int(words[i + 3]) + int(words[i + 2]) for i, word in enumerate(words) if word == "timeout"]
    assert "".join(words).count("timeout-k") == 2
    assert len(limits) == 2 and sum(limits) < 480
