"""docs/extending.md works: its Python runs and says what it should, and what it names is there."""
import re
from dataclasses import replace
from pathlib import Path

import hygiene
import pytest
from test_notation import names_that_do_not_exist

from mla_lab.arrays import BACKENDS
from mla_lab.exercises.registry import EXERCISES, LEVELS
from mla_lab.faults.fault import Fault
from mla_lab.models import Model

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PROSE = " ".join(TEXT.split())


def test_its_python_runs_and_prints_what_it_says(capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("array_api_strict")
    blocks, seen, printed = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), {}, []
    try:
        for block in blocks:
            exec(block, seen)
            printed += capsys.readouterr().out.splitlines()
    finally:
        EXERCISES.pop("check_rank_of_all", None)
    claim = "the attention weights of a query sum to one"
    assert printed[:4] == [f"holds  {claim} (inside the bound)", f"holds  {claim} (inside the bound)",
                           "FAILS  absorbed attention weights equal the naive ones (outside the bound)",
                           f"holds  {claim} (inside the bound)"]
    assert printed[4:7] == ["mla 70272", "not yet: that is the latent alone",
                            "a number or an array of numbers is needed, not an object of type str"]
    assert "key at 40, query at 42" in printed[7]


def test_its_check_is_seen_to_fail(monkeypatch):
    """What it claims to hold is false of weights that are not normed."""
    seen = {}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1], seen)
    real = seen["case4_absorption"].run
    monkeypatch.setattr(seen["case4_absorption"], "run", lambda *how: replace(
        real(*how), weights=real(*how).weights * (1 + 1e-9)))
    assert not seen["weights_sum_to_one"](seen["setting"]).ok


def test_what_it_names_is_there():
    assert list(names_that_do_not_exist(TEXT)) == []
    for path in re.findall(r"`((?:mla_lab|tests|tools|notebooks)/[\w./]+)`", TEXT):
        assert "NN" in path or (ROOT / path).exists(), path
    assert ", ".join(hygiene.ANATOMY) in PROSE and ", ".join(LEVELS) in PROSE
    assert {"thread", "why", "caught_by"} <= Fault.__dataclass_fields__.keys()
    assert {"source", "source_kind", "unsupported"} <= Model.__dataclass_fields__.keys()
    assert "numpy" in BACKENDS and "MEMBERS = " in (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z -]+)`", TEXT):
        assert all(re.search(rf"^{name}:", make, re.MULTILINE) for name in target.split()), target
