"""Axes of a figure with sliders stay where they are: or what stays would seem to move, and what moves to stay."""
from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

from mla_lab import moving, plots
from mla_lab.after import plots as after_plots
from mla_lab.arrays import fresh
from mla_lab.kernels import flash_plots, roofline_plots
from mla_lab.kernels.roofline import DEVICES
from mla_lab.models import models
from mla_lab.serving import cache_plots, traces
from mla_lab.serving import plots as serving_plots

LOGITS = fresh(2)(24)
SIZES = {"a fault": 3.4, "a small one": 1e-4}


def spectra(r, tokens):
    """As notebook 02 draws them."""
    keys = fresh(1)(tokens, r) @ fresh(2)(r, 64)
    curves = {"keys": np.linalg.svd(keys, compute_uv=False)}
    return plots.spectrum(curves, r, 1e-12, longest=64, heights=(1e-18, 1e3))


def sizes(model):
    return plots.cache_sizes(model.mla)


def logits(unit):
    rounded = unit * np.round(LOGITS / unit)
    return moving.logits(rounded, rounded, rounded, unit + 0 * LOGITS, "bfloat16")


def pages(size):
    return cache_plots.pages_of(traces.synthetic(), size)


MOVED = {
    "growth, notebook 00": (plots.cache_growth, {"tokens": (8192, 1024, 131072), "heads": (128, 8)}),
    "growth, notebook 01": (plots.cache_growth, {"tokens": (8192, 1024, 131072), "latent": (512, 64, 2048),
                                                 "groups": (8, 1, 128)}),
    "on each GPU": (moving.per_gpu, {"tp": (1, 128), "groups": (8, 2, 32)}),
    "spectra": (spectra, {"r": (12, 1, 40), "tokens": (48, 8, 96)}),
    "tolerance": (partial(moving.rank, 10.0 ** -np.arange(12), 1e-9), {"exponent": (-6, -18, 3)}),
    "rotation": (plots.rotation, {"position": (5, 0, 64)}),
    "pair": (moving.pair, {"position": (3, 0, 64), "distance": (2, 0, 16), "number": (1, 0, 3)}),
    "dtype": (logits, {"unit": (2.0**-8, 2.0**-24)}),
    "faults": (partial(moving.faults, SIZES), {"exponent": (-2, -6, 1)}),
    "models": (sizes, {"model": list({(m.mla.v_head_dim, m.mla.kv_lora_rank): m for m in models() if m.mla}.values())}),
    "crossover": (moving.flop, {"new": (100, 1, 1024), "cached": (8192, 0, 131072), "r": (512, 128, 1024)}),
    "roof": (roofline_plots.one_roof, {"gpu": list(DEVICES), "heads": (128, 8), "new": (1, 8), "itemsize": (2, 1, 4),
                                       "context": (16384, 256, 131072)}),
    "online softmax": (flash_plots.online, {"seen": (6, 1, 12)}),
    "schedule": (flash_plots.schedule, {"rule": ("greedy", "fixed"), "splits": (2, 1, 16)}),
    "pages": (pages, {"size": (64, 1, 256)}),
    "errors": (cache_plots.errors_of_format, {"form": list(cache_plots.FORMATS), "octave": (0, 20)}),
    "users": (serving_plots.users_that_fit, {"gpu": ("H200", "H100", "H20", "B200"), "context": (8192, 512, 131072),
                                             "weight_dtype": ("fp8", "int4", "bf16")}),
    "after MLA": (after_plots.cache_of_each, {"gpus": (2, 1, 8)}),
}


def frames(plot) -> list[float]:
    return [float(end) for ax in plot.figure.axes for end in (*ax.get_xlim(), *ax.get_ylim())]


@pytest.mark.parametrize("name", MOVED)
def test_axes_stay_from_one_end_of_a_slider_to_the_other(name):
    draw, sliders = MOVED[name]
    start = {slider: values[0] for slider, values in sliders.items()}
    ends = [{**start, slider: value} for slider, values in sliders.items() for value in values[1:]]
    assert ends
    for at in ends:
        assert frames(draw(**at)) == pytest.approx(frames(draw(**start)), rel=1e-9), at


def test_only_what_the_heads_change_moves():
    """Notebook 00's answer, as it is drawn."""
    lines = (plots.cache_growth(heads=heads).figure.axes[0].lines[:8:2] for heads in (128, 64))
    before, after = ([line.get_window_extent().y0 for line in four] for four in lines)
    assert [a != b for a, b in zip(before, after, strict=True)] == [True, False, False, False]


@pytest.mark.parametrize("draw", [partial(plots.cache_growth, heads=8), partial(plots.cache_growth, groups=1),
                                  partial(plots.cache_growth, latent=1984), partial(moving.per_gpu, tp=128)])
def test_series_that_coincide_are_both_seen(draw):
    """What is drawn later leaves a rim of what lies under it."""
    figure = draw().figure
    marks = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    sizes = [line.get_markersize() for line in marks]
    assert len(marks) == 4 and all(a > b for a, b in pairwise(sizes))
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    for line in marks:
        x, y = line.get_transform().transform((line.get_xdata()[0], line.get_ydata()[0]))
        near = pixels[::-1][round(y) - 12:round(y) + 13, round(x) - 12:round(x) + 13].reshape(-1, 3)
        own = [int(to_hex(line.get_color())[i:i + 2], 16) for i in (1, 3, 5)]
        assert np.sum((near == own).all(axis=-1)) > 15, line.get_label()
