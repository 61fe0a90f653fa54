"""The harness is tested too: a broken copy of a notebook must turn nbval red, or be refused by the hygiene rules.

One small lesson is executed with a real kernel. Copies of it, each with one thing broken, go through one real
``pytest --nbval`` process, with the flags that ``make test`` uses. Then every hygiene rule is shown to fire.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import hygiene
import nbformat
import nbtool
import normal_form
import pytest
from nbformat import NotebookNode
from sample_notebook import PNG, sample_lesson

ROOT = Path(__file__).parent.parent
REAL = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))[:1]
MAKEFILE = dict(re.findall(r"^(\w+) \??= ?(.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
NBVAL = shlex.split(MAKEFILE["NBVAL"])
PARALLEL = shlex.split(MAKEFILE["PARALLEL"].replace("$(WORKERS)", MAKEFILE["WORKERS"]))


def cell_with(nb: NotebookNode, source: str) -> NotebookNode:
    """The one code cell whose source holds this text."""
    (cell,) = [cell for cell in nb.cells if cell.cell_type == "code" and source in cell.source]
    return cell


def number_of(nb: NotebookNode, cell: NotebookNode) -> int:
    """How nbval counts it: code cells from 0."""
    return [c.id for c in nb.cells if c.cell_type == "code"].index(cell.id)


def replace_source(nb: NotebookNode, old: str, new: str) -> NotebookNode:
    cell = cell_with(nb, old)
    cell.source = cell.source.replace(old, new)
    return cell


# --- what is broken; each returns the cell that nbval must turn red -----------------------------------------------


def digit_flipped(nb):
    cell = cell_with(nb, "six times")
    cell.outputs[0].text = cell.outputs[0].text.replace("42", "43")
    return cell


def result_flipped(nb):
    cell = cell_with(nb, "6 * 7}")
    cell = nb.cells[nb.cells.index(cell) + 1]
    assert cell.outputs[0].data["text/plain"] == "42"
    cell.outputs[0].data["text/plain"] = "41"
    return cell


def exception_removed(nb):
    return replace_source(nb, "raise AssertionError", "str")


def exception_message_changed(nb):
    return replace_source(nb, "saw 41", "saw 40")


def exception_without_tag(nb):
    cell = cell_with(nb, "raise ")
    cell.metadata = NotebookNode()
    return cell


def stderr_printed(nb):
    return replace_source(nb, "assert 6 * 7 == 42", "import warnings; warnings.warn('new in this release')")


def slider_default_changed(nb):
    return replace_source(nb, "value=3", "value=4")


def callback_cut(nb):
    replace_source(nb, 'slider.observe(show, "value")', "pass")
    return cell_with(nb, "slider.value = 7")


def outputs_stripped(nb):
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def counts_stripped_of_silent_cells(nb):
    cell_with(nb, "assert 6 * 7").execution_count = None


def opted_out(nb):
    digit_flipped(nb).metadata["tags"] = ["nbval-ignore-output"]


# Starting a kernel is what costs time, so faults in different cells share a copy: nbval reports cell by cell.
RED = {
    "red_many": [
        digit_flipped,
        result_flipped,
        exception_removed,
        stderr_printed,
        slider_default_changed,
        callback_cut,
    ],
    "red_message": [exception_message_changed],
    "red_tag": [exception_without_tag],
}
# nbval passes these
HOLES = {"hole_all": [outputs_stripped], "hole_some": [counts_stripped_of_silent_cells, opted_out]}


@pytest.fixture(scope="module")
def lesson(tmp_path_factory) -> Path:
    """The sample lesson as ``nbtool.py run`` leaves it."""
    path = tmp_path_factory.mktemp("lesson") / "01_sample.ipynb"
    nbformat.write(sample_lesson(), path)
    assert nbtool.main(["run", str(path)]) == 0
    return path


@pytest.fixture
def nb(lesson) -> NotebookNode:
    """A copy of the lesson to break."""
    return nbformat.read(lesson, as_version=4)


def run_nbval(folder: Path) -> tuple[int, dict[str, dict[int, str]], str]:
    """Exit status, outcome of each cell of each notebook in the folder, and what pytest printed."""
    quiet = ["-rA", "-q", "--color=no", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", *PARALLEL, *NBVAL, *quiet, "."]
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", ".", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    ran = subprocess.run(
        [*command, *config], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    outcomes: dict[str, dict[int, str]] = {}
    for outcome, name, cell in re.findall(r"^([A-Z]+) (?:\S*/)?(\w+)\.ipynb::Cell (\d+)", ran.stdout, re.MULTILINE):
        outcomes.setdefault(name, {})[int(cell)] = outcome
    return ran.returncode, outcomes, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def batch(lesson, tmp_path_factory):
    """One nbval process over the good lesson, the broken copies and a real notebook with one digit flipped.

    Gives the cells that must be red in each notebook, the exit status, the outcomes and what pytest printed.
    """
    folder = tmp_path_factory.mktemp("batch")
    copies, must_fail = {"good": nbformat.read(lesson, as_version=4)}, {"good": []}
    for name, breaks in {**RED, **HOLES}.items():
        copies[name] = copy.deepcopy(copies["good"])
        cells = [how(copies[name]) for how in breaks]
        must_fail[name] = sorted(number_of(copies[name], cell) for cell in cells) if name in RED else []
    for path in REAL:
        copies["real"] = nbformat.read(path, as_version=4)
        must_fail["real"] = [flip_first_digit(copies["real"])]
    for name, nb in copies.items():
        nbformat.write(nb, folder / f"{name}.ipynb")
    return must_fail, *run_nbval(folder)


def flip_first_digit(nb: NotebookNode) -> int:
    """Change one digit of the first stored text that has any, and leave out what follows; the number of its cell."""
    for _, cell in hygiene.code_cells(nb):
        for out in cell.outputs:
            where, key = (out, "text") if out.output_type == "stream" else (out.get("data", {}), "text/plain")
            digit = re.search(r"\d", where.get(key, ""))
            if digit and not hygiene.FIGURE_REPR.search(where[key]):
                at = digit.start()
                where[key] = where[key][:at] + str((int(digit[0]) + 1) % 10) + where[key][at + 1 :]
                nb.cells = nb.cells[: nb.cells.index(cell) + 1]  # the rest costs time and proves nothing more
                return number_of(nb, cell)
    raise AssertionError("no stored text with a digit")


def test_the_good_lesson_is_green_and_clean(lesson, batch):
    _, status, outcomes, text = batch
    cells = len(hygiene.code_cells(nbformat.read(lesson, as_version=4)))
    assert outcomes["good"] == dict.fromkeys(range(cells), "PASSED"), text
    assert hygiene.problems_of(lesson) == []
    assert status == pytest.ExitCode.TESTS_FAILED  # for the copies beside it


@pytest.mark.parametrize("name", [*RED, "real"])
def test_nbval_turns_red(batch, name):
    """Red in the broken cells and in no other: a notebook that fails for another reason would prove nothing."""
    must_fail, _, outcomes, text = batch
    if name not in must_fail:
        pytest.skip("notebooks/ holds no numbered notebook yet")
    failed = [cell for cell, outcome in sorted(outcomes[name].items()) if outcome == "FAILED"]
    assert failed == must_fail[name], text


@pytest.mark.parametrize("name", HOLES)
def test_hygiene_closes_what_nbval_lets_pass(batch, nb, tmp_path, name, capsys):
    _, _, outcomes, text = batch
    assert set(outcomes[name].values()) == {"PASSED"}, f"nbval has become stricter, good: {text}"
    for how in HOLES[name]:
        broken = copy.deepcopy(nb)
        how(broken)
        path = tmp_path / "01_broken.ipynb"
        nbformat.write(broken, path)
        assert nbtool.main(["check", str(path)]) == 1
        assert re.search("was never run|opts out", capsys.readouterr().out)


def test_nbval_is_not_green_without_cells(tmp_path):
    """An empty folder must not pass for a suite."""
    config = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    assert pytest.main([*NBVAL, *config, str(tmp_path)]) == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_cell_that_hangs_is_red_and_so_is_what_follows(tmp_path, capsys):
    """After a time-out nbval expects the other cells to fail; strict xfail keeps those that pass from being green."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in ("import time; time.sleep(60)", "pass")])
    nbformat.write(nb, tmp_path / "hangs.ipynb")
    config = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "--color=no"]
    assert pytest.main([*NBVAL, *config, "--nbval-cell-timeout", "1", str(tmp_path)]) == pytest.ExitCode.TESTS_FAILED
    printed = capsys.readouterr().out
    assert "2 failed" in printed and "passed" not in printed
    assert "Timeout of 1 seconds exceeded" in printed


# --- nbtool -------------------------------------------------------------------------------------------------------


def test_a_new_run_gives_the_stored_bytes(lesson, tmp_path, capsys):
    stale = tmp_path / "stale.ipynb"
    nb = nbformat.read(lesson, as_version=4)
    digit_flipped(nb)
    nbformat.write(nb, stale)
    assert nbtool.main(["fresh", str(stale)]) == 1
    changed = [line for line in capsys.readouterr().out.splitlines() if re.match(r"[-+] ", line)]
    assert [line.split() for line in changed] == [
        ["-", '"is', "43,", "0.667", "of", '63\\n"'],
        ["+", '"is', "42,", "0.667", "of", '63\\n"'],
    ]
    assert nbtool.main(["norm", str(lesson), str(stale)]) == 0
    assert capsys.readouterr().out.count("unchanged") == 2


def test_a_failed_run_leaves_the_file_alone(tmp_path, capsys):
    path = tmp_path / "broken.ipynb"
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("raise ValueError('not tagged')")])
    nbformat.write(nb, path)
    before = path.read_bytes()
    assert nbtool.main(["run", str(path)]) == 1
    assert "not tagged" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_normalising_removes_what_jupyter_adds_and_keeps_what_was_seen(lesson, nb):
    stored = copy.deepcopy(nb)
    nb.metadata = nbformat.from_dict({"kernelspec": {"name": "conda-env-x"}, "widgets": {"state": {}}})
    first = cell_with(nb, "six times")
    first.metadata = nbformat.from_dict({"collapsed": True, "execution": {"iopub.status.busy": "2026-01-01"}})
    out = first.outputs.pop()
    for part in out.text.splitlines(keepends=True):  # as a kernel flushes it in pieces
        first.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=part))
    for n, cell in enumerate(nb.cells):
        cell.id = f"{n:08x}"
        if cell.get("execution_count"):
            cell.execution_count += 20
    view = cell_with(nb, "widgets.VBox").outputs[0].data
    view[normal_form.WIDGET_VIEW] = {"model_id": "0" * 32, "version_major": 2, "version_minor": 0}
    failure = cell_with(nb, "raise ").outputs[0]
    failure.traceback = ["\x1b[31mline 3 of a file\x1b[0m"]
    assert normal_form.normalise(nb) == stored
    assert normal_form.dumps(normal_form.normalise(nb)) == lesson.read_text(encoding="utf-8")


# --- every hygiene rule fires on its planted fault ----------------------------------------------------------------


def prints(text):
    def plant(nb):
        cell_with(nb, "six times").outputs[0].text = text

    return plant


def result(mime, value):
    def plant(nb):
        cell = nb.cells[nb.cells.index(cell_with(nb, "6 * 7}")) + 1]
        cell.outputs[0].data = nbformat.from_dict({mime: value})

    return plant


def markdown(old, new):
    def plant(nb):
        for cell in nb.cells:
            if cell.cell_type == "markdown":
                cell.source = cell.source.replace(old, new)

    return plant


def swapped_sections(nb):
    markdown("## See it fail", "## x")(nb)
    markdown("## The check", "## See it fail")(nb)
    markdown("## x", "## The check")(nb)


def stderr_stored(nb):
    out = nbformat.v4.new_output("stream", name="stderr", text="UserWarning")
    cell_with(nb, "assert 6").outputs.append(out)


def widget_state(nb):
    nb.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"version_major": 2}}


def other_kernel(nb):
    nb.metadata.kernelspec.name = "conda-env-x"


def no_code(nb):
    nb.cells = [cell for cell in nb.cells if cell.cell_type != "code"]


def counts_out_of_order(nb):
    cell_with(nb, "assert 6").execution_count = 17


def not_in_the_schema(nb):
    nb.cells[0].surprise = 1


def error_without_tag(nb):
    cell_with(nb, "raise ").metadata.pop("tags")


def tag_without_error(nb):
    cell_with(nb, "raise ").outputs = []


def opt_out_comment(nb):
    replace_source(nb, "assert 6", "# NBVAL_IGNORE_OUTPUT\nassert 6")


def figure_without_numbers(nb):
    cell = cell_with(nb, "height: 42")
    cell.outputs = cell.outputs[1:]
    cell.outputs[0].data["text/plain"] = "<Figure size 640x480 with 1 Axes>"


def no_expected_failure(nb):
    cell = cell_with(nb, "raise ")
    cell.outputs, cell.metadata = [], NotebookNode()


def last_line(text):
    def plant(nb):
        cell_with(nb, "claims hold").outputs[0].text = text

    return plant


def no_slider(nb):
    cell_with(nb, "Slider(").source = "slider = 1"
    cell_with(nb, "slider = 1").outputs = []


def slider_before_figure(nb):
    cell_with(nb, "height: 42").outputs.pop()


def slider_never_moved(nb):
    replace_source(nb, "slider.value = 7", "slider.value == 7")


PLANTED = {
    "not a valid notebook": not_in_the_schema,
    "not normalised": counts_out_of_order,
    "widget state": widget_state,
    "kernel is 'conda-env-x'": other_kernel,
    "no code cell": no_code,
    "was never run": counts_stripped_of_silent_cells,
    "has execution count 17, not 4": counts_out_of_order,
    "opts out of the comparison (NBVAL_IGNORE_OUTPUT)": opt_out_comment,
    "opts out of the comparison (nbval-ignore-output)": opted_out,
    "stores an error without the tag": error_without_tag,
    "stores no error": tag_without_error,
    "on stderr": stderr_stored,
    "prints a memory address": result("text/plain", "[<matplotlib.lines.Line2D at 0x7f2b6c0a1d50>]"),
    "prints an absolute path": prints("read /home/me/config.json"),
    "prints an absolute path (2)": prints("in /tmp/x.py"),
    "prints an absolute path (3)": result("text/html", "<b>C:\\data\\x.json</b>"),
    "prints an absolute path (4)": prints("'/root/x'"),
    "prints the repr of a NumPy scalar": result("text/plain", "(np.float64(0.5), 1)"),
    "prints a carriage return": prints("50%\r100%"),
    "prints a progress bar": prints("100% 5/5 [00:00, 12.50it/s]"),
    "prints 0.30000000000000004": result("text/plain", "0.30000000000000004"),
    "prints 1.23456789012e-07": prints("error=1.23456789012e-07;"),
    "prints 1,234,567.8901": prints("1,234,567.8901 B"),
    "prints no number that it shows": figure_without_numbers,
    "has no alternative text": markdown("![a dot]", "![]"),
    "has no alternative text (2)": markdown("# Six", '<img src="x.png" alt="">\n\n# Six'),
    "nothing is seen to fail": no_expected_failure,
    "must print one line": last_line("notebook 01: 2 of 2 claims hold\nbye"),
    "must print one line (2)": last_line("notebook 02: 2 of 2 claims hold"),
    "must print one line (3)": last_line("notebook 01: 1 of 2 claims fail"),
    "exactly one level-1": markdown("# Six", "Six"),
    "no level-2 heading 'Real models'": markdown("## Real models", "### Real models"),
    "no level-2 heading 'See it fail'": swapped_sections,
    "no cell creates a slider": no_slider,
    "no static figure before the slider": slider_before_figure,
    "no cell after the slider sets": slider_never_moved,
}


@pytest.mark.parametrize("says", PLANTED)
def test_hygiene_rule_fires(nb, says):
    assert hygiene.problems(nb, 1) == []
    PLANTED[says](nb)
    found = hygiene.problems(nb, 1)
    assert any(re.sub(r" \(\d\)$", "", says) in problem for problem in found), found


def test_every_hygiene_rule_has_a_planted_fault(nb):
    """A rule that nothing sets off could be deleted unseen."""
    silent = {rule.__name__ for rule in hygiene.EVERYWHERE} | {
        "shows_a_failure",
        "closes_with_a_summary",
        "has_the_anatomy",
        "moves_its_slider",
    }
    for plant in PLANTED.values():
        broken = copy.deepcopy(nb)
        plant(broken)
        for name in sorted(silent):
            rule = getattr(hygiene, name)
            if list(rule(broken, 1) if name == "closes_with_a_summary" else rule(broken)):
                silent.discard(name)
    assert not silent


@pytest.mark.parametrize(
    "text",
    [
        "70,272 B per token",
        "1234567890123",
        "4096.0",
        "0.000123456",
        "7.25e-16",
        "2.13.0",
        "12,345.678",
        "1e-300",
        "50.0%",
    ],
)
def test_numbers_that_every_machine_prints_alike_pass(nb, text):
    prints(text)(nb)
    assert hygiene.problems(nb, 1) == []


def test_files_are_compared_by_their_bytes(lesson, tmp_path):
    path = tmp_path / lesson.name
    path.write_text(lesson.read_text(encoding="utf-8").replace("\n ", "\n  "), encoding="utf-8")
    assert hygiene.problems_of(path) == ["not laid out as nbtool.py writes it (tools/nbtool.py norm)"]
    assert PNG in path.read_text(encoding="utf-8")
