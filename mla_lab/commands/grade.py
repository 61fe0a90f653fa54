"""``grade``: which exercises of the notebooks are solved, and the hint for those that are not."""
from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
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
        print(f"{solved} of {total} exercises solved; {looked_at(args.notebooks, results)}", file=out)
        if target:
            json.dump({name: [asdict(r) | {"solved": r.solved} for r in found] for name, found in results.items()},
                      target, indent=1)
            print(file=target)
    return 0


def looked_at(named: list[str], results: dict[str, list]) -> str:
    """The files that were read, those without exercises by name."""
    without = ", ".join(name for name, found in results.items() if not found)
    where = "" if named else ": ./notebooks/*.ipynb, copies included"
    return f"{len(results)} file{'s' * (len(results) > 1)} read{where}" + (f"; none in {without}" if without else "")


def lines(name: str, found: list) -> list[str]:
    """A notebook's line, and one or two for each of its exercises: what is asked, and what is said of the answer."""
    from ..exercises.registry import OPEN, RIGHT
    if not found:
        return [f"{name}: no exercises; no cell calls a checker with a variable, as in exercises.check_cache(answer)"]
    solved = sum(r.solved for r in found)
    bar = "#" * solved + "-" * (len(found) - solved)
    out = [f"{name}  {bar}  {solved} of {len(found)} solved"]
    for r in found:
        task, short = textwrap.shorten(r.task, 72, placeholder=" ..."), r.said in (OPEN, RIGHT)
        out.append(f"  [{'x' if r.solved else ' '}] {r.notebook} {r.level:<12} {task}" + f"  ({r.said})" * short)
        out += [] if short else [f"{'':<22}{r.said}"]
    return out
