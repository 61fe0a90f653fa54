"""Run the checks, each on the right conventions and then on every fault that it is there to catch."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .checks import CHECKS
from .errors import InputError
from .faults import FAULTS, Fault
from .verdict import Check, Setting, Verdict


@dataclass(frozen=True)
class Result:
    """A check's verdict, and what became of the faults assigned to it."""

    check: Check
    verdict: Verdict
    caught: tuple[str, ...]
    missed: tuple[str, ...]

    def as_json(self, setting: Setting) -> dict:
        """One object of the JSON report."""
        v = self.verdict
        return {
            "id": self.check.id, "case": self.check.case, "claim": v.claim, "model": setting.model,
            "weights": setting.state.where if setting.state else "drawn",
            "backend": setting.backend.name, "dtype": setting.backend.dtype, "saw": v.saw, "expected": v.expected,
            "bound": v.bound, "ok": v.ok, "note": v.note,
            "faults_caught": list(self.caught), "faults_missed": list(self.missed),
        }


def select(cases: list[int] | None) -> list[Check]:
    """The checks of ``cases`` (all of them for None)."""
    known = sorted({c.case for c in CHECKS})
    for case in cases or ():
        if case not in known:
            raise InputError(f"case {case} does not exist; cases: {', '.join(map(str, known))}.")
    return [c for c in CHECKS if cases is None or c.case in cases]


def faults_for(check: Check) -> list[Fault]:
    """The registered faults that ``check`` must catch."""
    return [f for f in FAULTS if check.id in f.caught_by]


def run_check(check: Check, setting: Setting) -> Result:
    """The verdict under ``setting.recipe``, then under each assigned fault: a caught fault is one that fails."""
    caught, missed = [], []
    for fault in faults_for(check):
        seen = check.run(replace(setting, recipe=fault.spoil(setting.recipe)))
        (missed if seen.ok else caught).append(fault.id)
    return Result(check, check.run(setting), tuple(caught), tuple(missed))


def run(setting: Setting, cases: list[int] | None = None) -> Iterator[Result]:
    """Run the checks of ``cases`` in order, one `Result` at a time."""
    for check in select(cases):
        yield run_check(check, setting)


def summary(results: list[Result]) -> tuple[str, bool]:
    """The last line of a run, and whether every check holds and every fault was caught by each of its checks."""
    hold = sum(r.verdict.ok for r in results)
    missed = {f for r in results for f in r.missed}
    faults = {f for r in results for f in r.caught} | missed
    line = f"{hold} of {len(results)} checks hold; {len(faults - missed)} of {len(faults)} faults caught"
    return line, bool(results) and hold == len(results) and not missed
