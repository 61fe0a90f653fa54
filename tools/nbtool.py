#!/usr/bin/env python3
"""Run and normalise notebooks so that two runs give the same bytes.

::

    nbtool.py run   NB.ipynb ...   execute in place, then normalise
    nbtool.py norm  NB.ipynb ...   normalise only (nothing is executed)
    nbtool.py check NB.ipynb ...   fail unless every rule of hygiene.py holds
    nbtool.py fresh NB.ipynb ...   fail unless a new run gives the stored bytes

The notebook with its stored outputs is the only source, and those outputs are what ``pytest --nbval`` compares a new
run with. So they are kept; what differs from run to run without meaning anything is removed: timings, widget views and
state (JupyterLab shows them only in a trusted notebook), tracebacks, random cell ids, kernel names. What a cell itself
printed is never rewritten: nbval would compare the new text with the rewritten one, so hygiene.py refuses it instead.

Set ``MLA_LAB_BACKEND`` for the kernel from outside; this tool passes its environment on.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import os
import sys
import time
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from normal_form import COLOUR, KERNELSPEC, dumps, normalise
from tqdm import tqdm


def execute(notebook: NotebookNode, folder: Path, timeout: int = 60) -> NotebookNode:
    """Run a notebook in a new kernel of this very interpreter.

    Parameters
    ----------
    notebook : NotebookNode
        The notebook; it is not changed.
    folder : Path
        Working directory of the kernel: relative paths in the notebook start here.
    timeout : int
        Seconds that one cell may take.

    Returns
    -------
    NotebookNode
        The notebook with new outputs. A cell tagged ``raises-exception`` may raise.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell without that tag raises.
    """
    from nbclient import NotebookClient  # here, because `norm` and `check` start faster without it

    nb = copy.deepcopy(notebook)
    client = NotebookClient(
        nb,
        timeout=timeout,
        record_timing=False,
        kernel_name=KERNELSPEC["name"],
        extra_arguments=["--log-level=ERROR"],  # no note at each start about the transport on this machine
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return nb


def write(path: Path, text: str) -> None:
    """Write a file so that it is either the old one or the new one, whatever interrupts."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _process(mode: str, path: Path, timeout: int) -> tuple[bool, str]:
    """Do one thing to one notebook: was it all right, and what is there to say?"""
    text = path.read_bytes().decode("utf-8")
    if mode == "check":
        import hygiene

        found = hygiene.problems_of(path)
        return not found, "\n".join(f"{path}: {problem}" for problem in found)
    nb = nbformat.reads(text, as_version=4)
    start = time.monotonic()
    if mode != "norm":
        nb = execute(nb, path.parent, timeout)
    new = dumps(normalise(nb))
    took = "" if mode == "norm" else f", {time.monotonic() - start:.1f} s"
    if mode == "fresh":
        lines = difflib.unified_diff(text.splitlines(), new.splitlines(), str(path), "a new run", n=1, lineterm="")
        return new == text, "\n".join(line[:160] for line in list(lines)[:40])  # a picture is one long line
    if new != text:
        write(path, new)
    return True, f"{path}: {'changed' if new != text else 'unchanged'}{took}"


def main(argv: list[str] | None = None) -> int:
    """Command line; the exit status is 1 when any notebook is at fault, and all are looked at in any case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["run", "norm", "check", "fresh"])
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NB.ipynb")
    parser.add_argument("--timeout", type=int, default=60, help="seconds that one cell may take (%(default)s)")
    args = parser.parse_args(argv)
    failed = 0
    bar = tqdm(args.notebooks, desc=args.mode, unit="notebook", disable=None)  # None: only on a terminal
    for path in bar:
        try:
            good, said = _process(args.mode, path, args.timeout)
        except Exception as error:  # a cell that raises, a kernel that dies, a file that is no notebook
            good, said = False, f"{path}: {type(error).__name__}: {COLOUR.sub('', str(error)).strip()}"
        failed += not good
        if said:
            tqdm.write(said)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
