"""Start ranks as processes, watch them, and say in one sentence what went wrong if one of them is lost.

::

    python -m mla_lab.serving.launch --processes 4               # starts the ranks itself
    torchrun --nproc-per-node 4 -m mla_lab.serving.launch        # torchrun has started them

Both run `mla_lab.serving.trial` under tensor, data-parallel and context parallelism and compare every rank's outputs
with those of one process. Ranks end with whoever started them, and the whole run within its time limit; only torchrun
takes half a minute more where a rank is frozen, for it asks politely first.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..arrays import get_backend
from ..errors import InputError, positive_int, unknown
from ..report import json_target
from .comm import PeerLost
from .hosting import LOST, RankLost, host, work

LIMIT = 60.0  # seconds for a whole run
CLOSE = 1e-12  # float64: largest difference of outputs over the largest output
MOST = 64  # processes


class Parser(argparse.ArgumentParser):
    """Bad usage is one sentence like all other bad input."""

    def error(self, message: str):
        raise InputError(f"{message} (see: python -m {self.prog} --help)")


def options() -> argparse.ArgumentParser:
    p = Parser(prog="mla_lab.serving.launch", description="One MLA layer on several ranks, compared with one process.",
               allow_abbrev=False)
    p.add_argument("--processes", type=int, default=2, metavar="N", help="ranks (2); torchrun says it itself")
    p.add_argument("--plan", nargs="+", default=["tp", "dp", "cp"], metavar="PLAN", help="of tp, dp and cp (all)")
    p.add_argument("--transport", default="gloo", metavar="NAME", help="gloo, or nccl with a GPU for each rank (gloo)")
    p.add_argument("--dtype", default="float64", help="float64 (default), float32 or bfloat16")
    p.add_argument("--limit", type=float, default=LIMIT, metavar="S", help=f"seconds for the whole run ({LIMIT:g})")
    p.add_argument("--fault", metavar="ID", help="plant a fault of mla_lab.serving.planted")
    p.add_argument("--break-rank", type=int, metavar="R", help="for tests: this rank kills or freezes itself")
    p.add_argument("--how", default="die", metavar="HOW", help="die or hang (die)")
    p.add_argument("--lose", type=int, metavar="R", help="then run again with this rank killed; report what is said")
    p.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    p.add_argument("--json", metavar="FILE", help="write every rank's report ('-': to standard output)")
    return p


def checked(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse what cannot be run before anything is started."""
    from .planted import rules_under
    from .ranks import BROKEN, TRANSPORTS
    from .trial import BATCH, CONFIG, PLANS
    positive_int("processes", args.processes)
    heads = CONFIG.num_attention_heads
    if args.processes > MOST or ("tp" in args.plan and heads % args.processes) or (
            "dp" in args.plan and BATCH % args.processes):
        raise InputError(f"processes must divide the trial's {heads} heads (tp) and {BATCH} requests (dp), so 1, 2 or "
                         f"4 for all plans, not {args.processes}.")
    for name, value, known in (*(("plan", plan, PLANS) for plan in args.plan), ("how", args.how, BROKEN),
                               ("transport", args.transport, TRANSPORTS)):
        if value not in known:
            raise unknown(name, value, known)
    if not 0 < args.limit <= 3600:
        raise InputError(f"limit must be above 0 and at most 3600 seconds, not {args.limit:g}.")
    for name, rank in (("break-rank", args.break_rank), ("lose", args.lose)):
        if rank is not None and not 0 <= rank < args.processes:
            raise InputError(f"{name} must be a rank from 0 to {args.processes - 1}, not {rank}.")
    rules_under(args.fault)
    get_backend(TRANSPORTS["gloo"], args.dtype)  # refuses where torch is missing, and an unknown dtype
    return args


def under_torchrun(args: argparse.Namespace) -> int:
    """A rank that torchrun has started."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    args.processes = size
    checked(args)
    try:
        reports = work(rank, size, args, "env://")
    except PeerLost as error:
        print(f"mla_lab: {error}", file=sys.stderr)
        return LOST
    return show({"ranks": reports, "lost": None}, args) if rank == 0 else 0


def all_runs(args: argparse.Namespace) -> dict:
    """Every rank's report, and what was said of a rank that was lost on purpose."""
    found: dict = {"ranks": host(args), "lost": None}
    if args.lose is not None:
        try:
            host(argparse.Namespace(**vars(args) | {"break_rank": args.lose, "how": "die"}))
        except RankLost as error:
            found["lost"] = str(error)
    return found


def run(processes: int = 2, plan: Sequence[str] = ("tp", "dp", "cp"), limit: float = LIMIT, **how: object
        ) -> dict:
    """`all_runs` in a process of its own, so that a notebook, or a test, has no rank for a child.

    Parameters
    ----------
    how
        More options of the command by name, such as ``fault="merged_without_lse"`` or ``lose=1``.

    Returns
    -------
    dict
        ``ranks``: for each rank what `mla_lab.serving.ranks.report` says; ``lost``: see `all_runs`.

    Raises
    ------
    RankLost, InputError
    """
    typed = [str(x) for name, value in how.items() for x in (f"--{name.replace('_', '-')}", value)]
    command = [sys.executable, "-m", "mla_lab.serving.launch", "--processes", str(processes), "--plan", *plan,
               "--limit", f"{limit}", "--with-parent", "--json", "-", *typed]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 60, check=False,
                              env=os.environ | {"PYTHONPATH": path})
    except subprocess.TimeoutExpired:
        raise RankLost(f"the ranks gave no result within the limit of {limit:g} s") from None
    said = done.stderr.strip().splitlines()[-1:] or [""]
    if done.returncode == 2:
        raise InputError(said[0].removeprefix("mla_lab: "))
    if done.returncode not in (0, 1):
        raise RankLost(said[0].removeprefix("mla_lab: ") or f"the run ended with exit code {done.returncode}")
    return json.loads(done.stdout)


# --- what is said -----------------------------------------------------------------------------------------------------

def equal(reports: Sequence[dict], bound: float = CLOSE) -> bool:
    """Whether every rank's outputs are those of one process."""
    return all(part["distance"] <= bound for found in reports for part in found.values()
               if isinstance(part, dict) and "distance" in part)


def show(found: dict, args: argparse.Namespace) -> int:
    """Print a line for each plan; the exit code is 0 or 1."""
    reports = found["ranks"]
    bound = {"float64": CLOSE, "float32": 1e-4, "bfloat16": 1e-1}[args.dtype]
    with json_target(args.json) as target:
        out = sys.stderr if target is sys.stdout else sys.stdout
        whole = reports[0]["one process"]
        if found["lost"]:
            print(f"with a rank killed: {found['lost']}", file=out)
        print(f"one process: cache {whole['cache_bytes']:,} B, weights {whole['weight_bytes']:,} B", file=out)
        for plan in args.plan:
            ranks = [report[plan] for report in reports]
            calls = ", ".join(f"{c['calls']} {name.replace('_', '-')} of {c['payload']:,} B"
                              for name, c in ranks[0]["collectives"].items() if c["calls"])
            verdict = "equal to one process" if max(r["distance"] for r in ranks) <= bound else "NOT equal"
            print(f"{plan} on {len(ranks)} ranks: {verdict}; each: cache {ranks[0]['cache_bytes']:,} B, weights "
                  f"{ranks[0]['weight_bytes']:,} B, {calls} in all, {ranks[0]['sent']:,} B sent on a ring", file=out)
        if target:
            json.dump(found, target, indent=1)
            target.write("\n")
    return 0 if equal(reports, bound) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """0: equal; 1: not equal; 2: bad input; 3: a rank was lost; 130: interrupted."""
    try:
        args = options().parse_args(argv)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            return under_torchrun(args)
        if args.with_parent:
            from .ranks import stop_with
            stop_with(os.getppid())
        return show(all_runs(checked(args)), args)
    except InputError as error:
        print(f"mla_lab: {error}", file=sys.stderr)
        return 2
    except RankLost as error:
        print(f"mla_lab: {error}.", file=sys.stderr)
        return LOST
    except KeyboardInterrupt:
        print("mla_lab: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
