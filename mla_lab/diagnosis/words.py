"""A diagnosis, and how it is said: as text for a terminal, and as JSON."""
from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass

from ..faults import FAULTS
from .observe import Problem

WIDTH = 110
KNOWN = {fault.id: fault for fault in FAULTS}


@dataclass(frozen=True)
class Departure:
    """How one case compares with the right conventions."""

    case: str
    shows: str
    share: float  # largest distance over the likely radius
    relative: float  # rms of the difference over rms of what is right, in the call that departs first
    where: str  # first call, sequence, position and heads beyond the radius; empty where nothing is


@dataclass(frozen=True)
class Diagnosis:
    """The outcome of holding an implementation to the battery.

    Parameters
    ----------
    verdict : str
        'agrees', 'fault', 'two faults', 'precision', 'nearest', 'unknown' or 'raises'.
    faults : tuple of str
        Ids; those that no output can tell apart come together.
    precision : str
        The precision at which the verdict holds.
    distance : float
        For 'nearest': from that fault's prediction, 0 (equal) to 1.
    looks : str
        For 'unknown': what one factor, fitted on one case, reproduces in all of them.
    """

    name: str
    protocol: str
    dtype: str
    arrays: str
    verdict: str
    faults: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    precision: str = ""
    distance: float = 0.0
    looks: str = ""
    departures: tuple[Departure, ...] = ()
    problems: tuple[Problem, ...] = ()
    unseen: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the implementation conforms."""
        return self.verdict == "agrees"

    def __str__(self) -> str:
        return text(self)


def wrapped(label: str, sentence: str) -> list[str]:
    return textwrap.wrap(f"{label}{sentence}", WIDTH, subsequent_indent=" " * len(label))


def about(identity: str) -> list[str]:
    """What is known of a fault."""
    fault = KNOWN[identity]
    fields = ", ".join(sorted({name for form in fault.forms for name in form}))
    return [f"  {fault.id}", *wrapped("    what: ", fault.what + "."),
            *wrapped("    why the usual test misses it: ", fault.why + "."),
            f"    happened in: {fault.thread} on GitHub", f"    the convention it breaks: Recipe.{fields}"]


def headline(d: Diagnosis) -> list[str]:
    """The verdict in one sentence, and the faults it names."""
    calls = len({p.call for p in d.problems})
    if d.verdict == "agrees":
        lines = [f"AGREES with the right conventions to {d.precision}"
                 + ("" if d.precision == d.dtype else f" (asked for {d.dtype}: some step runs in {d.precision})") + "."]
    elif d.verdict == "raises":
        lines = [f"BREAKS in {len(d.problems)} case{'s' * (len(d.problems) > 1)}"
                 + (", and agrees in the others." if d.departures else ", so there is nothing to compare.")]
    elif d.verdict == "precision":
        lines = [f"IMPRECISE: the differences are what rounding to {d.precision} makes, although {d.dtype} came in."]
    elif d.verdict == "fault" and d.faults == ("tf32",):
        lines = ["KNOWN FAULT, by the size and the spread of the error: products seem to round their inputs to 10",
                 "bits, as TF32 does."]
    elif d.verdict in ("fault", "two faults"):
        count = "KNOWN FAULT: it reproduces" if d.verdict == "fault" else "TWO KNOWN FAULTS: together they reproduce"
        exact = d.precision in (d.dtype, "float32")
        hedge = "" if exact else f" (not to {d.dtype}: something else of that size is off)"
        lines = [f"{count} every output to {d.precision}{hedge}."]
    elif d.verdict == "nearest":
        lines = [f"UNKNOWN FAULT. Nearest known one, at a distance of {d.distance:.2g} (0: equal, 1: unrelated):"]
    elif d.looks:
        lines = [f"UNKNOWN FAULT, but it looks like {d.looks}: that reproduces every case, and no known fault does."]
    else:
        lines = ["UNKNOWN FAULT, and no known one comes near. The table says where it first shows."]
    if calls and d.verdict not in ("raises",):
        lines.append(f"Besides, {len(d.problems)} case{'s' * (len(d.problems) > 1)} gave no output (see below).")
    if d.verdict in ("fault", "two faults", "nearest"):
        for identity in d.faults:
            lines += about(identity)
        if d.alike:
            lines += wrapped("  the same to every output of this battery: ", ", ".join(d.alike))
    return lines


def grouped(d: Diagnosis) -> list[str]:
    """The problems, one sentence for those that are the same but for their case."""
    same: dict[tuple[str, str], list] = {}
    for problem in d.problems:
        same.setdefault((problem.call, problem.what), []).append(problem)
    return [str(first) if len(group) == 1 else f"cases {', '.join(p.case for p in group)}: {first.call}: {first.what} "
            f"({first.shapes}, in the first)" for group in same.values() for first in group[:1]]


def text(d: Diagnosis) -> str:
    """The whole report: the verdict, what to know besides, and the table of cases."""
    lines = [f"{d.name}: protocol {d.protocol}, {d.arrays}, {d.dtype}", "", *headline(d)]
    lines += [line for sentence in grouped(d) for line in wrapped("  broken: ", sentence)]
    lines += [line for remark in d.remarks for line in wrapped("  note: ", remark)]
    if d.unseen:
        lines += wrapped("  not tested, because these cases cannot show them: ", ", ".join(d.unseen))
    if not d.departures:
        return "\n".join(lines)
    width = max(len(x.case) for x in d.departures)
    lines += ["", f"{'case':<{width}}  {'error/bound':>11}  first departure"]
    for x in d.departures:
        what = "LSE" if x.where.startswith("LSE") else "output"
        off = f": off by {x.relative:.2g} of the {what}'s size" if x.relative < float("inf") else ""
        lines.append(f"{x.case:<{width}}  {x.share:>11.2g}  {x.where + off if x.where else 'agrees'}")
        if x.where:
            lines.append(f"{'':<{width}}  {'':>11}  ({x.shows})")
    return "\n".join([*lines, "", "error/bound: largest distance from the right output over what rounding is likely to "
                      f"explain in {d.precision or d.dtype}"])


def as_json(d: Diagnosis) -> dict:
    """Everything, with what is known of each fault named."""
    named = {i: {"what": KNOWN[i].what, "thread": KNOWN[i].thread, "why": KNOWN[i].why} for i in (*d.faults, *d.alike)}
    return asdict(d) | {"ok": d.ok, "about": named}
