"""The claims ledger: every claim once, every verdict computed, every computation able to disagree."""
import json
import re
from dataclasses import replace

import pytest

from mla_lab import claims
from mla_lab.__main__ import main
from mla_lab.claims import ledger
from mla_lab.errors import InputError

IDS = [*(f"A{n:02d}" for n in range(1, 33)), *(f"B{n:02d}" for n in range(1, 8))]
BY_ID = {claim.id: claim for claim in claims.CLAIMS}


@pytest.fixture(scope="module")
def settled():
    found = {}

    def once(id):
        if id not in found:
            found[id] = claims.settle(BY_ID[id])
        return found[id]
    return once


def test_every_claim_is_there_once():
    assert [claim.id for claim in claims.CLAIMS] == IDS
    assert len({claim.said for claim in claims.CLAIMS}) == len(IDS)


def test_a_verdict_without_a_reason_is_one_that_just_holds():
    for claim in claims.CLAIMS:
        assert claim.kind in claims.KINDS
        assert bool(claim.because) == (claim.kind != ledger.HOLDS), claim.id
        assert claim.said.endswith(".") and re.fullmatch(r"\d\d", claim.notebook)


@pytest.mark.parametrize("id", IDS)
def test_the_computed_verdict_is_the_recorded_one(settled, id):
    assert settled(id).ok, str(settled(id))


# Where what is planted changes the numbers found and not the kind: a setting in which the kind is another one.
OTHERWISE = {"A14": {"at": (0, 0)}, "A16": {"scale": lambda config: 1.0}, "A18": {"modes": ("naive", "naive")},
             "B02": {"said": "98.24"}}


@pytest.mark.parametrize("id", IDS)
def test_a_planted_wrong_value_is_noticed(id):
    planted = claims.settle(BY_ID[id], **BY_ID[id].wrong)
    assert BY_ID[id].wrong and not planted.ok, str(planted)
    assert "NOT AS RECORDED" in str(planted)
    if id in OTHERWISE:
        planted = claims.settle(BY_ID[id], **OTHERWISE[id])
    assert planted.finding.kind != BY_ID[id].kind, "the kind is computed, and not written down"


@pytest.mark.parametrize("id", IDS)
def test_another_recorded_verdict_is_a_failure(settled, id):
    finding = settled(id).finding
    other = next(kind for kind in claims.KINDS if kind != finding.kind)
    assert not claims.Settled(replace(BY_ID[id], kind=other), finding).ok
    assert not claims.Settled(replace(BY_ID[id], found=BY_ID[id].found + " "), finding).ok


@pytest.mark.parametrize(("as_said", "elsewhere", "kind"), [
    (True, True, ledger.HOLDS), (True, False, ledger.CONDITION), (False, True, ledger.CORRECTED),
    (False, False, ledger.CORRECTED), (None, True, ledger.OPEN)])
def test_the_kind_follows_from_what_was_computed(as_said, elsewhere, kind):
    assert claims.Finding(as_said, "", elsewhere).kind == kind


def test_torch_finds_the_same(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("MLA_LAB_BACKEND", "torch")
    for id in ("A11", "A13", "A14", "A17", "A18", "A19", "A22", "A31", "B06"):
        assert (one := claims.settle(BY_ID[id])).ok, str(one)


def test_mixed_units_are_shown_with_both_values(settled):
    assert settled("A03").finding.found.startswith("30.5 GiB = 32.75 GB; 31,232 MiB / 1,000 = 31.23")


def test_the_command_writes_json(tmp_path, capsys):
    file = tmp_path / "claims.json"
    assert main(["claims", "--id", "b02", "A03", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == ("2 of 2 verdicts are the recorded ones: 0 holds, 0 holds with a condition, "
                                    "2 corrected, 0 cannot be settled here")
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [row["id"] for row in rows] == ["A03", "B02"]
    assert all(row["ok"] and row["verdict"] == row["recorded_verdict"] == "corrected" for row in rows)


def test_json_alone_on_standard_output(capsys):
    assert main(["claims", "--id", "A01", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)[0]["found"].endswith("65,536 B") and "A01" in captured.err


def test_a_verdict_that_does_not_come_out_is_exit_code_1(monkeypatch, capsys):
    wrong = tuple(replace(c, settle=lambda c=c: c.settle(**c.wrong)) for c in claims.CLAIMS[:2])
    monkeypatch.setattr(claims, "CLAIMS", wrong)
    assert main(["claims"]) == 1
    assert "NOT AS RECORDED" in capsys.readouterr().out


def test_an_unknown_claim_is_one_sentence(capsys):
    assert main(["claims", "--id", "C01"]) == 2
    assert "C01" in capsys.readouterr().err
    with pytest.raises(InputError):
        claims.select(claims.CLAIMS, ["A00"])
