"""A small lesson that obeys every rule, for tests that break it."""

from __future__ import annotations

import nbformat
from hygiene import ANATOMY
from nbformat import NotebookNode

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="

SET_UP = """\
import base64
import ipywidgets as widgets
from IPython.display import Image, display"""
SLIDER = """\
slider = widgets.IntSlider(value=3, min=1, max=9, description="heads")
text, image = widgets.HTML(), widgets.Image(format="png", width=200)

def show(change):
    text.value = f"cache is {128 * slider.value} floats"
    # a picture that differs with the value, so that a browser sees another one
    image.value = base64.b64decode(PNG) + bytes(slider.value)

slider.observe(show, "value")
show(None)
widgets.VBox([slider, text, image])"""

CODE = {
    "Set-up": [f"{SET_UP}\nPNG = {PNG!r}"],
    "A small example": ['print("six times seven")\nprint(f"is {6 * 7}, {2 / 3:.3f} of 63")', "6 * 7"],
    "The check": ["assert 6 * 7 == 42"],
    "See it fail": ['raise AssertionError("FAILS  6 x 7 is 42, saw 41")'],
    "Explore": [
        'print("height: 42 floats")\ndisplay(Image(base64.b64decode(PNG)))',
        SLIDER,
        "slider.value = 7\nprint(text.value)",
    ],
    "Takeaways": ['print("notebook 01: 2 of 2 claims hold")'],
}


def sample_lesson() -> NotebookNode:
    """A notebook with the full anatomy, not yet run."""
    cells = [nbformat.v4.new_markdown_cell("# Six times seven\n\n![a dot](data:image/png;base64," + PNG + ")")]
    for part in ANATOMY:
        cells.append(nbformat.v4.new_markdown_cell(f"## {part}"))
        cells += [nbformat.v4.new_code_cell(source) for source in CODE.get(part, [])]
    for cell in cells:
        if cell.source.startswith("raise "):
            cell.metadata["tags"] = ["raises-exception"]
    return nbformat.v4.new_notebook(cells=cells)
