"""Every checker accepts the right answer, gives each known mistake its own hint, and takes whatever it is given."""
import numpy as np
import pytest

from mla_lab import exercises
from mla_lab.exercises.registry import EXERCISES, LEVELS, OPEN, RIGHT, Exercise, exercise

ALL = exercises.all_exercises()
BY_NAME = pytest.mark.parametrize("ex", ALL, ids=lambda e: e.name)


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
def test_right_and_open(ex):
    assert ex(ex.right) == RIGHT
    assert ex(None) == ex(...) == OPEN


@BY_NAME
def test_each_known_mistake_gets_its_own_hint(ex):
    assert len(ex.wrong) >= 3 and len(set(ex.wrong.values())) == len(ex.wrong)
    for mistake, hint in ex.wrong.items():
        assert ex(mistake) == f"not yet: {hint}"


@BY_NAME
def test_whatever_it_is_given_it_answers_in_one_sentence(ex):
    for answer in BESTIARY:
        said = ex(answer)
        assert isinstance(said, str) and said != RIGHT and said != OPEN and "\n" not in said and len(said) < 400, said


@BY_NAME
def test_a_number_written_into_a_function_is_refused(ex):
    if callable(ex.right):
        first = ex.see(ex.right)[0]
        assert "must use its arguments" in ex(lambda *a: first)


@BY_NAME
def test_its_words_are_fit_to_be_read(ex):
    for text in (ex.task, *ex.wrong.values()):
        assert "\n" not in text and text.strip() == text and 5 < len(text) < 160, text


def test_old_names_keep_working():
    for name in ("cache", "rank", "rotation", "scale", "absorbed_query", "positions", "crossover"):
        assert isinstance(getattr(exercises, f"check_{name}"), Exercise)
    with pytest.raises(AttributeError, match="check_nothing"):
        exercises.check_nothing  # noqa: B018


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
    ex = make([1.0, 200.0], {(1.0, 2.0): "a", (1.0,): "b"}, close=1e-2)
    assert ex((1.0, 201.9)) == ex(np.array([1, 200], np.uint8)) == RIGHT
    assert ex((1.0, 202.1)) == "not yet: look again" and ex([1.0, 2.0]) == "not yet: a"
    assert ex([[1.0, 200.0]]) == "not yet: the shape should be (2,), not (1, 2)"
    assert ex([1.0, float("nan")]) == "not yet: there is a NaN or an infinity in it"
    assert ex("x") == "a number or an array of numbers is needed, not an object of type str"
    assert ex(True) == "a number or an array of numbers is needed, not True"


def test_tensors(make):
    torch = pytest.importorskip("torch")
    ex = make([1.0, 2.0], {})
    assert ex(torch.tensor([1.0, 2.0], requires_grad=True)) == ex(torch.tensor([1, 2]).bfloat16()) == RIGHT


def test_words(make):
    ex = make("Rope", {"nope": "not that", "latent": "nor that"})
    assert ex(" rope ") == RIGHT and ex("NOPE") == "not yet: not that"
    assert ex("x") == "'x' is none of Rope, latent, nope"
    assert ex(3) == "a word in quotes is needed, one of Rope, latent, nope; not an object of type int"


def test_functions(make):
    ex = make(lambda x, n: x * n, {lambda x, n: x + n: "sum"}, lambda f: [f(np.ones(2), 3), f(np.ones(2), 4)])
    assert ex(lambda x, n: n * x) == RIGHT and ex(lambda a, b: a + b) == "not yet: sum"
    assert ex(3) == "a function of (x, n) is needed, not an object of type int"
    assert ex(lambda x, n: 3 * x) == ("not yet: your function gives the same whatever it is given; it must use its "
                                      "arguments")
    assert ex(lambda x, n: 3 * x + 2 * n - 6).startswith("not yet: right for the first input and not for others")
    assert ex(lambda x: x).startswith("not yet: your function raised TypeError: ")
    assert ex(lambda x, n: print("", end="")) == "not yet: your function returned None; is there a `return` at its end?"


def test_levels_and_names_are_held(make):
    with pytest.raises(ValueError, match="level must be one of recall, compute, implement, find the bug"):
        exercise("01", "hard", right=1, wrong={})
    other = documented(len)
    other.__module__ = "elsewhere"
    make(1, {})
    with pytest.raises(ValueError, match="two exercises are called check_made_up"):
        exercise("99", "recall", right=1, wrong={})(other)
    assert all(e.level in LEVELS for e in ALL)
