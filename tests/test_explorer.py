"""The explorer: its numbers are the suite's, what is impossible is said in place, and it can be shared."""
from __future__ import annotations

import json
import math
import random
import re
from dataclasses import fields, replace
from xml.etree import ElementTree

import pytest

from mla_lab import footprint as fp
from mla_lab.errors import InputError
from mla_lab.explorer import numbers as nb
from mla_lab.explorer import svg
from mla_lab.explorer.section import Section
from mla_lab.explorer.sections import sections
from mla_lab.explorer.setup import MOST, Setup, from_query, of_config, of_model, to_query
from mla_lab.models import get_model, models
from mla_lab.serving.gpus import GPUS, get_gpu

V3 = Setup()
ODD = replace(V3, hidden_size=40, num_attention_heads=3, q_lora_rank=17, kv_lora_rank=19, qk_nope_head_dim=11,
              qk_rope_head_dim=6, v_head_dim=13, groups=3, tp=1, new_tokens=2, context=5)


def one_gpu(**how) -> Setup:
    return replace(V3, tp=1, **how)


def mla_step(setup: Setup, endless: bool = False) -> nb.Step:
    return nb.step(setup, nb.attention(setup, "MLA"), endless)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_start_is_deepseek_v3():
    assert of_model(get_model("DeepSeek-V3")) == V3 == from_query("")
    assert get_gpu(V3.gpu).memory_gb == V3.memory_gb


@pytest.mark.parametrize("name", [model.name for model in models() if model.mla])
def test_the_cache_is_the_footprint_of_the_model(name):
    model = get_model(name)
    setup = replace(of_model(model), context=777, batch=5)
    assert nb.total_bytes(setup, nb.attention(setup, "MLA")) == fp.cache_bytes(model, 777, 5)


def test_published_intensities():
    """241.8 FLOP/B over an endless bf16 cache; 424.6 over rows of 656 B; 2 h 1088 s / (1152 s + 2 h 1088)."""
    assert round(mla_step(one_gpu(), True).intensity, 1) == 241.8
    assert round(mla_step(one_gpu(dtype="fp8-tile"), True).intensity, 1) == 424.6
    s = V3.context
    assert mla_step(one_gpu()).intensity == pytest.approx(2 * 128 * 1088 * s / (1152 * s + 2 * 128 * 1088), rel=1e-12)
    assert mla_step(one_gpu(batch=7)).intensity == mla_step(one_gpu()).intensity
    assert mla_step(V3, True).intensity == mla_step(one_gpu(), True).intensity / 8  # a latent is not dealt out


def test_h800_and_h200_fall_on_different_sides():
    bound = {gpu: sections(one_gpu(gpu=gpu))["roofline"].rows[-1][1] for gpu in ("H800", "H200")}
    assert bound == {"H800": "memory", "H200": "arithmetic"}


def test_both_modes_and_their_crossover():
    """170.7 new tokens over an endless cache, 149 over 512."""
    few, many = (sections(one_gpu(new_tokens=t, context=512))["crossover"] for t in (148, 150))
    assert "Absorbed needs fewer here." in few.says and "Naive needs fewer here." in many.says
    assert "131,072 / 768 = 170.7 new tokens" in few.says[-1] and "at 148.9 over 512 cached" in few.says[-1]
    h, r, n, p, v = 3, 19, 11, 6, 13
    seen = range(6, 8)  # keys of each of two new tokens after five
    naive = h * (2 * 7 * r * (n + v) + sum(2 * s * (n + p) + 2 * s * v for s in seen))
    absorbed = h * (2 * 2 * r * (n + v) + sum(2 * s * (r + p) + 2 * s * r for s in seen))
    odd = sections(ODD)["crossover"]
    assert [row[1] for row in odd.rows] == [f"{x:,} FLOP" for x in (naive, absorbed)]


SHORT = replace(V3, context=128, batch=5, weights_gb=674.0)  # so short that queries and outputs count
GB, GIB = 10**9, 2**30


def shown(section: str) -> dict[str, tuple[str, ...]]:
    """The rows of a table by their first cells."""
    return {row[0]: row[1:] for row in sections(SHORT)[section].rows}


def test_the_cache_as_it_is_shown_by_hand():
    """61 layers, 640 tokens, 2 B a value: units, layers and the picture's words too."""
    for name, values in {"MHA": 2 * 128 * 128, "GQA-8": 2 * 8 * 128, "MQA": 2 * 128, "MLA": 576}.items():
        row, token = shown("cache")[name], 61 * 2 * values
        assert row[1:4] == (f"{2 * values:,}", f"{100 * values / 32768:.2f} %", f"{token:,}")
        for cell, unit, size in zip(row[4:], ("GB", "GiB"), (GB, GIB), strict=True):
            assert cell == f"{token * 640 / size:,.2f}".rstrip("0").rstrip(".") + f" {unit}"
    drawn = ElementTree.fromstring(sections(SHORT)["cache"].picture)
    said = "; ".join(f"{name}: {row[4]}" for name, row in shown("cache").items())
    assert drawn[1].text == f"{said}; line at all memory of 8 x H200, 1,128 GB. {FIXED} 1 MB to 1 PB."


FIXED = "Fixed logarithmic scale from"


def marks(section: str, **how) -> tuple[dict[str, float], list[str]]:
    """How far right each kind's mark stands in a picture, and the picture's words."""
    picture = ElementTree.fromstring(sections(replace(SHORT, **how))[section].picture)
    at = {part.get("d"): float(re.findall(r"[\d.]+", part.get("transform"))[0]) for part in picture.iter()
          if part.get("transform")}
    words = [part.text for part in picture.iter() if part.tag.endswith("text")]
    return {kind: at[path] for kind, path in svg.MARKS.items() if path in at and kind in nb.KINDS}, words


def test_the_scale_stays_and_the_marks_move():
    """400 pixels for the nine decades from 1 MB to 1 PB, from 90 on: a tenfold cache is always as far to the right."""
    first, more, many = (marks("cache", **how)[0] for how in ({}, {"context": 1280}, {"batch": 50}))
    assert more == many and set(first) == set(nb.KINDS)
    for kind, values in {"MHA": 2 * 128 * 128, "GQA": 2 * 8 * 128, "MQA": 2 * 128, "MLA": 576}.items():
        decades = math.log10(61 * 2 * values * 640) - 6
        assert first[kind] == pytest.approx(90 + 400 * decades / 9, abs=0.06)
        assert more[kind] - first[kind] == pytest.approx(400 / 9, abs=0.11)
    picture = ElementTree.fromstring(sections(SHORT)["cache"].picture)
    line, = (part for part in picture.iter() if part.get("stroke-dasharray"))
    assert float(line.get("x1")) == pytest.approx(90 + 400 * (math.log10(8 * 141e9) - 6) / 9, abs=0.06)
    users, fewer = marks("fit")[0], marks("fit", context=1280)[0]
    assert all(users[kind] - fewer[kind] == pytest.approx(400 / 6, abs=0.5) for kind in users)


def test_a_scale_is_honest_at_its_ends():
    """What is off it says so by an arrow, nothing that is none has a mark, and it is said that the scale has no 0."""
    low, high = marks("cache", context=1, batch=1), marks("cache", context=2**20, batch=2**12)
    assert low[0]["MLA"] == 90 and high[0]["MHA"] == 490
    assert "\u2190" in low[1] and "\u2192" in high[1] and not {"\u2190", "\u2192"} & {*marks("cache")[1]}
    assert "70,272 B" in low[1]  # not 0 GB
    assert "logarithmic scale, fixed: it starts at 1 MB, not at 0" in low[1]
    assert marks("fit", context=2**20, batch=2)[0].keys() == {"GQA", "MQA"}
    assert "0 users" in marks("fit", context=2**20)[1] and "requests: 2" in marks("fit", batch=2)[1]


def test_a_reason_is_given_once():
    for section in ("fit", "roofline"):
        rows = sections(replace(V3, tp=3, groups=7))[section].rows
        assert [row[0] for row in rows] == ["MHA, MQA, MLA", "GQA-7"] and len({row[1] for row in rows}) == 2


def test_what_fits_as_it_is_shown_by_hand():
    """0.9 x 141 - 674 / 8 GB on each GPU; 128 tokens are two pages."""
    room = 126.9 - 674 / 8
    assert f"141 GB x 0.9 - 674 GB / 8 = {room:.2f} GB" in sections(SHORT)["fit"].text.replace("\n", " ")
    for name, values in {"MHA": 2 * 16 * 128, "GQA-8": 2 * 128, "MQA": 2 * 128, "MLA": 576}.items():
        token = 61 * 2 * values
        assert shown("fit")[name][:2] == (f"{int(room * GB // (128 * token)):,}", f"{token:,}")


def test_the_roofline_as_it_is_shown_by_hand():
    """Of 16 heads on a GPU; 989 TFLOP/s and 4.8 TB/s."""
    for name, row, looks in (("MHA", 16 * 256, 256), ("GQA-8", 256, 256), ("MQA", 256, 256), ("MLA", 576, 1088)):
        flops, moved = 2 * 16 * 128 * looks, 2 * (128 * row + 16 * looks)
        seconds = 5 * 61 * max(flops / 989e12, moved / 4.8e12)
        assert shown("roofline")[name] == ("memory", f"{flops / moved:.1f}", f"{16 * looks / row:.1f}",
                                           f"{flops / moved * 4.8:,.0f}", f"{1e3 * seconds:,.3g}")
    busy = sections(replace(SHORT, new_tokens=64, context=8192))["roofline"].rows[3]
    assert busy[1] == "arithmetic" and busy[4] == "989"
    assert busy[5] == f"{1e3 * 5 * 61 * 2 * 16 * 64 * 8192 * 1088 / 989e12:,.3g}"
    assert f"ridge at {989 / 4.8 * 1152 / (2 * 1088):.1f} heads x new tokens" in sections(SHORT)["roofline"].text


def test_the_modes_as_they_are_shown_by_hand():
    move, projections = 512 * 256, 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 128 * 128 * 7168
    naive, absorbed = 2 * 128 * (129 * move + 129 * 320), 2 * 128 * (move + 129 * 1088)
    assert shown("crossover") == {"naive": (f"{naive / GB:.4g} GFLOP", f"{naive / absorbed:.3g}"),
                                  "absorbed": (f"{absorbed / 10**6:.4g} MFLOP", "1")}
    assert f"{2 * projections / 10**6:.4g} MFLOP on projections" in " ".join(sections(SHORT)["crossover"].says)


def test_words_from_outside_stay_words_in_a_section():
    made = Section("<t>", ("<h>", "b"), (("<c>", "<d>"), ("<why>",)), ("<s>",))
    tree = ElementTree.fromstring(made.html)
    assert [part.text for part in tree.iter() if part.text] == ["<t>", "<h>", "b", "<c>", "<d>", "<why>", "<s>"]


def test_users_count_the_index_keys_as_capacity_does():
    """GLM-5: 78 x 1,152 B of latents and 78 x 132 B of index keys."""
    glm = of_model(get_model("GLM-5"))
    assert glm.index_layers == 78
    assert nb.deployment(glm, nb.attention(glm, "MLA")).token_bytes_per_gpu() == 78 * (1152 + 132)
    assert nb.deployment(glm, nb.attention(glm, "GQA")).token_bytes_per_gpu() == 78 * 2 * 256 * 2  # a group a GPU


def test_users_fill_the_memory_and_no_more():
    for kind in nb.KINDS:
        d = nb.deployment(V3, nb.attention(V3, kind))
        used = d.users() * d.padded_context() * d.token_bytes_per_gpu()
        assert used <= d.cache_room_per_gpu() < used + d.padded_context() * d.token_bytes_per_gpu()


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "section", "says"),
    [
        ({"qk_rope_head_dim": 63}, "cache", "MLA .*must be even, because RoPE turns pairs, not 63"),
        ({"qk_rope_head_dim": 63}, "crossover", "must be even"),
        ({"qk_rope_head_dim": 63}, "limits", "No claim about MLA applies"),
        ({"qk_rope_head_dim": 0}, "cache", "No rope key"),
        ({"groups": 7}, "cache", "GQA-7 .*groups must divide num_attention_heads 128"),
        ({"groups": 7}, "fit", "GQA-7 .*groups must divide"),
        ({"tp": 3}, "fit", "tp must divide num_attention_heads 128, not 3.*`python -m mla_lab capacity --parallel dp`"),
        ({"tp": 3}, "roofline", "tp must divide num_attention_heads 128, not 3"),
        ({"dtype": "fp8-tile"}, "cache", "MHA, GQA-8, MQA .*is a layout of MLA rows"),
        ({"weights_gb": 0.0}, "fit", "weights of DeepSeek-V3 are not known here"),
        ({"weights_gb": 1029.0}, "fit", "weights of 1,029 GB"),
        ({"memory_gb": 80.0}, "fit", "weights: they do not fit"),
        ({"batch": 4096}, "fit", "4,096 requests are more than fit with MLA"),
        ({"kv_lora_rank": 128}, "crossover", "There is no crossover: 2r = 256 is not above n \\+ v = 256"),
        ({"kv_lora_rank": 4096}, "cache", "MLA saves nothing here: its row of 8,320 B"),
        ({"num_attention_heads": 4, "tp": 1}, "limits", "keys of all heads are h n = 512 wide"),
        ({"num_attention_heads": 4, "tp": 1}, "limits", "values of all heads are h v = 512 wide"),
        ({"num_attention_heads": 1, "groups": 1, "tp": 1}, "limits", "with one head MHA is MQA"),
        ({"num_attention_heads": 1, "groups": 1, "tp": 1}, "limits", "r \\+ p = 576 values, MHA 2 h v = 256"),
        ({"context": 512}, "limits", "512 tokens have no rank above 512"),
        ({"new_tokens": 8192}, "roofline", "this is prefill"),
        ({"layers": 0}, "cache", "layers must be a whole number of at least 1, not 0"),
        ({"index_layers": 7}, "cache", "index keys of sparse attention in 7 layers, 924 B a token in fp8"),
        ({"index_layers": 7}, "roofline", "rows that its indexer chose"),
        ({"index_layers": 62}, "cache", "index_layers must be from 0 to the 61 cached layers, not 62"),
        ({}, "limits", "every claim has something to say"),
    ],
)
def test_what_is_impossible_or_vacuous_is_said_in_place(change, section, says):
    made = sections(replace(V3, **change))[section]
    assert re.search(says, made.text.replace("\n", " "))
    if change:
        assert not re.search(says, sections(V3)[section].text.replace("\n", " "))


ANY = [0, 1, 2, 3, 7, 64, 128, 8192, MOST]
FRACTIONS = [1 / 3, 671.0264192, 1e-9, 1234567.0, 0.30000000000000004]


def any_setup(draw: random.Random) -> Setup:
    """Values that a person could type, most of them wrong together."""
    pick = {"gpu": [gpu.name for gpu in GPUS], "dtype": list(fp.CACHE_DTYPES), "model": ["<script>", "x&y", "Kimi-K3"]}
    moved = [f for f in fields(Setup) if draw.random() < 0.4]
    pick |= {name: ANY + FRACTIONS for name in ("memory_gb", "weights_gb")}
    return replace(V3, **{f.name: type(f.default)(draw.choice(pick.get(f.name, ANY))) for f in moved})


def test_no_input_raises_and_every_picture_is_an_image_with_words():
    draw = random.Random(5)
    for _ in range(300):
        setup = any_setup(draw)
        for section in sections(setup).values():
            assert "<script" not in section.html and "nan" not in section.text.split()
            assert section.text.strip()
            tree = ElementTree.fromstring(f"<p>{section.html}</p>")
            for image in tree.iter("{http://www.w3.org/2000/svg}svg"):
                assert image.get("role") == "img" and image[0].text and image[1].text
                assert {image[0].tag[-5:], image[1].tag[-4:]} == {"title", "desc"}
                assert outside(image) == []


def outside(image: ElementTree.Element) -> list[str]:
    """Points of a picture that do not lie in it."""
    found, size = [], [float(side) for side in image.get("viewBox").split()[2:]]
    for part in image.iter():
        points = [(part.get("x" + i), part.get("y" + i)) for i in ("", "1", "2") if part.get("x" + i)]
        if part.get("width") and part.tag.endswith("rect"):
            points.append((float(part.get("x")) + float(part.get("width")), part.get("y")))
        drawn = part.get("transform", part.get("d", ""))
        points += [] if "rotate" in drawn else re.findall(r"([-\d.]+),([-\d.]+)", drawn)
        found += [f"{x}, {y}" for x, y in points if not (0 <= float(x) <= size[0] and 0 <= float(y) <= size[1])]
    return found


def test_words_in_a_picture_are_words():
    drawn = svg.picture("<t>", "<d>", 10, [svg.text(1, 2, "<w>")])
    assert "<t>" not in drawn and "<d>" not in drawn and "<w>" not in drawn
    assert [part.text for part in ElementTree.fromstring(drawn)] == ["<t>", "<d>", "<w>"]


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_pictures_have_contrast_on_light_and_on_dark_pages(page):
    """At least 3 to 1 for graphical objects (WCAG 2.2, 1.4.11)."""
    assert contrast("#000000", "#ffffff") == 21
    assert min(contrast(color, page) for color in svg.COLORS.values()) >= 3
    assert set(svg.COLORS) == set(svg.MARKS)


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_a_link_brings_every_value_back():
    draw = random.Random(6)
    for _ in range(300):
        setup = any_setup(draw)
        assert from_query(to_query(setup)) == from_query("?" + to_query(setup)) == setup
    assert to_query(V3) == "model=DeepSeek-V3"
    assert from_query("gpu=h800").memory_gb == 80  # a GPU brings its memory along


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("contxt=1", "value 'contxt' is not known; did you mean 'context'"),
        ("context=1.5", "context must be a whole number from 0 to 1,000,000,000, not '1.5'"),
        ("context=", "context must be a whole number"),
        ("context=-1", "context must be a whole number"),
        ("memory_gb=nan", "memory_gb must be a number from 0"),
        ("gpu=H2000", "GPU 'H2000' is not known; did you mean 'H200'"),
        ("model=Kimi-K", "the link gives no hidden_size, and model 'Kimi-K' is not known; did you mean 'Kimi-K3'?"),
        ("model=Llama-3.1-8B&hidden_size=1", "the link gives no num_attention_heads, and Llama-3.1-8B is not MLA"),
        ("model=this+model&hidden_size=40&num_attention_heads=3&q_lora", "value 'q_lora' is not known"),
        ("model=%00", "model must be printable text"),
        (10**6 * "x", "... is not known"),
        ("dtype=bf61", "cache dtype 'bf61' is not known; did you mean 'bf16'"),
    ],
)
def test_a_bad_link_is_refused(query, says):
    with pytest.raises(InputError, match=re.escape(says)) as refused:
        from_query(query)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("cut", ["hidden_size", "kv_lora_rank", "layers"])
def test_a_link_that_lost_a_dimension_shows_no_other_model(cut):
    """A pasted model is known to nobody else: without its dimensions nothing stands for it."""
    query = to_query(of_config(json.dumps(CONFIG | V3_DIMS)))
    assert from_query(query) == of_config(json.dumps(CONFIG | V3_DIMS))
    with pytest.raises(InputError, match=f"the link gives no {cut}, and model 'this model' is not known"):
        from_query(re.sub(f"&{cut}=[0-9]+", "", query))


CONFIG = {"num_hidden_layers": 3, "hidden_size": 40, "num_attention_heads": 3, "kv_lora_rank": 19, "v_head_dim": 13,
          "qk_nope_head_dim": 11, "qk_rope_head_dim": 6, "q_lora_rank": 17, "rope_theta": 10000}
V3_DIMS = {"num_hidden_layers": 61, "hidden_size": 7168, "kv_lora_rank": 512}  # no less said for being the same


def test_a_pasted_config():
    setup = of_config(json.dumps(CONFIG))
    assert (setup.layers, setup.num_attention_heads, setup.q_lora_rank, setup.model) == (3, 3, 17, "this model")
    assert setup.weights_gb == 0  # an architecture whose matrices are not all known
    assert of_config("\ufeff" + json.dumps(CONFIG)) == setup
    assert of_config(json.dumps(CONFIG | {"index_head_dim": 128})).index_layers == 3


@pytest.mark.parametrize("name, called", [
    ("\ud800", "this model"), ("a\x00\nb", "ab"), (5, "this model"), ("x" * 100, "x" * 60), ("deep/er/", "er")])
def test_a_pasted_name_can_be_shown_and_linked(name, called):
    setup = of_config(json.dumps(CONFIG | {"_name_or_path": name}))
    assert setup.model == called and from_query(to_query(setup)) == setup


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":', "this is not JSON: Expecting value at line 1, column 6"),
        ("[1]", "this must be a JSON object, not list"),
        ("null", "this must be a JSON object, not null"),
        ('{"kv_lora_rank": 512, "kv_lora_rank": 256}', "the key 'kv_lora_rank' stands twice"),
        (" " * (16 * 2**20 + 1), "larger than 16,777,216 bytes"),
        (json.dumps({**CONFIG, "index_head_dim": 64}), "index_head_dim must be 128, as in every published model"),
        ("[" * 100_000, "nested too deep"),
        ("{}", "num_hidden_layers is missing"),
        (json.dumps({**CONFIG, "kv_lora_rank": None, "qk_nope_head_dim": None, "qk_rope_head_dim": None,
                     "q_lora_rank": None, "v_head_dim": None, "head_dim": 8}), "is not MLA"),
    ],
)
def test_a_bad_paste_is_refused(text, says):
    with pytest.raises(InputError, match=re.escape(says)):
        of_config(text)


# --- controls ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def explorer():
    pytest.importorskip("ipywidgets")
    from mla_lab.explorer.widgets import explore
    return explore()


@pytest.mark.parametrize("name", [f.name for f in fields(Setup) if isinstance(f.default, int)])
def test_every_field_and_slider_changes_words(explorer, name):
    before, number = explorer.shown.value, explorer.numbers[name]
    start = number.slider.value
    number.slider.value = start + number.step if number.step else 2 * start
    assert explorer.shown.value != before and explorer.text
    assert getattr(explorer.setup, name) == number.slider.value > start
    explorer[name].value = 10**6  # beyond the slider, which waits at its end; a menu takes it in
    assert getattr(explorer.setup, name) == 10**6
    assert number.slider.value == (number.slider.max if number.step else 10**6)


def test_what_doubles_is_written_out(explorer):
    """A slider over powers of two would tell a screen reader its exponent."""
    doubling = {name for name, number in explorer.numbers.items() if not number.step}
    assert doubling == {"context", "batch", "new_tokens", "tp"}
    menu = explorer.numbers["context"].slider
    assert menu.label == "8,192" and menu.options[-1] == ("1,048,576", 2**20)
    assert menu.description == "cached tokens, usual values"
    explorer["context"].value = 5000
    assert menu.label == "5,000" and [label for label, _ in menu.options[12:15]] == ["4,096", "5,000", "8,192"]
    menu.value = 8192
    assert explorer.setup.context == 8192
    explorer["context"].value = 6000  # nothing else unusual stays
    assert len(menu.options) == 22 and "5,000" not in dict(menu.options)


def test_the_way_back_to_a_model(explorer):
    """Choosing the chosen model again is no change, so there is a button."""
    explorer["kv_lora_rank"].value, explorer["context"].value = 100, 99
    explorer["weights_gb"].value = 1
    explorer.reset.click()
    assert explorer.setup == replace(V3, context=99)  # the load is the reader's
    assert explorer.reset.description == "Back to DeepSeek-V3 as it is"
    explorer.pasted.value = json.dumps(CONFIG)
    explorer.use.click()
    pasted = explorer.setup
    explorer["kv_lora_rank"].value = 100
    assert explorer.reset.description == "Back to this model as it is"
    explorer.reset.click()
    assert explorer.setup == pasted
    explorer["model"].value = "DeepSeek-V3"
    explorer["model"].value = "this model"
    assert explorer.setup == pasted and not explorer.problem.value


def test_a_linked_model_has_a_way_back_too():
    widgets = pytest.importorskip("mla_lab.explorer.widgets")
    setup = of_config(json.dumps(CONFIG))
    page = widgets.explore(to_query(setup))
    page["kv_lora_rank"].value = 100
    page.reset.click()
    assert page.setup == setup and not page.problem.value


def test_nothing_scrolls_in_the_page(explorer):
    assert all(box.layout.max_height is box.layout.overflow is None for box in explorer.children[0].children)


def test_choosing(explorer):
    drawn = []
    explorer.shown.observe(drawn.append, names="value")
    explorer["model"].value = "DeepSeek-V2-Lite"
    assert len(drawn) == 1  # not once for each dimension
    assert explorer.setup == replace(of_model(get_model("V2-Lite")), gpu="H200")
    explorer["gpu"].value = "H800"
    assert explorer.setup.memory_gb == 80
    assert explorer.cell.value == 'explore("model=DeepSeek-V2-Lite&gpu=H800")'
    explorer["dtype"].value = "fp8"
    assert "Bytes in fp8" in explorer.shown.value


def test_pasting(explorer):
    explorer.pasted.value = json.dumps(CONFIG)
    explorer.use.click()
    assert explorer.setup.kv_lora_rank == 19 and explorer["model"].value == "this model" and not explorer.problem.value
    explorer.pasted.value = "<b>"
    explorer.use.click()
    assert "this is not JSON" in explorer.problem.value and explorer.setup.kv_lora_rank == 19


def test_the_text_is_there_without_widgets(explorer):
    assert explorer._repr_mimebundle_()["text/plain"] == explorer.text
    assert "170.7" in explorer.text


def test_the_link_of_the_page(monkeypatch):
    widgets = pytest.importorskip("mla_lab.explorer.widgets")
    monkeypatch.setenv("QUERY_STRING", "kv_lora_rank=256&context=<script>")
    assert not widgets.explore().problem.value  # not a page of its own, whose address would matter
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5")
    page = widgets.explore()
    assert page.setup == V3 and "context must be a whole number" in page.problem.value
    assert "<script" not in page.problem.value
    monkeypatch.setenv("QUERY_STRING", "kv_lora_rank=256")
    assert widgets.explore().setup.kv_lora_rank == 256
    assert 'href="?model=DeepSeek-V3&amp;kv_lora_rank=256"' in widgets.explore().link.value
    assert "text-decoration:underline" in widgets.explore().link.value
