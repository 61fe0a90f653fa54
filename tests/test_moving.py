"""Figures that move: each can be read wherever its sliders stand, and says in words what stays and what does not."""
from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.text import Text
from test_plots import cut_off, overlapping

from mla_lab import footprint as fp
from mla_lab import get_model, moving
from mla_lab.arrays import fresh

SIGMA = np.concatenate([np.linspace(30, 4, 12), np.full(36, 1e-14)])
ROWS = 3 * fresh(1)(8, 7)
LOGITS = fresh(2)(24)
SIZES = {"mask_top_left": 3.381, "rope_key_cached_unrotated": 0.7, "scale_by_cached_width": 0.007, "query_at_zero": 0.0}
PLOTS = {
    **{f"gpus {tp}": (moving.per_gpu, {"tp": tp}) for tp in (1, 128)},
    **{f"rank {e}": (moving.rank, {"sigma": SIGMA, "radius": 1e-12, "exponent": e}) for e in (-18, -6, 2)},
    "rank, coarse": (moving.rank, {"sigma": np.maximum(SIGMA, 0.3), "radius": 1.2, "exponent": 0, "dtype": "bfloat16"}),
    **{f"pair {at}": (moving.pair, {"position": at, "distance": 7, "number": 3}) for at in (0, 64)},
    "pair": (moving.pair, {}),
    **{f"cache {used}": (moving.cache_rows, {"rows": ROWS, "used": used, "latent": 3, "expanded": 14})
       for used in (0, 5)},
    "logits": (moving.logits, {"naive": LOGITS, "absorbed": LOGITS, "exact": LOGITS, "guarantee": 1e-12 + 0 * LOGITS,
                               "dtype": "float64"}),
    "logits, coarse": (moving.logits, {"naive": LOGITS, "absorbed": LOGITS + 0.02, "exact": LOGITS,
                                       "guarantee": 0.01 + 0 * LOGITS, "dtype": "bfloat16"}),
    **{f"faults {e}": (moving.faults, {"sizes": SIZES, "exponent": e}) for e in (-4, -2)},
    "flop": (moving.flop, {}),
    "flop, ends": (moving.flop, {"new": 1024, "cached": 128, "r": 1024}),
    "flop, narrow latent": (moving.flop, {"new": 1, "r": 128}),
}


def words(name: str, **other) -> str:
    draw, arguments = PLOTS[name]
    return draw(**{**arguments, **other}).numbers


@pytest.mark.parametrize("name", PLOTS)
def test_it_can_be_read_and_says_what_it_shows(name):
    draw, arguments = PLOTS[name]
    plot = draw(**arguments)
    assert cut_off(plot.figure) == [] and overlapping(plot.figure) == []
    assert min(t.get_fontsize() for t in plot.figure.findobj(Text)) >= 10 and plot.figure.get_figwidth() <= 8
    assert re.search(r"\d", plot.numbers) and len(plot.alt) > 60
    assert not re.search(r"np\.float64| at 0x|nan|inf\b", plot.numbers + plot.alt)


def test_heads_are_dealt_out_and_a_latent_is_not():
    mha = replace(get_model("DeepSeek-67B"), num_key_value_heads=128)
    for tp in (1, 4, 8, 128):
        numbers = words("gpus 1", tp=tp)
        for name, model in (("MHA", mha), ("GQA-8", get_model("DeepSeek-67B")), ("MLA", get_model("DeepSeek-V3"))):
            each = fp.per_gpu_elements(model, tp)
            assert re.search(rf"^{name} +{each:,} on each, +{each * tp:,} together$", numbers, re.MULTILINE)


def test_the_count_is_one_number_over_the_plateau():
    assert "12 counted, the rank" in words("rank -6") and "12 counted, the rank" in words("rank -6", exponent=-12)
    assert "0 counted, 12 too few" in words("rank 2")
    assert "differs between machines" in words("rank -18") and "12 counted" not in words("rank -18")
    assert "from 1.0e-12 to 4 counts 12: a factor of 10^12" in words("rank -6")
    assert "from 1.2e+00 to 4 counts 12: a factor of 10^0" in words("rank, coarse")


def test_distance_and_score_stay_while_both_turn():
    first, later = words("pair", position=3).splitlines(), words("pair", position=40).splitlines()
    assert first[0] != later[0] and first[1].split(";")[0] != later[1].split(";")[0]
    assert first[1].split(";")[1] == later[1].split(";")[1] == " between them 0.2 rad"
    both = [re.search(r"score of all pairs: ([\d.-]+) \(both rotated\), ([\d.-]+)", x[2]) for x in (first, later)]
    assert both[0][1] == both[1][1] == "0.6409" and both[0][2] != both[1][2]  # notebook 03's score at a distance of 2
    assert "0.4912 (both rotated)" in words("pair", distance=3)
    turned = np.mean(np.cos((3 + 2) * 10000.0 ** (-np.arange(4) / 4)))  # a query five tokens on, a key at none
    assert f"{turned:.4f} (key not rotated)" in "\n".join(first)


def test_old_rows_stay_as_the_cache_grows():
    before, after = words("cache 5").splitlines(), words("cache 5", used=6).splitlines()
    assert before[1:6] == after[1:6] and len(after) == len(before) + 1
    assert after[0] == "after 6 tokens: 6 rows x (3 + 4) = 42 numbers; expanded keys and values: 6 x 14 = 84"


def test_what_leaves_the_guarantee_is_said():
    assert "equal to the bit: True; inside the guarantee: True" in words("logits")
    assert "equal to the bit: False; inside the guarantee: False" in words("logits, coarse")


def test_what_passes_a_tolerance():
    assert "2 of 2 faults pass" in moving.faults({"a": 0.1, "b": 0.05}, -1).numbers  # at the tolerance it passes
    assert words("faults -2").startswith("tolerance 0.01 of the output's rms size: 2 of 4 faults pass")
    assert "passes   0.007  scale_by_cached_width" in words("faults -2")
    assert words("faults -4").count("caught") == 3 and words("faults -2", exponent=1).count("passes") == 4


def test_the_crossover_behind_few_tokens():
    """Where 2 (2r - n - v) (t c + t (t + 1) / 2) = 2 r (n + v) c: halves of a token count there."""
    at = float(re.search(r"equal at ([\d.]+)", words("flop", cached=3))[1])
    assert at == pytest.approx(np.roots([0.5, 3.5, -3 * 512 * 256 / 768]).max(), abs=0.05)


def test_a_panel_follows_its_sliders():
    """Words, picture and description change together; what a text says is text."""
    widgets = pytest.importorskip("mla_lab.widgets")
    panel = widgets.Panel(lambda exponent: moving.faults({'<b> "c" & d': 0.1}, exponent),
                          exponent=widgets.slider("exponent", -4, -4, 2))

    def shown():
        """What reaches the page: widgets send nothing else."""
        tags, parser = [], HTMLParser()
        parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
        parser.feed(panel.picture.get_state()["value"])
        [(tag, image)] = tags
        assert tag == "img" and image["width"] == "720" and image["src"].startswith("data:image/png;base64,iVBORw0")
        return panel.text, panel.caption.value, image["src"], image["alt"]

    before = shown()
    panel["exponent"].value = 1
    after = shown()
    assert all(x != y for x, y in zip(before, after, strict=True))
    assert "passes" in panel.text and "<b>" not in panel.caption.value
    assert after[3] == panel.draw(exponent=1).alt and '<b> "c" & d' in after[3]  # escaped once, and read back whole


def test_the_crossover_is_where_the_lines_meet():
    assert "equal at 168.9 new tokens" in words("flop") and words("flop").splitlines()[1].endswith(": absorb")
    assert words("flop", new=168).splitlines()[1].endswith(": absorb")
    assert words("flop", new=169).splitlines()[1].endswith(": rebuild")
    assert words("flop, narrow latent").endswith("absorbing is cheaper for any number of new tokens")
