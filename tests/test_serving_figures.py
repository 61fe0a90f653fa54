"""Figures of notebooks 12 and 13: their numbers are those of the model, and each can be drawn."""
from __future__ import annotations

import math
import re

import pytest

from mla_lab.models import get_model
from mla_lab.serving import plots, serving_plots
from mla_lab.serving.capacity import Deployment
from mla_lab.serving.gpus import get_gpu
from mla_lab.serving.parameters import parameters
from mla_lab.serving.requests import Request, Result
from mla_lab.serving.step import decode_step
from mla_lab.serving.workload import Sweep

V3 = get_model("DeepSeek-V3")


def lines(plot) -> dict[str, str]:
    """What a figure prints, by what stands before the colon."""
    return dict(line.split(": ", 1) for line in repr(plot).splitlines() if ": " in line)


def _words(text: str) -> str:
    return " ".join(text.split())


def request(arrival: float, first: float, last: float, outputs: int = 11) -> Request:
    return Request(arrival, 100, outputs, first, last, outputs)


def runs() -> dict[str, Sweep]:
    """Two arrangements at 1 and 2 requests a second; the second one is late at 2."""
    good, late = Result((request(0, 0.5, 1.0),), (1.0,), 1.0), Result((request(0, 0.5, 2.5),), (1.0,), 2.5)
    return {"quick": Sweep("quick", (1.0, 2.0), (good, good)), "slow": Sweep("slow", (1.0, 2.0), (good, late))}


@pytest.mark.parametrize("make", [
    lambda: serving_plots.token_times({"one": [request(0, 0.5, 1.5)], "other": [request(0.25, 1, 4)]}),
    serving_plots.step_terms, serving_plots.transfer_times, lambda: serving_plots.served_in_time(runs()),
    lambda: serving_plots.at_limits(runs(), 1.0, 0.06), plots.bytes_on_each_gpu, plots.users_that_fit,
    lambda: plots.users_that_fit(gpu="H20", context=131072, weight_dtype="bf16"),
])
def test_every_figure_is_drawn_and_described(make):
    plot = make()
    assert plot.png().startswith(b"\x89PNG") and _words(repr(plot).splitlines()[-1]) in _words(plot.alt)


def test_token_times():
    plot = serving_plots.token_times({"one": [request(0, 0.5, 1.5)], "other": [request(0.25, 1, 4, 4)]})
    assert lines(plot)["other, request 0"] == "0.25, 1.00, 4.00; 1000 ms a token"


@pytest.mark.parametrize("parallel", ["tp", "dp"])
def test_step_terms(parallel):
    d = Deployment(V3, get_gpu("H200"), 8, parallel, 8192, parameters(V3))
    shown = lines(serving_plots.step_terms((1, 16, 512), parallel))
    for name, term in (("reading weights", "weights"), ("products with them", "products"), ("communication",) * 2,
                       ("reading the cache", "cache"), ("attention arithmetic", "attention")):
        for users, text in zip((1, 16, 512), shown[name].split(", "), strict=True):
            assert math.isclose(float(text), 1e3 * getattr(decode_step(d, users), term), rel_tol=5e-3)
    assert shown["users that fit"] == str(d.users())


def test_transfer_times_are_tokens_over_a_link():
    shown = lines(serving_plots.transfer_times((4096, 8192), gigabits=200))
    assert shown["sending MLA's cache"] == "11.5, 23.0"  # 4,096 x 61 x 576 x 2 B / 25 GB/s
    assert shown["sending MHA's cache"] == "655.0, 1310.0"


def test_in_time():
    shown = lines(serving_plots.served_in_time(runs(), limits=(0.04, 0.06, 0.3)))
    assert (shown["ms"], shown["quick"], shown["slow"]) == ("40, 60, 300", "0, 2, 2", "0, 1, 2")
    shown = lines(serving_plots.at_limits(runs(), 1.0, 0.06))
    assert (shown["quick"], shown["slow"]) == ("2", "1")
    assert lines(serving_plots.at_limits(runs(), 0.4, 0.06))["quick"] == "0"  # no first token within 0.4 s


def test_users_that_fit_are_those_of_the_capacity_model():
    numbers = [int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", repr(plots.users_that_fit()))]
    for parallel in ("tp", "dp"):
        assert Deployment(V3, get_gpu("H200"), 8, parallel, 8192, parameters(V3)).users() in numbers
