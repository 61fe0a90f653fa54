"""docs/diagnose.md: its code runs and its cases are those of the battery."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mla_lab.diagnosis.cases import decode_cases, layer_cases

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
FACTORY, CI = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_its_ci_example_runs(tmp_path):
    from test_diagnose_isolated import write
    write(tmp_path, name="my_port.py")
    (tmp_path / "test_port.py").write_text(CI)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
                          capture_output=True, text=True, cwd=tmp_path)
    assert f"{len(list(decode_cases()))} passed" in done.stdout, done.stdout
    assert len([line for line in CI.splitlines() if line.strip()]) <= 10


def test_its_factory_is_diagnosed():
    pytest.importorskip("transformers", minversion="5.24", reason="the factory makes a module of transformers")
    from mla_lab.diagnosis import diagnose
    names = {}
    exec(FACTORY, names)
    found = diagnose(names["make_attention"], "module")
    assert found.faults == ("norm_eps_wrong",), str(found)  # the battery's epsilon is not their default


def test_its_words_are_those_of_the_report():
    for case in [*layer_cases(), *decode_cases()]:
        assert f"`{case.name}`" in TEXT or case.name in ("one token", "finite tail", "empty row"), case.name
    words = (ROOT / "mla_lab" / "diagnosis" / "words.py").read_text(encoding="utf-8")
    for verdict in re.findall(r"\*\*([A-Z ]+)\*\*", TEXT):
        assert verdict in words, verdict
