"""Figures build, say their numbers in words, and can be read: no text is cut off or lies on another."""
from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import hygiene
import numpy as np
import pytest

pytest.importorskip("matplotlib")

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from mla_lab import drawing, figures, plots
from mla_lab.checks.common import SMALL

ROOT = Path(__file__).parent.parent
FALLING = 10.0 ** -np.arange(12)
LOGITS = np.where(np.tri(3, 6, 3) > 0, np.linspace(-1, 1, 18).reshape(3, 6), -np.inf)

PLOTS = {
    "sizes": (plots.cache_sizes, {}),
    "sizes, small layer": (plots.cache_sizes, {"config": SMALL}),
    "growth": (plots.cache_growth, {}),
    "growth, few tokens": (plots.cache_growth, {"tokens": 1}),
    "growth, many tokens": (plots.cache_growth, {"tokens": 1_000_000, "heads": 64, "groups": 1}),
    "steps": (plots.cache_over_steps, {"lengths": [8, 9, 10, 11, 12], "width": 38, "expanded": 90}),
    "steps, one": (plots.cache_over_steps, {"lengths": [4096], "width": 576, "expanded": 40960}),
    "streams": (plots.two_streams, {}),
    "streams, small layer": (plots.two_streams, {"config": SMALL}),
    "pipeline": (plots.absorption_pipeline, {}),
    "pipeline, small layer": (plots.absorption_pipeline, {"config": SMALL}),
    "spectrum": (plots.spectrum, {"curves": {"falling": FALLING, "level": np.ones(12)}, "rank": 6, "radius": 3e-6}),
    "spectrum, no radius": (plots.spectrum, {"curves": {"a curve with a rather long name": FALLING}, "rank": 11}),
    "ladder": (plots.dtype_ladder, {"rungs": [("float64", 6.6), ("float32", 5.9)]}),
    "rotation": (plots.rotation, {}),
    "rotation, far": (plots.rotation, {"position": 100_000, "pair": 31, "p": 64}),
    "scores": (plots.score_by_distance, {}),
    "scores, fault": (plots.score_by_distance, {"query_at": 0, "kind": "key not rotated"}),
    "residual": (plots.residual_by_span, {"spans": [1, 2, 4, 64]}),
    "heat": (plots.heat, {"matrix": LOGITS, "title": "logits", "rows": "query", "columns": "key", "marks": LOGITS > 0}),
    "heat, labels": (plots.heat, {"matrix": np.eye(2) > 0, "title": "who sees whom, with a title wider than the cells",
                                  "rows": ["q0", "q1"], "columns": ["k0", "k1"]}),
    **{f"README {name}": (draw, {}) for name, draw in figures.README.items()},
}


@pytest.fixture(params=PLOTS, scope="module")
def plot(request) -> plots.Plot:
    draw, arguments = PLOTS[request.param]
    return draw(**arguments)


@lru_cache(maxsize=2)
def texts(figure: Figure) -> list[tuple[str, np.ndarray]]:
    """Every text that is drawn and its box in pixels: [[left, bottom], [right, top]]."""
    canvas, drawn = FigureCanvasAgg(figure), []
    # axes also keep tick labels beyond their limits, which they do not draw
    with patch.object(Text, "draw", autospec=True, side_effect=lambda text, _: drawn.append(text)):
        canvas.draw()
    shown = [t for t in drawn if t.get_visible() and t.get_text().strip()]
    return [(t.get_text(), t.get_window_extent(canvas.get_renderer()).get_points()) for t in shown]


def cut_off(figure: Figure) -> list[str]:
    area = figure.bbox.get_points()
    return [text for text, box in texts(figure) if np.any(box[0] < area[0] - 1) or np.any(box[1] > area[1] + 1)]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    def meet(a, b):
        return np.all(np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]) > 1)
    return [(one, other) for (one, a), (other, b) in combinations(texts(figure), 2) if meet(a, b)]


def outside_their_box(figure: Figure) -> list[str]:
    """Texts of a diagram that stick out of the box that they are centred in."""
    canvas = FigureCanvasAgg(figure)
    found = []
    boxes = [p.get_window_extent(canvas.get_renderer()).get_points() for p in figure.findobj(Rectangle)
             if p.get_width() < 2 and p.get_height() < 2]
    for text, at in texts(figure):
        for box in boxes:
            centred = np.allclose(at.mean(axis=0), box.mean(axis=0), atol=8)
            if centred and (np.any(at[0] < box[0]) or np.any(at[1] > box[1])):
                found.append(text)
    return found


# --- every plot -------------------------------------------------------------------------------------------------------


def test_it_can_be_read(plot):
    assert cut_off(plot.figure) == []
    assert overlapping(plot.figure) == []
    assert outside_their_box(plot.figure) == []
    assert min(t.get_fontsize() for t in plot.figure.findobj(Text)) >= 10
    assert to_rgb(plot.figure.get_facecolor()) == (1, 1, 1)
    assert plot.figure.get_figwidth() <= 8


def test_it_says_what_it_shows(plot):
    assert re.search(r"\d", plot.numbers) and len(plot.alt) > 20
    assert repr(plot) == plot.numbers
    for word in ("np.float64", " at 0x", "/home"):
        assert word not in plot.numbers + plot.alt
    assert not re.search(r"\bnan\b", plot.numbers + plot.alt)
    assert max(map(hygiene.significant_digits, hygiene.NUMBER.finditer(plot.numbers))) <= hygiene.DIGITS


def test_its_picture_is_the_same_twice(plot):
    data, metadata = plot._repr_png_()
    assert data == plot.png() and data.startswith(b"\x89PNG") and b"Matplotlib" not in data
    assert metadata == {"alt": plot.alt}


# --- published values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "sizes": ["65,536 B", "4,096 B", "512 B", "1,152 B", "1.76 %", "bf16"],
        "growth": ["512 MiB", "32 MiB", "4 MiB", "9 MiB", "8,192 tokens"],
        "steps": ["call 1: 8 tokens, 304 and 720 values", "call 5: 12 tokens, 456 and 1,080 values"],
        "streams": ["7,168 values", "512 + 64 = 576 values", "32,768 values", "576 x 7,168"],
        "pipeline": ["keys 128 x s x 128 = 16,384 s", "query 128 x 512 = 65,536", "logits 128 s"],
        "spectrum": ["number 6 1e-05, the next noise; 6 of 12", "number 6 1, the next 1; 12 of 12", "below 3.0e-06"],
        "rotation": ["pair 0: 1 rad a token, 5 rad", "pair 1: 0.1 rad a token, 0.5 rad", "pair 3: 0.001 rad a token"],
        "residual": ["distances 0 to 0: computed 0.00 %", "distances 0 to 63: computed 59.67 %, theory 59.67 %"],
        "ladder": ["float64 2^-53", "float32 2^-24", "so it is rounding"],
        "README singular_values": ["number 128 8.94, the next noise; 128 of 300", "300 of 300"],
        "README dtype_ladder": ["naive against absorbed: the distance shrinks", "a wrong formula: the distance is 0.5"],
    }.items(),
)
def test_numbers_are_the_published_ones(name, values):
    draw, arguments = PLOTS[name]
    numbers = draw(**arguments).numbers
    assert [value for value in values if value not in numbers] == []


def test_a_rope_score_depends_on_the_distance_alone_and_not_if_the_key_stays():
    def rows(**how):
        return [line.split(": ")[1] for line in plots.score_by_distance(**how).numbers.splitlines()[1:]]
    first, second = rows()
    assert first == second
    assert rows(kind="key not rotated")[0] != first
    assert len(set(rows(kind="key not rotated")[0].split(", "))) == 1


def test_a_wrong_formula_is_not_called_rounding():
    wrong = [("float64", 0.5), ("float32", 0.5)]
    *_, right, spoilt = plots.dtype_ladder([("float64", 6.6), ("float32", 5.9)], wrong).numbers.splitlines()
    assert right.endswith("so it is rounding") and spoilt.endswith("0.5, 0.5, so it is not rounding")


def test_no_two_series_share_colour_or_marker_or_dash_or_hatch():
    for values in zip(*drawing.LOOKS, strict=True):
        assert len(set(values)) == len(drawing.LOOKS)


def contrast(color, page=(1, 1, 1)) -> float:
    """Contrast ratio of two colours (WCAG 2.2)."""
    def luminance(rgb):
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(rgb)]
        return np.dot(linear, [0.2126, 0.7152, 0.0722])
    low, high = sorted((luminance(color), luminance(page)))
    return (high + 0.05) / (low + 0.05)


def test_series_stand_out_from_the_page():
    """3 to 1 is what WCAG 2.2 asks of graphics, and 4.5 to 1 of text."""
    assert contrast("black") == pytest.approx(21)
    assert min(contrast(look.color) for look in drawing.LOOKS) >= 3
    assert contrast(drawing.INK) >= 4.5


def test_all_text_stands_out_from_what_it_stands_on(plot):
    """White, and in diagrams the boxes."""
    grounds = [(1, 1, 1)]
    if not plot.figure.axes[0].axison:
        grounds += [patch.get_facecolor()[:3] for patch in plot.figure.findobj(Rectangle) if patch.get_fill()]
    colours = {text.get_color() for text in plot.figure.findobj(Text) if text.get_text().strip()}
    assert min(contrast(colour, ground) for colour in colours for ground in grounds) >= 4.5


def test_the_style_file_is_the_look_of_figures_and_of_nothing_else():
    before = dict(matplotlib.rcParams)
    figure, ax = drawing.axes(2.0)
    with drawing.style():
        inside = matplotlib.rcParams["axes.prop_cycle"]
    assert [color["color"] for color in inside] == [look.color for look in drawing.LOOKS]
    assert not ax.spines["top"].get_visible() and not ax.spines["right"].get_visible() and ax.get_axisbelow() is True
    drawing.finish(figure, "an empty figure", ["0"]).png()
    assert dict(matplotlib.rcParams) == before
    file = ROOT / "mla_lab" / "data" / "style.mplstyle"
    with matplotlib.style.context("mla_lab.data.style"):  # as its first line says
        assert matplotlib.rcParams["axes.prop_cycle"] == inside and file.exists()


@pytest.mark.parametrize(("values", "white"), [([[3.0]], False), ([[3.0, 3.0]], False), ([[-2.0]], False),
                                               ([[0.0, 0.0]], True), ([[-np.inf]], None)])
def test_a_matrix_of_one_value_is_coloured_unless_it_is_zero(values, white):
    """It was once drawn white whatever it held."""
    image = plots.heat(np.array(values), "all alike", "row", "column").figure.axes[0].images[0]
    shades = {tuple(np.round(image.to_rgba(image.get_array())[0, 0, :3], 2))}
    assert (shades == {(1.0, 1.0, 1.0)}) is bool(white)


def test_singular_values_are_counted_from_one():
    for n in (1, 2, 3, 12, 300):
        plot = plots.spectrum({"falling": np.linspace(2, 1, n)}, 1)
        low, high = plot.figure.axes[0].get_xlim()
        ticks = [t for t in plot.figure.axes[0].get_xticks() if low <= t <= high]
        assert ticks and min(ticks) >= 1 and all(t == int(t) for t in ticks)


# --- the files --------------------------------------------------------------------------------------------------------


def test_files_are_complete_and_the_same_twice(tmp_path):
    """Once from here and once by the command, in a process that treats warnings as errors."""
    here, there = tmp_path / "here", tmp_path / "there"
    files = figures.write_figures(here)
    assert {p.name for p in files} == {f"{name}.{end}" for name in figures.README for end in ("png", "md")}
    assert sorted(files) == sorted(here.iterdir())  # nothing half-written stays
    command = [sys.executable, "-W", "error", "-m", "mla_lab.figures", str(there)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [str(there / p.name) for p in files]
    assert [p.read_bytes() for p in files] == [(there / p.name).read_bytes() for p in files]


def test_an_interrupted_run_leaves_the_old_file(tmp_path, monkeypatch):
    old = tmp_path / "cache_sizes.png"
    old.write_bytes(b"old")

    def stop(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(figures.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        figures.write_figures(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["cache_sizes.png"] and old.read_bytes() == b"old"


def test_the_stored_figures_say_what_the_package_says():
    """PNG bytes differ between versions of a font library, so the words are held."""
    for name in figures.README:
        assert (ROOT / "figures" / f"{name}.png").stat().st_size > 5000
        assert (ROOT / "figures" / f"{name}.md").read_text("utf-8") == figures.words(figures.README[name]())


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"]])
def test_bad_usage_is_one_line(arguments, capsys):
    assert figures.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m mla_lab.figures FOLDER\n"


def test_a_folder_that_cannot_be_is_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert figures.main([str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- each rule is seen to fail ----------------------------------------------------------------------------------------


def test_text_that_cannot_be_read_is_seen():
    figure, ax = drawing.canvas(2.0)
    drawing.box(ax, 2.0, 1.0, "far too long for its box", width=0.8)
    ax.text(7.5, 1.5, "beyond the edge")
    ax.text(5.0, 0.5, "one")
    ax.text(5.05, 0.5, "other")
    assert outside_their_box(figure) == ["far too long for its box"]
    assert cut_off(figure) == ["beyond the edge"]
    assert overlapping(figure) == [("one", "other")]
