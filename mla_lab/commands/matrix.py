"""``matrix``: every check under every fault, what each check sees, and what it cannot see."""
from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import TYPE_CHECKING

from ..report import json_target, print_table
from .options import one_thread

if TYPE_CHECKING:
    from ..matrix import Matrix


def add(commands: argparse._SubParsersAction) -> None:
    matrix = commands.add_parser("matrix", help="run all checks under all faults: who sees what", allow_abbrev=False)
    matrix.add_argument("--json", metavar="FILE", help="also write the matrix as JSON; - is standard output")
    matrix.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    one_thread()
    from tqdm import tqdm

    from ..checks import CHECKS
    from ..checks.blind import BLIND
    from ..matrix import MARKS, compute, summary
    with json_target(args.json) as target:
        with tqdm(total=len(CHECKS) + 1, unit="check", leave=False, disable=None, file=sys.stderr) as bar:
            matrix = compute(done=bar.update)
        if target:
            json.dump(matrix.as_json(), target, indent=1, ensure_ascii=False)
            target.write("\n")
    line, ok = summary(matrix)
    if args.json != "-":
        show(matrix, MARKS, BLIND)
    print(line, file=sys.stderr if args.json == "-" else sys.stdout)
    return 0 if ok else 1


def show(matrix: Matrix, marks: dict[str, str], blind: dict[str, str]) -> None:
    """How much each check sees, what it cannot see, and who catches each fault."""
    print(*(f"{mark}  {meaning}" for mark, meaning in marks.items()), sep="\n", end="\n\n")
    print_table(["check", *marks], [[check, *(str(matrix.column(check).count(mark)) for mark in marks)]
                                    for check in matrix.checks], 1)
    catchers = {name: ", ".join(matrix.caught_by(name)) for name in matrix.rows}
    for title, lines in (("What each check cannot see", blind), ("What catches each fault", catchers)):
        print(f"\n{title}")
        for name, text in lines.items():
            print(textwrap.fill(f"{name}: {text}", 118, subsequent_indent="    ", break_long_words=False))
    print()
