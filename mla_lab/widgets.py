"""A panel of sliders, a line of text and a picture. It works in JupyterLab, under nbval and without a browser.

Callbacks write into two ``HTML`` widgets, one of which holds an ``<img>``: an ``Image`` widget has no text alternative.
They never write into an ``Output`` widget: what that one shows counts as output of the cell, which no strict comparison
of notebooks survives.
"""
from __future__ import annotations

import base64
import html
from collections.abc import Callable
from typing import Any

import ipywidgets

from .plots import Plot


class Panel:
    """Controls above the text and the picture that they change.

    Parameters
    ----------
    draw : callable
        Takes the values of the controls by name and returns a `mla_lab.plots.Plot`; its numbers become the text.
    controls : ipywidgets
        One widget with a ``value`` for each parameter of ``draw``.

    Examples
    --------
    >>> panel = Panel(plots.cache_growth, tokens=slider("tokens", 1024, 1, 131072))   # doctest: +SKIP
    >>> panel["tokens"].value = 4096; print(panel.text)                               # doctest: +SKIP
    """

    def __init__(self, draw: Callable[..., Plot], **controls: Any):
        self.draw, self.controls, self.text = draw, controls, ""
        self.caption, self.picture = ipywidgets.HTML(), ipywidgets.HTML()
        for control in controls.values():
            control.observe(self.update, names="value")
        self.update()

    def __getitem__(self, name: str) -> Any:
        return self.controls[name]

    def update(self, _change: Any = None) -> None:
        """Draw again from the values that the controls have now."""
        plot = self.draw(**{name: control.value for name, control in self.controls.items()})
        self.text = plot.numbers
        self.caption.value = f"<pre>{html.escape(plot.numbers)}</pre>"
        self.picture.value = image(plot)

    def _ipython_display_(self) -> None:
        from IPython.display import display
        display(ipywidgets.VBox([*self.controls.values(), self.caption, self.picture]))


def image(plot: Plot) -> str:
    """``plot`` as an ``<img>``, with its description as the text alternative."""
    data = base64.b64encode(plot.png()).decode()
    return f'<img alt="{html.escape(plot.alt)}" width="720" src="data:image/png;base64,{data}">'


def slider(label: str, value: int, low: int, high: int, step: int = 1) -> ipywidgets.IntSlider:
    """A whole-number slider, moved by mouse or arrow keys."""
    return ipywidgets.IntSlider(value=value, min=low, max=high, step=step, description=label,
                                style={"description_width": "initial"}, layout={"width": "60%"})


def choice(label: str, value: Any, options: Any) -> ipywidgets.SelectionSlider:
    """A slider over ``options``."""
    return ipywidgets.SelectionSlider(value=value, options=options, description=label,
                                      style={"description_width": "initial"}, layout={"width": "60%"})
