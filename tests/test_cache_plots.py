"""Figures of notebooks 10 and 11: numbers and words beside each, and the numbers are the ones computed."""
import pytest

from mla_lab.serving import cache_plots as plots
from mla_lab.serving.page_size import page_cost
from mla_lab.serving.quantize import FORMATS, quantize, relative
from mla_lab.serving.traces import Chat, Trace, synthetic

TRACE = synthetic(Chat(requests=30), seed=9)
AZURE = Trace("lengths alone", TRACE.requests, None)
MAKE = {
    "page_costs": lambda: plots.page_costs([page_cost(TRACE, s) for s in (1, 16, 64)]),
    "page_costs without prefixes": lambda: plots.page_costs([page_cost(AZURE, s) for s in (16, 256)], marked=16),
    "pages_of": lambda: plots.pages_of(TRACE, 64, requests=5),
    "hit_share_by_memory": lambda: plots.hit_share_by_memory((1, 2), {"MLA": (0.5, 0.75), "MHA": (0, 0.125)}, 0.8),
    "error_by_outlier": lambda: plots.error_by_outlier((0, 8, 16), [("e4m3", "tensor"), ("int8", "tile")], tokens=8),
    "errors_of_format": lambda: plots.errors_of_format("int6", 4, tokens=8),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_figure_has_numbers_and_words_and_is_the_same_twice(name):
    plot, again = MAKE[name](), MAKE[name]()
    assert any(c.isdigit() for c in plot.numbers) and len(plot.alt) > 60 and "\n" not in plot.alt
    assert plot.numbers == again.numbers and plot.alt == again.alt and plot.png() == again.png()
    for ax in plot.figure.axes:
        assert ax.get_xlabel()


def test_the_numbers_are_those_of_the_package():
    cost = page_cost(TRACE, 64)
    assert f"{cost.empty_slots:,}" in MAKE["page_costs"]().numbers and "unknown" in MAKE[
        "page_costs without prefixes"]().numbers
    rows = plots.with_outlier(8, 16)
    error = 100 * relative(quantize(rows, "int6", "tile").read()[:, 4:], rows[:, 4:])
    shown = float(MAKE["errors_of_format"]().numbers.splitlines()[-1].split()[-2])
    assert abs(shown - error) < 0.1 * error and len(FORMATS) == 6
    assert "62.5 %" not in MAKE["hit_share_by_memory"]().numbers and "75.0 %" in MAKE["hit_share_by_memory"]().numbers
