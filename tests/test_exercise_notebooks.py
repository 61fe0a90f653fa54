"""Every exercise stands in its notebook, open, with a folded solution that its checker takes."""
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from mla_lab import grading
from mla_lab.exercises import all_exercises
from mla_lab.exercises.registry import EXERCISES, RIGHT

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
ALL = all_exercises()
PATHS = {one.notebook: next(NOTEBOOKS.glob(f"{one.notebook}_*.ipynb"), None) for one in ALL}
FOLDED = re.compile(r"<details><summary>Solution</summary>\n\n(.*?)</details>", re.DOTALL)


def read(notebook):
    if PATHS[notebook] is None:
        pytest.skip(f"notebook {notebook} is still to come")
    return nbformat.read(PATHS[notebook], as_version=4)


def solution(nb, stub):
    """The first folded solution below a stub, as code."""
    for cell in nb.cells[stub.cell + 1 :]:
        if cell.cell_type == "markdown" and (found := FOLDED.search(cell.source)):
            return "\n".join(re.findall(r"```python\n(.*?)```", found[1], re.DOTALL))
    return ""


def problems(nb, wanted):
    """What is wrong with the exercises of a notebook."""
    stubs = [stub for stub in grading.stubs(nb) if stub.checker in {one.name for one in wanted}]
    variables = [stub.variable for stub in stubs]
    yield from (f"{one.name} is not in it once" for one in wanted if [s.checker for s in stubs].count(one.name) != 1)
    yield from (f"{name} stands for two answers" for name in set(variables) if variables.count(name) > 1)
    for stub in stubs:
        if stub.answered:
            yield f"{stub.checker} is answered"
        seen = {"np": np}
        exec(solution(nb, stub), seen)
        said = EXERCISES[stub.checker](seen.get(stub.variable))
        if said != RIGHT:
            yield f"the solution of {stub.checker}: {said}"


@pytest.mark.parametrize("notebook", sorted(PATHS))
def test_each_exercise_is_there_open_and_solved_below(notebook):
    assert list(problems(read(notebook), [one for one in ALL if one.notebook == notebook])) == []


@pytest.mark.parametrize("notebook", sorted(PATHS))
def test_no_checker_is_unregistered(notebook):
    used = set(re.findall(r"exercises\w*\.(check_\w+)", "\n".join(cell.source for cell in read(notebook).cells)))
    assert used <= {one.name for one in ALL if one.notebook == notebook}


def test_what_is_wrong_is_seen():
    nb, wanted = read("01"), [one for one in ALL if one.notebook == "01"]
    stubs = {stub.checker: stub for stub in grading.stubs(nb)}
    below = next(c for c in nb.cells[stubs["check_cache"].cell + 1 :] if FOLDED.search(c.source))
    below.source = below.source.replace("256 + 32", "256 + 33")
    nb.cells[stubs["check_saving"].cell].source += "\nsaving = 1"
    nb.cells[stubs["check_fit"].cell].source = ""
    assert sorted(problems(nb, wanted)) == ["check_fit is not in it once", "check_saving is answered",
                                            "the solution of check_cache: not yet: look again"]
