"""The explorer's controls. They write into an ``HTML`` widget, never into an ``Output`` widget (see `mla_lab.widgets`).

Every control is reached by Tab and moved by arrow keys. Nothing that is typed can raise: what is impossible is said
where its number would stand.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from html import escape
from typing import Any

import ipywidgets as w

from ..errors import InputError
from ..footprint import CACHE_DTYPES
from ..models import get_model, models
from ..serving.gpus import GPUS, get_gpu
from .sections import sections
from .setup import DIMENSION_FIELDS, MOST, Setup, from_query, of_config, of_model, to_query

WIDE = "390px"
NARROW = {"description_width": "160px"}
CONTROLS = "mla-controls"  # the class of the left column, which the app's page keeps in view
# label, ends of the slider, and its step; a step of 0 means a menu of powers of two in its place
NUMBERS = {
    "hidden_size": ("hidden_size (d)", 256, 16384, 256),
    "num_attention_heads": ("heads (h)", 1, 256, 1),
    "q_lora_rank": ("q_lora_rank (q)", 0, 4096, 64),
    "kv_lora_rank": ("kv_lora_rank (r)", 16, 2048, 16),
    "qk_nope_head_dim": ("qk_nope_head_dim (n)", 16, 512, 16),
    "qk_rope_head_dim": ("qk_rope_head_dim (p)", 0, 256, 2),
    "v_head_dim": ("v_head_dim (v)", 16, 512, 16),
    "layers": ("cached layers", 1, 128, 1),
    "index_layers": ("layers with index keys", 0, 128, 1),
    "groups": ("GQA groups", 1, 128, 1),
    "context": ("cached tokens", 1, 2**20, 0),
    "batch": ("requests", 1, 2**12, 0),
    "new_tokens": ("new tokens", 1, 2**13, 0),
    "tp": ("GPUs (tp)", 1, 64, 0),
}


class Number:
    """A field for any whole number, and a slider or a menu over the usual ones. The field holds the value.

    Where the usual ones double they stand in a menu, which arrow keys move like a slider: a slider over powers of two
    tells a screen reader their index or exponent, a menu what is written in it. Its label names it and takes no room.
    """

    def __init__(self, name: str, value: int, moved: Callable[[Any], None]):
        label, low, high, self.step = NUMBERS[name]
        self.field = w.BoundedIntText(value=value, min=0, max=MOST, description=label, style=NARROW,
                                      layout={"width": "260px"})
        self.usual = [] if self.step else [2**i for i in range(low.bit_length() - 1, high.bit_length())]
        if self.step:
            self.slider = w.IntSlider(min=low, max=high, step=self.step, readout=False, layout={"width": "125px"})
        else:
            self.slider = w.Dropdown(description=f"{label}, usual values", style={"description_width": "0px"},
                                     layout={"width": "125px"})
        self.busy = False
        self._follow()
        self.slider.observe(self._lead, names="value")
        self.field.observe(self._follow, names="value")
        self.field.observe(moved, names="value")
        self.box = w.HBox([self.field, self.slider])

    def _lead(self, change: Any) -> None:
        """The slider was moved; it may stand beside a value that it cannot show, which then stays."""
        if not self.busy:
            self.field.value = change.new

    def _follow(self, _change: Any = None) -> None:
        self.busy, value = True, self.field.value
        if self.step:
            self.slider.value = min(max(value, self.slider.min), self.slider.max)
        else:
            if value not in dict(self.slider.options).values():  # an unusual one stands among the others
                self.slider.options = [(f"{i:,}", i) for i in sorted({*self.usual, value})]
            self.slider.value = value
        self.busy = False


class Explorer(w.VBox):
    """Controls beside what follows from them. As text it is all that it shows.

    Parameters
    ----------
    query : str
        Where it starts, as `mla_lab.explorer.setup.to_query` writes it: the line to copy and the link of the page.
    """

    def __init__(self, query: str = ""):
        setup, trouble = Setup(), ""
        try:
            setup = from_query(query)
        except InputError as error:
            trouble = f"The link was not understood: {error}"
        self.holding, self.sections, self.own = False, {}, {}
        if setup.model not in (model.name for model in models()):
            self.own[setup.model] = setup
        names = [model.name for model in models() if model.mla]
        names += [setup.model] * (setup.model not in names)
        wide = {"style": NARROW, "layout": {"width": WIDE}}
        self.numbers = {name: Number(name, getattr(setup, name), self.update) for name in NUMBERS}
        self.others = {
            "model": w.Dropdown(options=names, value=setup.model, description="model", **wide),
            "dtype": w.Dropdown(options=list(CACHE_DTYPES), value=setup.dtype, description="cache format", **wide),
            "gpu": w.Dropdown(options=[gpu.name for gpu in GPUS], value=setup.gpu, description="GPU", **wide),
            **{name: w.BoundedFloatText(value=getattr(setup, name), min=0, max=MOST, description=label, **wide)
               for name, label in (("memory_gb", "GB of a GPU"), ("weights_gb", "GB of weights"))},
        }
        self.others["model"].observe(self._choose, names="value")
        self.reset = w.Button(layout={"width": WIDE}, tooltip="dimensions, layers and weights as the model has them")
        self.reset.on_click(self._choose)
        self.others["gpu"].observe(self._other_gpu, names="value")
        for name in ("dtype", "memory_gb", "weights_gb"):
            self.others[name].observe(self.update, names="value")
        self.pasted = w.Textarea(description="config.json", placeholder="paste a config.json here", rows=4, **wide)
        self.use = w.Button(description="Use this config.json", layout={"width": WIDE})
        self.use.on_click(self._paste)
        self.problem, self.shown = w.HTML(trouble and _alert(trouble)), w.HTML(layout={"width": "98%"})
        self.link, self.cell = w.HTML(), w.Text(description="cell to copy", **wide)
        left = [self.others["model"], self.reset, *(number.box for number in self.numbers.values()),
                *list(self.others.values())[1:], self.cell, self.link, self.pasted, self.use, self.problem]
        self.update()
        controls = w.VBox(left, layout={"flex": "0 0 415px"})
        controls.add_class(CONTROLS)
        super().__init__([w.HBox([controls, w.VBox([self.shown], layout={"flex": "1 1 400px", "min_width": "0"})],
                                 layout={"flex_flow": "row wrap"})])

    def __getitem__(self, name: str) -> Any:
        """The widget that holds a value: ``explorer["context"].value = 4096``."""
        return self.numbers[name].field if name in self.numbers else self.others[name]

    @property
    def text(self) -> str:
        """All that is shown, as text."""
        return "\n\n".join(section.text for section in self.sections.values())

    @property
    def setup(self) -> Setup:
        return Setup(**{f.name: self[f.name].value for f in fields(Setup)})

    def put(self, setup: Setup) -> None:
        """Move all controls at once."""
        with self._hold():
            if setup.model not in self.others["model"].options:
                self.others["model"].options = [*self.others["model"].options, setup.model]
            for f in fields(Setup):
                self[f.name].value = getattr(setup, f.name)
        self.update()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        self.holding = True
        try:
            yield
        finally:
            self.holding = False

    def update(self, _change: Any = None) -> None:
        """Say and draw everything anew."""
        if self.holding:
            return
        self.sections, query = sections(self.setup), to_query(self.setup)
        page = "".join(section.html for section in self.sections.values())
        self.shown.value = f'<div style="contain:inline-size">{page}</div>'  # as wide as its column, not as its tables
        self.cell.value = f'explore("{query}")'
        if in_voila():
            self.link.value = (f'<p style="margin-left:168px"><a href="?{escape(query)}" style="text-decoration:'
                               'underline;color:var(--jp-content-link-color,LinkText)">link to these values</a></p>')
        self.reset.description = f"Back to {self['model'].value} as it is"

    def _choose(self, _change: Any) -> None:
        """The chosen model's own values; the load and the machine stay."""
        if not self.holding:
            self._try(lambda: self._of(self["model"].value))

    def _of(self, name: str) -> Setup:
        own = self.own.get(name)  # of a pasted one, known to nobody else
        if not own:
            return of_model(get_model(name), self.setup)
        return replace(self.setup, **{f: getattr(own, f) for f in ("model", "weights_gb", "index_layers",
                                                                   *DIMENSION_FIELDS)})

    def _other_gpu(self, change: Any) -> None:
        if not self.holding:
            with self._hold():
                self["memory_gb"].value = get_gpu(change.new).memory_gb
            self.update()

    def _paste(self, _button: Any) -> None:
        self._try(self._of_paste)

    def _of_paste(self) -> Setup:
        setup = of_config(self.pasted.value, self.setup)
        if setup.model not in (model.name for model in models()):
            self.own[setup.model] = setup
        return setup

    def _try(self, make: Callable[[], Setup]) -> None:
        """Go to another set-up, or say why not."""
        try:
            setup = make()
        except InputError as error:
            self.problem.value = _alert(str(error))
        else:
            self.problem.value = ""
            self.put(setup)

    def _repr_mimebundle_(self, **how: Any) -> dict:
        """The page, and for whoever shows no widgets its text."""
        bundle = super()._repr_mimebundle_(**how)
        return bundle | {"text/plain": self.text}


def _alert(sentence: str) -> str:
    return f'<p role="alert" style="margin-left:8px"><b>{escape(sentence)}</b></p>'


def in_voila() -> bool:
    """Whether Voila runs this: its page has a query of its own."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila")


def explore(query: str = "") -> Explorer:
    """The explorer, at the values of ``query``; in Voila at those of the page's address."""
    return Explorer(query or (os.environ.get("QUERY_STRING", "") if in_voila() else ""))
