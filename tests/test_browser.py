"""What a person sees: every notebook in a real JupyterLab, in a real browser, each of its sliders moved by keyboard.

One server and one page serve all notebooks. ``MLA_LAB_BROWSER_NOTEBOOKS`` names a folder of other notebooks.
"""
from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from browser import NOTEBOOKS, chromium, lab_server, needs_chromium, page_of, press, settled, until
from normal_form import KERNELSPEC

FOLDER = Path(os.environ.get("MLA_LAB_BROWSER_NOTEBOOKS", NOTEBOOKS))
FILES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
pytestmark = needs_chromium

# A kernel is ready when it is idle: "Run All" before that is dropped without a word.
OPEN = """path => {
  const commands = window.jupyterapp.commands;
  window.shown = undefined;
  commands.execute('docmanager:open', {path, factory: 'Notebook'}).then(async panel => {
    await panel.context.ready;
    await panel.sessionContext.ready;
    await commands.execute('notebook:clear-all-cell-outputs');   // stored ones would pass for new ones
    window.shown = panel;
  });
}"""
IDLE = "() => window.shown?.sessionContext.session?.kernel?.status === 'idle'"
RUN = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
CLOSE = """async () => {
  await window.shown.sessionContext.shutdown();
  window.shown.dispose();
}"""
# Every cell has its number, or one ended in an error that it was not meant to end in, and stopped those after it.
CELLS = """
  const cells = window.shown.content.widgets.map(cell => cell.model).filter(
    model => model.type === 'code' && model.sharedModel.getSource().trim());
  const outputs = model => model.outputs.toJSON();
  const raised = model => outputs(model).find(out => out.output_type === 'error');
  const may = model => (model.getMetadata('tags') || []).includes('raises-exception');"""
RAN = f"() => {{ {CELLS} return cells.every(m => m.executionCount) || cells.some(m => raised(m) && !may(m)); }}"
WRONG = f"""() => {{ {CELLS}
  return cells.flatMap(model => {{
    const error = raised(model), where = model.sharedModel.getSource().split('\\n')[0] + ': ';
    const printed = outputs(model).filter(out => out.name === 'stderr').map(out => where + out.text);
    return printed.concat(error && !may(model) ? [where + error.ename + ': ' + error.evalue] : [],
                          may(model) && !error ? [where + 'was to raise'] : []);
  }});
}}"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(tmp_path_factory, browser):
    """JupyterLab, open in a page."""
    home = tmp_path_factory.mktemp("lab")
    with lab_server(home, FOLDER) as (url, address), page_of(browser, url) as page:
        nbformat.write(broken(), home / "root" / BROKEN)
        page.goto(address, wait_until="domcontentloaded")
        page.wait_for_function("window.jupyterapp !== undefined")
        page.evaluate("window.jupyterapp.restored.then(() => true)")
        yield page


def open_and_run(page, name):
    """A notebook in JupyterLab, run from top to bottom; what went wrong."""
    page.evaluate(OPEN, name)
    page.wait_for_function(IDLE)
    page.evaluate(RUN)
    page.wait_for_function(RAN, polling=250)  # at every frame it would take the core from the kernel
    return page.evaluate(WRONG)


@pytest.fixture
def closing(lab):
    """The page; afterwards the notebook that it shows is closed and its kernel ended."""
    yield lab
    lab.evaluate(CLOSE)


def panels(page):
    """What a cell shows that has a slider in it."""
    return page.locator(".jp-Notebook .jp-OutputArea-output").filter(has=page.get_by_role("slider"))


@pytest.mark.parametrize("name", FILES)
def test_it_runs_and_each_slider_moves_words_and_picture(closing, name):
    assert open_and_run(closing, name) == []
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    if any(re.search(r"\b(slider|choice)\(", cell.source) for cell in cells if cell.cell_type == "code"):
        panels(closing).first.wait_for()
    shown = closing.locator(".jp-Notebook")
    assert shown.get_by_text("Loading widget").count() == shown.get_by_text("Error displaying widget").count() == 0
    for panel in panels(closing).all():
        move_all(closing, panel)


def move_all(page, panel, seconds=20):
    """Each slider changes the words beside it, and one of them at least the picture and what is said of it."""
    handles = panel.get_by_role("slider").all()

    def words():
        return " ".join(panel.locator(".widget-html-content").all_inner_texts())

    def picture():
        images = panel.locator("img").evaluate_all("all => all.map(i => i.src)")
        return images + panel.locator("svg").evaluate_all("all => all.map(i => i.outerHTML)")

    def alts():
        return panel.locator("img").evaluate_all("all => all.map(i => i.alt)")

    settled(page, lambda: [words(), *(handle.get_attribute("aria-valuenow") for handle in handles)])
    assert re.search(r"\d", words()), f"no number beside the slider: {words()!r}"
    first, said = picture(), alts()
    assert all(said), "a picture without a text alternative"
    for handle in handles:
        text = words()
        press(page, handle)
        until(page, lambda text=text: words() != text, seconds)
        assert words() != text, f"slider {handle.get_attribute('aria-label')!r} moved and the words stayed {text!r}"
        assert re.search(r"\d", words())
    until(page, lambda: picture() != first, seconds)  # it comes after the words
    assert picture() != first, "sliders moved and the picture stayed"
    assert not said or alts() != said, "sliders moved and the picture's text alternative stayed"


def test_there_are_notebooks():
    """A glob that finds nothing would pass all."""
    assert FILES


# --- each of these is seen to fail ------------------------------------------------------------------------------------

BROKEN = "broken.ipynb"
DEAD = """\
def panel(words, picture):  # picture: True, False, "deaf" (its words stay) or "dumb" (it has none)
    slider, text, image = widgets.IntSlider(3), widgets.HTML("3"), widgets.HTML()
    def show(_):
        text.value = str(slider.value) if words else text.value
        kept = 3 if picture is False else slider.value
        image.value = f"<img src='data:,{kept}' alt='{ {True: kept, 'dumb': ''}.get(picture, 3)}'>"
    slider.observe(show, "value")
    show(0)
    return widgets.VBox([slider, text, image])"""


def broken() -> nbformat.NotebookNode:
    """Four dead panels, a word on stderr, an error that was to come and one that was not."""
    tagged = {"metadata": {"tags": ["raises-exception"]}}
    cells = [(f"import sys\nimport ipywidgets as widgets\n{DEAD}", {}), ("panel(True, False)", {}),
             ("panel(False, True)", {}), ("panel(True, 'deaf')", {}), ("panel(True, 'dumb')", {}),
             ("_ = sys.stderr.write('careful')", {}), ("1 + 1", tagged), ("1 / 0", {}),
             ("2 + 2", {})]
    cells = [nbformat.v4.new_code_cell(source, **how) for source, how in cells]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC})


def test_a_broken_notebook_is_seen(closing):
    assert open_and_run(closing, BROKEN) == ["_ = sys.stderr.write('careful'): careful", "1 + 1: was to raise",
                                             "1 / 0: ZeroDivisionError: division by zero"]
    panels(closing).nth(3).wait_for()
    dead = "the picture stayed", "the words stayed", "text alternative stayed", "without a text alternative"
    for panel, says in zip(panels(closing).all(), dead, strict=True):
        with pytest.raises(AssertionError, match=says):
            move_all(closing, panel, seconds=1)


def test_a_request_to_another_host_is_seen(browser):
    images = "".join(f"<img src='{source}'>" for source in ("http://other.invalid/x.png", "data:image/gif;base64,R0lG"))
    with (pytest.raises(AssertionError, match=r"other hosts: \['http://other.invalid/x.png'\]"),
          page_of(browser, "http://127.0.0.1") as page):
        page.set_content(images)
