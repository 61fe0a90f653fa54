"""Every fault is caught, every check catches one, and what is stored, shown and drawn is what is computed."""
import json
from dataclasses import replace

import pytest

from mla_lab import matrix, suite
from mla_lab.__main__ import main
from mla_lab.arrays import get_backend
from mla_lab.checks import CHECKS
from mla_lab.checks.blind import BLIND
from mla_lab.faults import FAULTS
from mla_lab.faults.fault import Fault
from mla_lab.models import models
from mla_lab.recipe import RIGHT
from mla_lab.verdict import Check, Setting, exactly

BY_ID = {c.id: c for c in CHECKS}
SOME = [BY_ID[i] for i in ("1.mtp", "3.scale", "4.square", "5.no_keys")]
FEW = [f for f in FAULTS if f.id in ("sum-572", "mscales_swapped", "kv_b_transposed", "empty_row_is_nan")]


@pytest.fixture(scope="module")
def computed():
    return matrix.compute()


def test_every_fault_is_caught_and_every_check_catches_one(computed):
    assert computed.uncaught == [] and computed.idle == []
    assert set(computed.rows) == {f.id for f in FAULTS} and computed.checks == tuple(BY_ID)


def test_what_is_stored_is_what_is_computed(computed):
    now, old = computed.as_json(), json.loads(matrix.STORED.read_text("utf-8"))
    a, b = now["faults"], old["faults"]
    changed = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    assert now == old, f"run: python -m mla_lab matrix --json mla_lab/data/matrix.json; changed: {changed}"
    assert matrix.stored() == computed


def test_what_a_fault_claims_to_be_caught_by_does_catch_it(computed):
    """Here in two dtypes; in all of them, and on torch, in test_checks."""
    for fault in FAULTS:
        assert set(fault.caught_by) <= set(computed.caught_by(fault.id)), fault.id


def narrowed(config):
    """The same kind of layer, small, with every dimension another one."""
    return replace(config, hidden_size=96, num_attention_heads=6, kv_lora_rank=70, qk_nope_head_dim=20, v_head_dim=16,
                   q_lora_rank=config.q_lora_rank and 44, qk_rope_head_dim=12)


KINDS = {narrowed(m.mla): m.name for m in models() if m.mla and m.mla.qk_rope_head_dim and not m.unsupported}


@pytest.mark.parametrize("config", KINDS, ids=KINDS.get)
def test_what_must_be_caught_does_not_depend_on_the_model(config):
    """The checks that run on the model's own layer: with or without a query latent, YaRN, biases, gates."""
    here = Setting(get_backend("numpy", "float64"), config, KINDS[config])
    ids = ("1.buffers", "2.model", "3.two_terms", "3.relative", "3.norm", "5.model_layer")
    own = [c for c in CHECKS if c.case == 4 or c.id in ids]
    results = [suite.run_check(check, here) for check in own]
    assert [(r.check.id, r.missed) for r in results if r.missed or not r.verdict.ok] == []


def test_each_check_says_what_it_cannot_see(computed):
    assert list(BLIND) == list(BY_ID)
    assert all(text.endswith(".") and len(text) > 35 for text in BLIND.values())
    # and each does miss something that it could have seen or is out of its reach
    assert all(set(computed.column(check)) - {matrix.CAUGHT} for check in computed.checks)


# --- seen to fail -----------------------------------------------------------------------------------------------------

def test_a_fault_that_nothing_catches_is_named():
    planted = Fault("harmless", "nothing", "none", {"scale": lambda config: RIGHT.scale(config)}, ())
    found = matrix.compute(SOME, [*FEW, planted])
    assert found.uncaught == ["harmless"] and found.idle == []
    assert found.rows["harmless"] == ".o.o"
    line, ok = matrix.summary(found)
    assert not ok and "uncaught: harmless;" in line


def test_a_further_form_that_nothing_catches_is_named():
    planted = replace(FEW[0], variants=({"elements": RIGHT.elements},))
    found = matrix.compute(SOME, [planted, *FEW[1:]])
    assert found.uncaught == ["sum-572 (form 2)"] and not matrix.summary(found)[1]


def test_a_check_that_catches_nothing_is_named():
    idle = Check("3.idle", "fine", lambda setting: exactly("fine", setting.recipe.scale(setting.config) is None, False))
    found = matrix.compute([*SOME, idle], FEW)
    assert found.idle == ["3.idle"] and found.uncaught == []
    assert found.column("3.idle").count("o") == 1
    assert "idle checks: 3.idle" in matrix.summary(found)[0]


def test_a_check_that_fails_by_the_right_conventions_is_refused():
    broken = Check("3.broken", "never", lambda setting: exactly("never", 1, 2))
    with pytest.raises(matrix.InputError, match="fails in float64 by the right conventions"):
        matrix.compute([broken], FEW)


def test_a_fault_of_one_dtype_alone_does_not_count_as_caught():
    seen = Check("3.fine", "in float64", lambda setting: exactly(
        "in float64", setting.backend.dtype == "float64" and setting.recipe.scale(setting.config) < 0, False))
    wrong = Fault("negative", "a negative scale", "none", {"scale": lambda config: -1.0}, ())
    found = matrix.compute([seen], [wrong])
    assert found.rows == {"negative": matrix.FINE} and found.uncaught == ["negative"]


def test_what_is_asked_for_is_noticed_and_copying_is_not_asking():
    recipe, used = matrix.watched(RIGHT)
    copy = replace(recipe, store=abs)
    assert not used
    assert copy.scale(matrix.TINY) and recipe.nothing
    assert used == {"scale", "nothing"}


# --- the command and the figure ---------------------------------------------------------------------------------------

def test_the_command_writes_what_is_stored_and_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(matrix, "compute", lambda done: matrix.stored())
    file = tmp_path / "matrix.json"
    assert main(["matrix", "--json", str(file)]) == 0
    assert file.read_bytes() == matrix.STORED.read_bytes()
    out = capsys.readouterr().out
    assert out.splitlines()[-1].endswith("uncaught: none; idle checks: none")
    assert all(text[:40] in out for text in BLIND.values()) and all(fault.id in out for fault in FAULTS)
    assert main(["matrix", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == matrix.stored().as_json()


def test_the_command_fails_with_a_fault_that_is_not_caught(monkeypatch, capsys):
    stored = matrix.stored()
    gap = replace(stored, rows=stored.rows | {"sum-572": "o" * len(stored.checks)})
    monkeypatch.setattr(matrix, "compute", lambda done: gap)
    assert main(["matrix"]) == 1
    assert "uncaught: sum-572" in capsys.readouterr().out


def test_the_command_cannot_write(tmp_path, capsys):
    assert main(["matrix", "--json", str(tmp_path / "none" / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_figure_shows_every_fault_and_every_check():
    pytest.importorskip("matplotlib")
    from mla_lab.matrix_plot import distinct, fault_matrix
    stored, plot = matrix.stored(), fault_matrix()
    labels = [t.get_text() for t in plot.figure.axes[0].get_yticklabels()]
    assert labels == [f.id for f in FAULTS]
    assert [check for _, checks in distinct(stored) for check in checks] == list(BY_ID)
    assert all(f"\n{fault.id}: {len(stored.caught_by(fault.id))}" in plot.numbers for fault in FAULTS)
