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
import re
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from tqdm import tqdm

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("tags", "jupyter")  # execution timing, collapsed, scrolled and the like go
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a traceback made for a terminal
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def _slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")[:48].rstrip("-")


def _cell_ids(cells: list[NotebookNode]) -> list[str]:
    """Name each cell by its section and its place in it: ``the-check-2``.

    An id that says where the cell is makes a diff readable, and a cell put in changes only the ids of its section.
    """
    section, seen, ids = "top", Counter(), []
    for cell in cells:
        heading = re.match(r"#{1,2} +(.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            section = _slug(heading[1]) or "section"
        seen[section] += 1
        ids.append(f"{section}-{seen[section]}")
    return ids


def _normal_outputs(outputs: list[NotebookNode], count: int) -> list[NotebookNode]:
    merged: list[NotebookNode] = []
    for out in outputs:
        # a kernel flushes one printed text in one or several pieces, as it comes
        if merged and out.output_type == merged[-1].output_type == "stream" and out.name == merged[-1].name:
            merged[-1].text += out.text
        else:
            merged.append(out)
    for out in merged:
        if "execution_count" in out:
            out.execution_count = count
        if out.output_type == "error":
            # Frames hold line numbers of libraries and colours of a terminal, and nbval does not compare them.
            # One line stays, for it is all that a reader on a web page sees of the error.
            out.traceback = [f"{out.ename}: {out.evalue}"]
        elif "data" in out:
            out.data.pop(WIDGET_VIEW, None)
    return merged


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Remove from a notebook what changes from run to run or from machine to machine.

    Parameters
    ----------
    notebook : NotebookNode
        A notebook of format 4; it is not changed.

    Returns
    -------
    NotebookNode
        The normal form: normalising it again changes nothing. Outputs, execution order and tags are kept; a cell
        that was never run is left as never run, so that `check` still sees it.
    """
    nb = copy.deepcopy(notebook)
    nb.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    nb.nbformat, nb.nbformat_minor = 4, 5
    count = 0
    for cell, cell_id in zip(nb.cells, _cell_ids(nb.cells), strict=True):
        cell.id = cell_id
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA})
        cell.source = cell.source.rstrip("\n")
        if cell.cell_type != "code":
            continue
        if not cell.source.strip():  # the kernel never counts an empty cell
            cell.execution_count, cell.outputs = None, []
            continue
        count += 1
        if cell.execution_count is not None or cell.outputs:
            cell.execution_count = count
        cell.outputs = _normal_outputs(cell.outputs, count)
    return nb


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


def dumps(notebook: NotebookNode) -> str:
    """Text of a notebook file, as Jupyter itself would lay it out."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"


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
