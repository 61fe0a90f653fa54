"""Every checker accepts the right answer, gives each known mistake its own hint, and takes whatever it is given."""
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import mla_lab
from mla_lab import example, get_model, recipe, rope, spectrum
from mla_lab import exercises as ex
from mla_lab import footprint as fp
from mla_lab.attention import Projected, attend
from mla_lab.decode import positions_from
from mla_lab.exercises.registry import EXERCISES, LEVELS, OPEN, RIGHT, Exercise, exercise
from mla_lab.exercises.symptoms import symptoms
from mla_lab.fp8 import spread
from mla_lab.read_config import read_config

ALL = ex.all_exercises()
BY_NAME = pytest.mark.parametrize("one", ALL, ids=lambda e: e.name)


class Hostile:
    """An object on which everything fails."""

    def __array__(self, *_, **__):
        raise RuntimeError("no")

    __eq__ = __float__ = __bool__ = __repr__ = __array__
    __hash__ = None


def leaves(*_):
    raise SystemExit(3)


def fails(*_):
    raise KeyError("x\ny")


BESTIARY = ["", "seventy", b"7", object(), Hostile(), [], [[1], [2, 3]], [None], {}, {1, 2}, float("nan"), float("inf"),
            1j, True, int, np.array(["a"]), np.zeros((0, 3)), 10**400, -1, lambda *a: None, lambda *a: "no",
            lambda *a: 7.0, lambda *a: [None], lambda *a: a[0], lambda *a: Hostile(), lambda: 1, leaves, fails]


@BY_NAME
def test_right_and_open(one):
    assert one(one.right) == RIGHT
    assert one(None) == one(...) == OPEN


@BY_NAME
def test_each_known_mistake_gets_its_own_hint(one):
    assert len(one.wrong) >= 3 and len(set(one.wrong.values())) == len(one.wrong)
    for mistake, hint in one.wrong.items():
        assert one(mistake) == f"not yet: {hint}"


@BY_NAME
def test_whatever_it_is_given_it_answers_in_one_sentence(one):
    for answer in BESTIARY:
        said = one(answer)
        assert isinstance(said, str) and said != RIGHT and said != OPEN and "\n" not in said and len(said) < 400, said


@BY_NAME
def test_a_number_written_into_a_function_is_refused(one):
    if callable(one.right):
        kept = []

        def same_again(*given):
            kept.append(one.right(*given))
            return kept[0]

        assert re.search("must use its arguments|is a number written into it", one(same_again))


@BY_NAME
def test_its_words_are_fit_to_be_read(one):
    for text in (one.task, *one.wrong.values()):
        assert "\n" not in text and text.strip() == text and 5 < len(text) < 160, text


@pytest.mark.parametrize("notebook", sorted({one.notebook for one in ALL} | {f"{n:02d}" for n in range(1, 7)}))
def test_a_notebook_has_at_least_four_of_all_levels(notebook):
    levels = [one.level for one in ALL if one.notebook == notebook]
    assert len(levels) >= 4 and set(levels) == set(LEVELS)


def test_old_names_keep_working():
    for name in ("cache", "rank", "rotation", "scale", "absorbed_query", "positions", "crossover"):
        assert isinstance(getattr(ex, f"check_{name}"), Exercise)
    with pytest.raises(AttributeError, match="check_nothing"):
        ex.check_nothing  # noqa: B018


# --- right answers, computed in another way ---------------------------------------------------------------------------


def test_numbers_against_the_package():
    small, v3 = get_model("MiniCPM3-4B"), get_model("DeepSeek-V3")
    assert ex.check_cache.right == fp.bytes_per_token(small)
    saved = fp.saving(small.elements_per_token_per_layer, fp.mha_baseline(small))
    assert ex.check_saving.right == pytest.approx(float(100 * saved))
    counts = {"MHA": fp.mha_elements(128, 128), "GQA-8": fp.gqa_elements(8, 128), "MQA": fp.mqa_elements(128),
              "MLA": fp.mla_elements(v3.mla)}
    assert min(counts, key=counts.get) == ex.check_smallest.right
    assert counts.keys() - {"MQA"} == ex.check_smallest.wrong.keys()
    with pytest.raises(mla_lab.InputError):
        spectrum.require_falsifiable(128, ex.check_tokens.right - 1, 512)
    spectrum.require_falsifiable(128, ex.check_tokens.right, 512)
    assert ex.check_rank.right == v3.mla.cached_width
    diagonal = np.diag([24.0, 12.0, 4.0, 3.0])
    cut = recipe.truncated_by_svd(diagonal, np.eye(4), 2)
    assert ex.check_loss.right == pytest.approx(np.linalg.norm(diagonal - cut))
    assert ex.check_scale.right == pytest.approx(rope.softmax_scale(replace(v3.mla, rope_scaling=None)))
    assert ex.check_yarn_scale.right == pytest.approx(rope.softmax_scale(get_model("Kimi-K2.5").mla))
    lite = get_model("DeepSeek-V2-Lite").mla
    h, r, v, d = lite.num_attention_heads, lite.kv_lora_rank, lite.v_head_dim, lite.hidden_size
    assert ex.check_in_advance.right == pytest.approx(h * r * d / (h * r * v + h * v * d))
    w_uk, _ = recipe.split_per_head(np.array(example.KV_B, float), example.CONFIG)
    assert np.array_equal(np.einsum("hn,hnr->hr", example.Q_NOPE, w_uk), ex.check_absorbed_query.right)
    assert np.array_equal(positions_from((5, 0, 2), 3, np.zeros(1)), ex.check_positions.right)


def test_functions_against_the_package():
    assert ex.check_fit(lambda capacity, layers, r, p, size: fp.tokens_that_fit(
        capacity * 2 // size, replace(get_model("DeepSeek-V3"), cache_layers=layers, mla=replace(
            get_model("DeepSeek-V3").mla, kv_lora_rank=r, qk_rope_head_dim=p)))) == RIGHT
    assert ex.check_each_gpu(lambda tokens, layers, tp: tokens * layers * 2 * fp.per_gpu_elements(
        get_model("DeepSeek-V3"), tp)) == RIGHT
    assert ex.check_own_rank(lambda m, u: spectrum.numerical_rank(m, u * np.linalg.norm(m))) == RIGHT
    assert ex.check_best_cut(recipe.truncated_by_svd) == RIGHT
    assert ex.check_rotation(rotated) == RIGHT
    assert ex.check_reorder(lambda x: np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)) == RIGHT
    assert ex.check_absorbed_head(through_attend) == RIGHT
    assert ex.check_mask(lambda cached, new: recipe.causal(
        np.arange(new)[:, None], np.arange(cached + new), cached)) == RIGHT
    assert ex.check_merge(merged) == RIGHT
    assert ex.check_split(lambda kv_b, heads, n, v: [w if i == 0 else w.mT for i, w in enumerate(recipe.split_per_head(
        kv_b, replace(example.CONFIG, num_attention_heads=heads, qk_nope_head_dim=n, v_head_dim=v)))]) == RIGHT
    assert ex.check_reader(lambda c: fp.bytes_per_token(read_config(c | {
        "hidden_size": 64, "text_config": c.get("text_config", c) | {"hidden_size": 64}}))) == RIGHT
    assert ex.check_read_back(lambda codes, scales, block: codes * spread(
        scales, 0, *codes.shape, (block, block)).astype(float)) == RIGHT


def rotated(x, at):
    a, b = x[0::2], x[1::2]
    z = (a + 1j * b) * np.exp(1j * at * 10000.0 ** (-np.arange(0, len(x), 2) / len(x)))
    return np.stack([z.real, z.imag], axis=1).ravel()


def through_attend(q, c, w_uk, w_uv, scale):
    n, zero = len(q), np.zeros((1, 1, 1, 2))
    config = replace(example.CONFIG, qk_nope_head_dim=n, kv_lora_rank=c.shape[1], v_head_dim=w_uv.shape[1])
    how = replace(recipe.RIGHT, scale=lambda _: scale)
    given = Projected(q[None, None, None, :], zero, c[None], np.zeros((1, len(c), 2)))
    seen = np.ones((1, len(c)), bool)
    return attend(given, c[None], given.k_rope, w_uk[None], w_uv[None], config, seen, "naive", how).heads[0, 0, 0]


def merged(o_a, l_a, o_b, l_b):
    head, lse = recipe.merge_by_lse([(np.array([o_a]), np.array(l_a)), (np.array([o_b]), np.array(l_b))])
    return head[0], lse


def test_symptoms_tell_the_culprit_from_every_choice():
    seen = list(symptoms().items())
    assert [true for _, true in seen] == [True, False, True, False, True]
    told_by = {"mask_top_left": 1, "latent_normed_twice": 0, "scale_by_cached_width": 3, "no_rotation": 3,
               "query_at_zero": 4}
    assert told_by.keys() == ex.check_culprit.wrong.keys()
    for fault, number in told_by.items():  # the symptom of which the hint speaks
        assert list(symptoms(fault).values())[number] != seen[number][1]


# --- kinds of answers, on exercises made for it -----------------------------------------------------------------------


@pytest.fixture
def make():
    before = dict(EXERCISES)

    def made(right, wrong, see=lambda answer: answer, **how):
        return exercise("99", "recall", right=right, wrong=wrong, **how)(documented(see))

    yield made
    EXERCISES.clear()
    EXERCISES.update(before)


def documented(see):
    def check_made_up(answer):
        """What is asked."""
        return see(answer)
    return check_made_up


def test_numbers(make):
    one = make([1.0, 200.0], {(1.0, 2.0): "a", (1.0,): "b"}, close=1e-2)
    assert one((1.0, 201.9)) == one(np.array([1, 200], np.uint8)) == RIGHT
    assert one((1.0, 202.1)) == "not yet: close; more digits are needed"
    assert one((1.0, 221.0)) == "not yet: look again" and one([1.0, 2.0]) == "not yet: a"
    assert one([[1.0, 200.0]]) == "not yet: the shape should be (2,), not (1, 2)"
    assert one([1.0, float("nan")]) == "not yet: there is a NaN or an infinity in it"
    assert one("x") == "a number or an array of numbers is needed, not an object of type str"
    assert one(True) == "a number or an array of numbers is needed, not True"
    assert one([Fraction(1), Decimal(200)]) == RIGHT and make(2.5, {})(Fraction(5, 2)) == RIGHT
    assert one([Fraction(1), True]) == one([1, "2"]) == one([None]) == (
        "a number or an array of numbers is needed, not an object of type list")
    assert one(10**400) == "not yet: that number is far too large"
    assert make(3, {})([3]) == "not yet: one number is needed, not the shape (1,)"
    assert make(3, {})(3.00001) == "not yet: look again"  # asked exactly
    assert one(np.broadcast_to(np.float32(1), (10**6, 10**6))).startswith("an answer has no more than")  # 4 TB


def test_tensors(make):
    torch = pytest.importorskip("torch")
    one = make([1.0, 2.0], {})
    assert one(torch.tensor([1.0, 2.0], requires_grad=True)) == one(torch.tensor([1, 2]).bfloat16()) == RIGHT


def test_words(make):
    one = make("Rope", {"nope": "not that", "latent": "nor that"})
    assert one(" rope ") == RIGHT and one("NOPE") == "not yet: not that"
    assert one("x") == "'x' is none of Rope, latent, nope"
    assert one(3) == "a word in quotes is needed, one of Rope, latent, nope; not an object of type int"


def test_functions(make):
    one = make(lambda x, n: x * n, {lambda x, n: x + n: "sum"}, lambda f: [f(np.ones(2), 3), f(np.ones(2), 4)])
    assert one(lambda x, n: n * x) == RIGHT and one(lambda a, b: a + b) == "not yet: sum"
    assert one(3) == "a function of (x, n) is needed, not an object of type int"
    assert one(lambda x, n: 3 * x) == ("not yet: your function gives the same whatever it is given; it must use its "
                                      "arguments")
    assert one(lambda x, n: 3 * x + 2 * n - 6).startswith("not yet: right for the first input and not for others")
    assert one(lambda x: x).startswith("not yet: your function raised TypeError: ")
    assert one(lambda x, n: None) == "not yet: your function returned None; is there a `return` at its end?"


def test_a_function_may_write_to_what_it_is_given(make):
    def emptied(x, names):
        total = x.sum() + len(names)
        x[...] = 0
        names.clear()
        return total

    kept = np.ones(3), ["a"]
    one = make(lambda x, names: x.sum() + len(names), {}, lambda f: [f(*kept), f(2 * kept[0], kept[1]), f(*kept)])
    assert one(emptied) == one(emptied) == RIGHT and kept[0].all()


def test_what_a_function_does_is_told_from_what_it_returns(make):
    """The checker's own trouble with a result is not laid at the function's door."""
    one = make(lambda n: [n, n], {}, lambda f: [np.asarray(f(2), dtype=float), np.asarray(f(3), dtype=float)])
    assert one(lambda n: None) == "not yet: your function returned None; is there a `return` at its end?"
    assert one(lambda n: n.missing).startswith("not yet: your function raised AttributeError")
    assert one(lambda n: object()) == (
        "not yet: your function returned an object of type object, which is not what is asked for")
    assert one(lambda n: [float("nan")] * 2) == "not yet: there is a NaN or an infinity in it"


@BY_NAME
def test_every_checker_tells_a_missing_return(one):
    if callable(one.right):
        assert "returned None" in one(lambda *given: None)


def test_answers_that_only_look_right():
    """Plausible mistakes that once passed."""
    assert ex.check_fit(lambda capacity, layers, r, p, size: round(capacity / (layers * (r + p) * size))) != RIGHT
    for of in (np.max, np.sum, lambda s: len(s) * np.linalg.norm(s)):
        assert ex.check_own_rank(lambda m, u, of=of: np.sum(
            np.linalg.svd(m, compute_uv=False) > u * of(np.linalg.svd(m, compute_uv=False)))) != RIGHT


def test_levels_and_names_are_held(make):
    with pytest.raises(ValueError, match="level must be one of recall, compute, implement, find the bug"):
        exercise("01", "hard", right=1, wrong={})
    other = documented(len)
    other.__module__ = "elsewhere"
    make(1, {})
    with pytest.raises(ValueError, match="two exercises are called check_made_up"):
        exercise("99", "recall", right=1, wrong={})(other)
    assert all(e.level in LEVELS for e in ALL)
