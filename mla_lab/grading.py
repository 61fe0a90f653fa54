"""Which exercises of a notebook are solved: find the learner's answers, compute them in a kernel, ask the checkers.

An answer may use whatever stands above it, so the cells run as they stand, in a copy, up to the last answer. Notebooks
in which nothing is answered start no kernel. Nothing is ever written to the notebook.
"""
from __future__ import annotations

import ast
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .exercises.registry import EXERCISES, OPEN, RIGHT, all_exercises

CALL = re.compile(r"^[^#\n]*(?<!\bdef )\b(check_\w+)\(\s*([^\W\d]\w*)\s*\)", re.MULTILINE)
GONE = "no cell calls its checker with a variable"
QUIET = logging.getLogger("mla_lab.grading")  # a kernel that dies is a result here, and is said once
QUIET.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Stub:
    """Where an exercise is answered: ``CHECKER(VARIABLE)`` in a cell, wherever the checker was imported from."""

    cell: int
    checker: str
    variable: str
    answered: bool


@dataclass(frozen=True)
class Result:
    """What the checker says of one answer."""

    exercise: str
    notebook: str
    level: str
    task: str
    said: str

    @property
    def solved(self) -> bool:
        return self.said == RIGHT


def read(path: Path) -> Any:
    """A notebook of format 4, or one sentence on what is wrong with the file."""
    import nbformat
    try:
        nb = nbformat.reads(path.read_bytes().decode("utf-8-sig"), as_version=4)
        if not all(isinstance(cell.source, str) for cell in nb.cells):
            raise TypeError
        return nb
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    except Exception as error:  # no JSON, no UTF-8, another format, a cell without text
        raise InputError(f"{path} is not a notebook ({type(error).__name__}); give .ipynb files.") from None


def stubs(nb: Any) -> Iterator[Stub]:
    """Every call of a registered checker with a variable; one with a literal only shows a hint."""
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            for checker, variable in CALL.findall(cell.source):
                if checker in EXERCISES and variable not in ("None", "True", "False"):
                    yield Stub(index, checker, variable, answered(cell.source, variable))


def answered(source: str, variable: str) -> bool:
    """Whether the last thing that ``variable`` is given in this cell is more than None, ``...``, or a body to do."""
    given = [*re.finditer(rf"^(?:{variable}\b[^\n=]*=(?!=)|def {variable}\b)", source, re.MULTILINE)]
    if not given:
        return True  # it is given elsewhere
    last = source[given[-1].start() :]
    empty = rf"{variable}[ \t]*=[ \t]*(?:None|\.\.\.)[ \t]*(?:#.*)?$"
    to_do = rf"def {variable}\b(?:.*\n(?=[ \t\n]))+[ \t]+return None[ \t]*# replace"
    return not re.match(f"{empty}|{to_do}", last, re.MULTILINE)


def judge(nb: Any, answers: list[Stub], folder: Path, timeout: int) -> dict[str, str]:
    """Run the code cells of ``nb`` (a copy: outputs are written to it) up to the last answer, and ask each checker."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from nbformat.v4 import new_code_cell

    said, at = {}, {}
    for stub in answers:
        at.setdefault(stub.cell, []).append(stub)
    client = NotebookClient(nb, timeout=timeout, interrupt_on_timeout=True, allow_errors=True, kernel_name="python3",
                            extra_arguments=["--log-level=ERROR"], resources={"metadata": {"path": str(folder)}},
                            log=QUIET)

    def stopped(index: int, cell: Any) -> str:
        """Run a cell; the first line of what it raised, if anything."""
        client.execute_cell(cell, index)
        raised = [f"{out.ename}: {out.evalue}" for out in cell.outputs if out.output_type == "error"]
        return raised[0].splitlines()[0][:160] if raised else ""

    package = Path(__file__).parent.parent  # the kernel is to load this very package, installed or not
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    try:
        with client.setup_kernel(env={**os.environ, "PYTHONPATH": path}):
            for index in range(max(at) + 1):
                cell = nb.cells[index]
                if cell.cell_type != "code" or not cell.source.strip():
                    continue
                error = stopped(index, cell)
                for stub in at.get(index, ()):
                    probe = new_code_cell(f"__import__('mla_lab.exercises').exercises.{stub.checker}({stub.variable})")
                    if error.startswith("KeyboardInterrupt"):
                        said[stub.checker] = f"its cell did not end within {timeout} s"
                    elif error or stopped(index, probe):
                        said[stub.checker] = f"its cell stops with {error or 'an error'}"
                    else:
                        said[stub.checker] = ast.literal_eval(probe.outputs[-1]["data"]["text/plain"])
    except (CellTimeoutError, DeadKernelError, RuntimeError) as error:
        why = "the kernel died" if isinstance(error, DeadKernelError) else f"the run ended ({type(error).__name__})"
        said = {stub.checker: why for stub in answers} | said
    return said


def grade(path: Path, timeout: int = 60) -> list[Result]:
    """What the checkers say of every exercise of the notebook at ``path``, in its order.

    Parameters
    ----------
    path : Path
        Whatever it is called, the exercises of a lesson belong to it if one of its cells calls a checker of that
        lesson, or if its name begins with the lesson's number. The file is only read.
    timeout : int
        Seconds that one cell may take.

    Raises
    ------
    InputError
        If the file cannot be read as a notebook.
    """
    nb, every = read(path), all_exercises()
    found = list(stubs(nb))
    called = {EXERCISES[stub.checker].notebook for stub in found}
    wanted = [e for e in every if e.notebook in called or path.name.startswith(e.notebook)]
    answers = [stub for stub in found if stub.answered]
    said = {stub.checker: OPEN for stub in found} | (judge(nb, answers, path.parent, timeout) if answers else {})
    return [Result(e.name, e.notebook, e.level, e.task, said.get(e.name, GONE)) for e in wanted]
