"""``grade``: which exercises of the notebooks are solved, and the hint for those that are not."""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import InputError
from ..report import json_target
from .options import one_thread, whole


def add(commands: argparse._SubParsersAction) -> None:
    grade = commands.add_parser("grade", help="which exercises of the notebooks are solved", allow_abbrev=False)
    grade.add_argument("notebooks", nargs="*", metavar="NB.ipynb", help="default: notebooks/*.ipynb")
    grade.add_argument("--timeout", type=whole, default=60, metavar="S", help="seconds that a cell may take (60)")
    grade.add_argument("--json", metavar="FILE", help="also write the results as JSON; - is standard output")
    grade.set_defaults(run=run)


def chosen(names: list[str]) -> list[Path]:
    """The notebooks that were named, or those of ./notebooks."""
    paths = [Path(name) for name in names] or sorted(Path("notebooks").glob("*.ipynb"))
    if not paths:
        raise InputError("there is no notebook in ./notebooks; run this from the repository's root or name the files.")
    return paths


def run(args: argparse.Namespace) -> int:
    one_thread()
    try:
        import nbclient  # noqa: F401
        import nbformat  # noqa: F401
        from tqdm import tqdm
    except ImportError as error:
        raise InputError(f"grade needs {error.name}, which is not installed; `make grade` installs it.") from None
    from ..grading import grade

    paths, results = chosen(args.notebooks), {}
    with json_target(args.json) as target:
        out = sys.stderr if target is sys.stdout else sys.stdout
        bar = tqdm(paths, unit="notebook", leave=False, disable=None, file=sys.stderr)
        for path in bar:
            bar.set_postfix_str(path.name)
            found = results[path.name] = grade(path, args.timeout)
            if found or args.notebooks:
                with bar.external_write_mode(file=out):
                    print(*lines(path.name, found), sep="\n", file=out)
        solved, total = (sum(len([r for r in found if r.solved or every]) for found in results.values())
                         for every in (False, True))
        print(f"{solved} of {total} exercises solved", file=out)
        if target:
            json.dump({name: [{"exercise": r.exercise, "level": r.level, "solved": r.solved, "said": r.said}
                              for r in found] for name, found in results.items()}, target, indent=1)
            print(file=target)
    return 0


def lines(name: str, found: list) -> list[str]:
    """A notebook's line, and one for each of its exercises."""
    if not found:
        return [f"{name}: no exercises"]
    solved = sum(r.solved for r in found)
    bar = "#" * solved + "-" * (len(found) - solved)
    return [f"{name}  {bar}  {solved} of {len(found)} solved",
            *(f"  [{'x' if r.solved else ' '}] {r.level:<13} {r.exercise:<22} {r.said}" for r in found)]
