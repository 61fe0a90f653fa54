"""The normal form of a stored notebook: what is left when all that changes from run to run is gone."""
from __future__ import annotations

import copy
import re
from collections import Counter

import nbformat
from nbformat import NotebookNode

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


def dumps(notebook: NotebookNode) -> str:
    """Text of a notebook file, as Jupyter itself would lay it out."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"
