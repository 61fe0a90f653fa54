"""`grade` says what the checkers say of a learner's notebook, and leaves the notebook as it is."""
import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mla_lab import InputError, exercises, grading
from mla_lab import __main__ as cli
from mla_lab.commands import grade as command

OPEN = "not answered yet"


@pytest.fixture
def written(tmp_path):
    """Write cells as a notebook of case 01 in a folder of its own."""
    def write(*sources, name="01_learner.ipynb"):
        path = tmp_path / name
        nb = new_notebook(cells=[new_markdown_cell("exercises.check_cache(text)"), *map(new_code_cell, sources)])
        nbformat.write(nb, path)
        return path
    return write


def said(path, **how):
    return {r.exercise: r.said for r in grading.grade(path, **how)}


def test_right_wrong_open_gone_and_broken_answers(written):
    path = written("from mla_lab import exercises\nlayers = 62\n1 / 0",
                   "answer = layers * 288 * 2  # uses what stands above\nprint(exercises.check_cache(answer))",
                   "smallest = 'MLA'\n# print is gone; so exercises.check_saving(nothing) is a remark\n"
                   "exercises.check_smallest(smallest)",
                   "my_fit = None  # a function\nprint(exercises.check_fit(my_fit))",
                   "my_each = undefined\nprint(exercises.check_each_gpu(my_each))",
                   "raise SystemExit  # behind the last answer")
    hint = exercises.check_smallest.wrong["MLA"]
    before = path.read_bytes(), path.stat().st_mtime_ns
    found = said(path)
    assert found == {
        "check_smallest": f"not yet: {hint}", "check_cache": "right", "check_saving": grading.GONE, "check_fit": OPEN,
        "check_each_gpu": "its cell stops with NameError: name 'undefined' is not defined"}
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("cell, told", [
    ("exercises.check_cache(answer)", OPEN), ("import mla_lab.exercises as ex\nex.check_cache(answer)", OPEN),
    ("from mla_lab.exercises import check_cache\nprint(check_cache(answer))", OPEN),
    ("answer = None\nprint(exercises.check_cache(answer = 3))", grading.GONE),
    ("exercises.check_cache(288 * 2)", grading.GONE), ("def check_cache(answer):\n    return 'right'", grading.GONE),
    ("x = 1  # exercises.check_cache(answer)", grading.GONE)])
def test_where_an_answer_is_found(written, cell, told):
    assert said(written(f"answer = None\n{cell}"))["check_cache"] == told


@pytest.mark.parametrize("name", ["my01.ipynb", "copy of 02_svd.ipynb", "Untitled.ipynb"])
def test_exercises_are_found_by_what_cells_call(written, name):
    """A copy keeps its exercises whatever it is called."""
    found = said(written("answer = None\nprint(exercises.check_cache(answer))", name=name))
    assert found["check_cache"] == OPEN and found["check_saving"] == grading.GONE and len(found) == 5
    assert said(written("print(exercises.check_cache(3))  # a hint", name=name)) == {}


def test_exercises_of_two_lessons_in_one_file(written):
    cells = (f"{name} = None\nprint(exercises.check_{name}({name}))" for name in ("cache", "rank"))
    found = said(written(*cells, name="x.ipynb"))
    assert found["check_cache"] == found["check_rank"] == OPEN and len(found) == 10


def test_a_byte_order_mark_is_no_matter(written):
    path = written("answer = None\nexercises.check_cache(answer)")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert said(path)["check_cache"] == OPEN


def test_a_hint_with_the_word_right_in_it_solves_nothing():
    hint = exercises.check_owned.wrong
    assert any("right" in text for text in hint.values())
    assert not grading.Result("x", "01", "recall", "?", "not yet: right for the first input").solved
    assert grading.Result("x", "01", "recall", "?", "right").solved


def test_an_endless_answer_and_a_dying_kernel_are_told(written, caplog):
    endless = "from mla_lab import exercises\ndef my_fit(*a):\n    while True: pass\nprint(exercises.check_fit(my_fit))"
    dying = "answer = 1\nimport os; os._exit(1)\nprint(exercises.check_cache(answer))"
    found = said(written(endless, "my_each = 3\nexercises.check_each_gpu(my_each)", dying), timeout=2)
    assert found["check_fit"] == "its cell did not end within 2 s"
    assert found["check_each_gpu"].startswith("a function of (tokens, layers, tp)")
    assert found["check_cache"] == "the kernel died" and not caplog.records


def test_no_kernel_is_started_where_nothing_is_answered(written, monkeypatch):
    monkeypatch.setattr(grading, "judge", lambda *_: pytest.fail("a kernel"))
    path = written("answer = None\nprint(exercises.check_cache(answer))", "print(exercises.check_cache(288 * 2))")
    assert said(path)["check_cache"] == OPEN


@pytest.mark.parametrize("source, answered", [
    ("x = None", False), ("x = ...  # later", False), ("x=None", False), ("x = 3", True), ("x = None\nx = 3", True),
    ("def x(a):\n    return a", True), ("x = None\ndef x(a): return a", True), ("x: int = 4", True), ("", True),
    ("def x(a):\n    'Doc.'\n\n    return None  # replace this line", False),
    ("def x(a):\n    return 3\n\n\ndef y(a):\n    return None  # replace this line", True),
    ("def x(a):\n    return a\n\n\nx = None  # delete this", False), ("x = 3\nprint(x)\nx = None", False),
    ("x = None  # def x(a): ...\nprint(x == 3)", False), ("x, y = 1, 2", True), ("x = None if y else 3", True),
])
def test_what_counts_as_an_answer(source, answered):
    assert grading.answered(source, "x") is answered


def test_the_command(written, tmp_path, capsys, monkeypatch):
    path = written("from mla_lab import exercises\nanswer = 35_712\nprint(exercises.check_cache(answer))")
    written("print(1)", name="14_none.ipynb")
    report = tmp_path / "r.json"
    run = graded
    assert run(str(path), "--json", str(report)) == 0
    out = capsys.readouterr().out
    assert "01_learner.ipynb  #----  1 of 5 solved" in out and "1 of 5 exercises solved; 1 file read\n" in out
    assert re.search(r"^  \[x\] 01 compute      Bytes a token of MiniCPM3-4B's cache: .*\.\.\.  \(right\)$", out, re.M)
    assert "\n  [ ] 01 recall       Which of MHA, GQA-8, MQA and MLA caches the fewest values at ...\n" in out
    assert f"\n                      {grading.GONE}\n" in out and "check_" not in out
    assert {r["exercise"]: r["solved"] for r in json.loads(report.read_text())[path.name]}["check_cache"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no notebook in \./notebooks"):
        run()
    (tmp_path / "notebooks").mkdir()
    path.rename(tmp_path / "notebooks" / path.name)
    (tmp_path / "14_none.ipynb").rename(tmp_path / "notebooks" / "14_none.ipynb")
    assert run() == 0
    out = capsys.readouterr().out
    assert "14_none.ipynb: " not in out
    last = "1 of 5 exercises solved; 2 files read: ./notebooks/*.ipynb, copies included; none in 14_none.ipynb\n"
    assert out.endswith(last)
    assert run("notebooks/14_none.ipynb") == 0
    assert "14_none.ipynb: no exercises; no cell calls a checker" in capsys.readouterr().out


def graded(*args):
    top = cli.Parser()
    command.add(top.add_subparsers())
    parsed = top.parse_args(["grade", *args])
    return parsed.run(parsed)


CELL = ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code", "id": "a", '
        '"metadata": {}, "outputs": [], "execution_count": null%s}]}')


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"nbformat": 4, "cells": 3}', "\xff", CELL % "",
                                  CELL % ', "source": 5'])
def test_what_is_no_notebook_is_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "01.ipynb"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is not a notebook") as error:
        grading.grade(path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="cannot read"):
        grading.grade(tmp_path / "01_none.ipynb")
