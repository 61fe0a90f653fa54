"""What a notebook of this project must be before nbval's green means anything.

nbval compares a new run with the stored outputs. It says nothing about a cell that was never run, about a picture,
about a cell that asks not to be compared, or about a text that is equal only on one machine. Each rule below closes
one such hole. A rule is a generator: it takes a notebook and yields one sentence for each thing that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from normal_form import KERNELSPEC, dumps, normalise

ANATOMY = (
    "Predict first",
    "Set-up",
    "The equation",
    "A small example",
    "The check",
    "See it fail",
    "What this check cannot see",
    "Explore",
    "Real models",
    "Exercise",
    "Takeaways",
)
# Notebooks with the full anatomy; 00 and 14 are shaped by what they hold.
LESSONS = {*range(1, 14), 15}
DIGITS = 9  # float64 results of two machines agree to more than this, and to fewer than 17

NEVER_PRINTED = {
    r" at 0x": "a memory address",
    r"(?<![\w.])/(home|root|tmp|Users|var/folders)/": "an absolute path",
    r"\bC:\\|\b[A-Z]:\\\w+\\": "an absolute path",
    r"\bnp\.(u?int|float|complex)\d+\(|\bnp\.(True|False)_": "the repr of a NumPy scalar",
    r"\r": "a carriage return (a progress bar?)",
    r"it/s|s/it\b": "a progress bar",
}
NUMBER = re.compile(r"(?<![\d.])(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<fraction>\d+))?(?:[eE][-+]?\d+)?")
FIGURE_REPR = re.compile(r"<Figure size [^>]*>|<IPython[^>]*>")  # holds digits, but none that the figure shows
SLIDER = re.compile(r"slider\(", flags=re.IGNORECASE)  # the widget, or a function that makes one
SETS_VALUE = re.compile(r"^[^#\n]*\.value\s*=(?!=)", flags=re.MULTILINE)
OPT_OUT_COMMENT = re.compile(r"^\s*#+\s*(NBVAL_(?:SKIP|IGNORE_OUTPUT)|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", re.MULTILINE)
OPT_OUT_TAGS = {"nbval-skip", "nbval-ignore-output", "pytest-validate-ignore-output", "skip-execution"}


# --- reading a notebook -------------------------------------------------------------------------------------------


def code_cells(nb: NotebookNode) -> list[tuple[str, NotebookNode]]:
    """Every code cell that holds code, with the words to call it by (the `Cell n` of nbval's report)."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    return [(f"Cell {n} ({cell.get('id')})", cell) for n, cell in enumerate(cells) if cell.source.strip()]


def output_texts(out: NotebookNode) -> list[str]:
    """The texts of one output that a reader sees and nbval compares, pictures drawn as text left out."""
    if out.output_type == "stream":
        return [out.text]
    if out.output_type == "error":
        return [f"{out.ename}: {out.evalue}"]
    return [re.sub(r"<[^>]+>", " ", v) if k == "text/html" else v for k, v in out.data.items() if k.startswith("text/")]


def cell_text(cell: NotebookNode) -> str:
    """All texts that a cell put out, one after the other."""
    return "\n".join(text for out in cell.outputs for text in output_texts(out))


def has_png(cell: NotebookNode) -> bool:
    """Whether a cell put out a static figure."""
    return any("image/png" in out.get("data", {}) for out in cell.outputs)


def tags(cell: NotebookNode) -> set[str]:
    """The tags of a cell."""
    return set(cell.metadata.get("tags", []))


def significant_digits(number: re.Match) -> int:
    """Digits that a printed number claims to know; a whole number is exact, so it claims none."""
    whole, fraction = number["whole"].replace(",", ""), number["fraction"] or ""
    if fraction.strip("0") == "" and len(fraction) < 2:
        return 0
    return len((whole + fraction).lstrip("0"))


# --- rules for every notebook -------------------------------------------------------------------------------------


def is_valid(nb: NotebookNode) -> Iterator[str]:
    """Web pages that show notebooks refuse what the format's schema refuses."""
    try:
        nbformat.validate(nb)
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {str(error).splitlines()[0]}"


def is_normal(nb: NotebookNode) -> Iterator[str]:
    """One normal form: a diff then shows what changed, not where it was run."""
    if normalise(nb) != nb:
        yield "not normalised (tools/nbtool.py norm)"


def has_no_widget_state(nb: NotebookNode) -> Iterator[str]:
    """An untrusted notebook shows no stored widget, and some pages refuse to show one whose state is missing."""
    if "widgets" in nb.metadata:
        yield "widget state is stored"


def has_plain_kernel(nb: NotebookNode) -> Iterator[str]:
    """A kernel name of the author's machine is an error on every other."""
    name = nb.metadata.get("kernelspec", {}).get("name")
    if name != KERNELSPEC["name"]:
        yield f"kernel is {name!r}, not {KERNELSPEC['name']!r}"


def was_run_in_order(nb: NotebookNode) -> Iterator[str]:
    """nbval runs a cell without an execution count and compares nothing."""
    cells = code_cells(nb)
    if not cells:
        yield "no code cell: nothing would be compared"
    elif all(cell.execution_count is None for _, cell in cells):
        yield "was never run, so nbval would compare nothing (tools/nbtool.py run)"
        return
    for expected, (name, cell) in enumerate(cells, 1):
        if cell.execution_count is None:
            yield f"{name} was never run, so nbval would not compare it"
        elif cell.execution_count != expected:
            yield f"{name} has execution count {cell.execution_count}, not {expected}: not one run from top to bottom"


def is_compared(nb: NotebookNode) -> Iterator[str]:
    """A cell that asks nbval to look away proves nothing."""
    for name, cell in code_cells(nb):
        for word in sorted(tags(cell) & OPT_OUT_TAGS | set(OPT_OUT_COMMENT.findall(cell.source))):
            yield f"{name} opts out of the comparison ({word})"


def errors_are_expected(nb: NotebookNode) -> Iterator[str]:
    """A stored error is a claim only where the cell says that it must raise, and then there must be one."""
    for name, cell in code_cells(nb):
        raised = any(out.output_type == "error" for out in cell.outputs)
        if raised and "raises-exception" not in tags(cell):
            yield f"{name} stores an error without the tag raises-exception"
        if not raised and cell.execution_count is not None and "raises-exception" in tags(cell):
            yield f"{name} is tagged raises-exception and stores no error"


def prints_no_stderr(nb: NotebookNode) -> Iterator[str]:
    """Warnings name files and processes, and change with every release of a library."""
    for name, cell in code_cells(nb):
        if any(out.output_type == "stream" and out.name == "stderr" for out in cell.outputs):
            yield f"{name} stores text on stderr"


def prints_the_same_everywhere(nb: NotebookNode) -> Iterator[str]:
    """Addresses, paths and rounding noise are equal on one machine only."""
    for name, cell in code_cells(nb):
        text = cell_text(cell)
        for pattern, meaning in NEVER_PRINTED.items():
            if re.search(pattern, text):
                yield f"{name} prints {meaning}"
        for number in NUMBER.finditer(text):
            if significant_digits(number) > DIGITS:
                yield f"{name} prints {number[0]}: more than {DIGITS} digits of a float differ between machines"


def figures_print_their_numbers(nb: NotebookNode) -> Iterator[str]:
    """nbval does not compare pictures: what a figure shows must stand beside it as text."""
    for name, cell in code_cells(nb):
        if has_png(cell) and not re.search(r"\d", FIGURE_REPR.sub("", cell_text(cell))):
            yield f"{name} shows a figure and prints no number that it shows"


def pictures_have_words(nb: NotebookNode) -> Iterator[str]:
    """A picture without alternative text does not exist for a reader who cannot see it."""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            for found in re.finditer(r"!\[\s*\]\([^)]*\)|<img\b(?![^>]*\balt\s*=\s*[\"'][^\"'\s])[^>]*>", cell.source):
                yield f"{cell.get('id')}: {found[0]} has no alternative text"


# --- rules for numbered notebooks ---------------------------------------------------------------------------------


def shows_a_failure(nb: NotebookNode) -> Iterator[str]:
    """A check that was never seen to fail is not yet a check."""
    if not any("raises-exception" in tags(cell) for _, cell in code_cells(nb)):
        yield "no cell is tagged raises-exception: nothing is seen to fail"


def closes_with_a_summary(nb: NotebookNode, number: int) -> Iterator[str]:
    """The last cell says in one line which notebook this was and that its claims hold."""
    name, cell = code_cells(nb)[-1] if code_cells(nb) else ("", None)
    lines = cell_text(cell).strip().splitlines() if cell else []
    if len(lines) != 1 or not lines[0].startswith(f"notebook {number:02d}:") or not lines[0].endswith("hold"):
        yield f"{name} is the last and must print one line `notebook {number:02d}: ... hold`"


def has_the_anatomy(nb: NotebookNode) -> Iterator[str]:
    """One order in every lesson: a prediction comes before the answer, a failure after the check."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    if len(re.findall(r"^# +\S", text, flags=re.MULTILINE)) != 1:
        yield "there must be exactly one level-1 heading, the title"
    headings = iter(re.findall(r"^## +(.+)$", text, flags=re.MULTILINE))
    for part in ANATOMY:
        if not any(part.lower() in heading.lower() for heading in headings):  # the iterator goes on where it stopped
            yield f"no level-2 heading {part!r} at its place in the order: {', '.join(ANATOMY)}"
            return


def moves_its_slider(nb: NotebookNode) -> Iterator[str]:
    """A static figure first, for who has no widgets; then the slider; then a cell that moves it, so that CI does."""
    cells = [cell for _, cell in code_cells(nb)]
    slider = next((n for n, c in enumerate(cells) if SLIDER.search(c.source) or SLIDER.search(cell_text(c))), None)
    if slider is None:
        yield "no cell creates a slider"
        return
    if not any(has_png(cell) for cell in cells[:slider]):
        yield "no static figure before the slider"
    if not any(SETS_VALUE.search(cell.source) for cell in cells[slider + 1 :]):
        yield "no cell after the slider sets a .value, so nothing runs its callback"


EVERYWHERE = (
    is_valid,
    is_normal,
    has_no_widget_state,
    has_plain_kernel,
    was_run_in_order,
    is_compared,
    errors_are_expected,
    prints_no_stderr,
    prints_the_same_everywhere,
    figures_print_their_numbers,
    pictures_have_words,
)


def problems(nb: NotebookNode, number: int | None = None) -> list[str]:
    """Everything that is wrong with a notebook.

    Parameters
    ----------
    nb : NotebookNode
        The notebook with its stored outputs.
    number : int, optional
        The number its file name starts with. From 1 on it must show a failure and close with a summary line;
        1 to 5 are lessons and have the full anatomy and a slider.

    Returns
    -------
    list of str
        One sentence for each problem; empty when there is none.
    """
    found = [problem for rule in EVERYWHERE for problem in rule(nb)]
    if number is not None and number >= 1:
        found += [*shows_a_failure(nb), *closes_with_a_summary(nb, number)]
    if number in LESSONS:
        found += [*has_the_anatomy(nb), *moves_its_slider(nb)]
    return found


def problems_of(path: Path) -> list[str]:
    """`problems` of a notebook file; the number is read from its name, and its bytes must be the normal ones."""
    text = path.read_bytes().decode("utf-8")
    nb = nbformat.reads(text, as_version=4)
    number = re.match(r"\d+", path.name)
    found = problems(nb, int(number[0]) if number else None)
    if not found and dumps(nb) != text:
        found.append("not laid out as nbtool.py writes it (tools/nbtool.py norm)")
    return found
