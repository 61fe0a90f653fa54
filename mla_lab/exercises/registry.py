"""What an exercise is: a right answer, and known wrong ones that each get a hint of their own.

::

    @exercise("02", "compute", right=576, wrong={
        1088: "K and V share one latent, so they do not add up",
        1024: "the rope key adds its own width",
        512: "that is the latent alone"})
    def check_rank(answer):
        \"\"\"Largest rank of [K, V, rope key] for r = 512, p = 64 and 2,000 tokens.\"\"\"
        return answer

The decorated function says what of an answer is compared: a number or array as it is, a word as it is, or (where the
answer is a function) the list of what it gives for several inputs. ``check_rank`` is then an `Exercise`, to be called
with the learner's answer; it returns one sentence and never raises.
"""
from __future__ import annotations

import inspect
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import import_module
from numbers import Real
from typing import Any

import numpy as np

from ..arrays import to_numpy

LARGEST = 10**6  # elements of an answer
LEVELS = ("recall", "compute", "implement", "find the bug")
OPEN, RIGHT = "not answered yet", "right"
EXACT = 1e-6  # for what float32 can hold
EXERCISES: dict[str, Exercise] = {}


class Refused(Exception):
    """An answer that is of no use; the message is the sentence for the learner."""


class Tried:
    """A learner's function. It gets copies, which it may write to; what goes wrong in it is said in a sentence."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.returned = function, None

    def __call__(self, *given: Any) -> Any:
        try:
            self.returned = self.function(*deepcopy(given))
        except (Exception, SystemExit) as error:
            said = " ".join(str(error).split())[:120]
            raise Refused(f"not yet: your function raised {type(error).__name__}: {said}") from None
        if self.returned is None:
            raise Refused("not yet: your function returned None; is there a `return` at its end?")
        return self.returned


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise of a notebook.

    Parameters
    ----------
    name : str
        The checker's name, as the notebook calls it.
    notebook : str
        Its two digits.
    level : str
        One of `LEVELS`.
    task : str
        What is asked, in one sentence.
    right : object
        The answer, in the form in which a learner gives it.
    wrong : mapping of object to str
        Known wrong answers in the same form, each with the hint for the mistake behind it.
    see : callable
        What of an answer is compared. For an answer that is a function: a list of results for several inputs.
    close : float
        Largest distance from the right answer as a share of its largest element; 1e-3 lets a rounded answer pass.
    """

    name: str
    notebook: str
    level: str
    task: str
    right: Any
    wrong: Mapping[Any, str] = field(repr=False)
    see: Callable[[Any], Any] = field(repr=False)
    close: float = EXACT

    def __call__(self, answer: Any) -> str:
        """One sentence on ``answer``: ``right``, ``not answered yet`` (None or ...), or a hint. Never raises."""
        if answer is None or answer is ...:
            return OPEN
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._judge(answer)
        except Refused as refused:
            return str(refused)
        except (Exception, SystemExit) as error:
            return f"not yet: your answer could not be read ({type(error).__name__})"

    def _judge(self, answer: Any) -> str:
        if isinstance(self.right, str):
            return self._judge_word(answer)
        got, want = self._seen(answer), self._seen(self.right)
        if self._same(got, want):
            return RIGHT
        for mistake, hint in self.wrong.items():
            if self._same(got, self._seen(mistake)):
                return f"not yet: {hint}"
        if not all(np.isfinite(x).all() for x in got):
            raise Refused("not yet: there is a NaN or an infinity in it")
        if callable(self.right):
            if all(_equal(got[0], other, self.close) for other in got[1:]):
                raise Refused("not yet: your function gives the same whatever it is given; it must use its arguments")
            if _equal(got[0], want[0], self.close):
                raise Refused("not yet: right for the first input and not for others; is a number written into it, or "
                              "a case left out?")
        elif self.close > EXACT and _equal(got[0], want[0], 10 * self.close):
            raise Refused("not yet: close; more digits are needed")
        for x, y in zip(got, want, strict=True):
            if x.shape != y.shape:
                asked = f"the shape should be {y.shape}, not" if y.shape else "one number is needed, not the shape"
                raise Refused(f"not yet: {asked} {x.shape}")
        return "not yet: look again"

    def _judge_word(self, answer: Any) -> str:
        words = sorted({self.right, *self.wrong})
        if not isinstance(answer, str):
            raise Refused(f"a word in quotes is needed, one of {', '.join(words)}; not {_kind(answer)}")
        said = answer.strip().casefold()
        if said == self.right.casefold():
            return RIGHT
        for mistake, hint in self.wrong.items():
            if said == mistake.casefold():
                return f"not yet: {hint}"
        raise Refused(f"{answer.strip()[:40]!r} is none of {', '.join(words)}")

    def _seen(self, answer: Any) -> list[np.ndarray]:
        """What is compared, as a list of float64 arrays."""
        if not callable(self.right):
            return [_numbers(self.see(answer))]
        if not callable(answer) or isinstance(answer, type):
            raise Refused(f"a function of {inspect.signature(self.right)} is needed, not {_kind(answer)}")
        tried = Tried(answer)
        try:
            return [_numbers(result) for result in self.see(tried)]
        except Refused:
            raise
        except Exception:
            raise Refused(f"not yet: your function returned {_kind(tried.returned)}, which is not what is asked for"
                          ) from None

    def _same(self, got: list[np.ndarray], want: list[np.ndarray]) -> bool:
        return all(_equal(x, y, self.close) for x, y in zip(got, want, strict=True))


def _kind(answer: Any) -> str:
    return "a function" if inspect.isroutine(answer) else f"{answer!r}" if isinstance(answer, bool) else (
        f"an object of type {type(answer).__name__}")


def _numbers(answer: Any) -> np.ndarray:
    try:
        values = np.asarray(to_numpy(answer))
        if values.size > LARGEST:
            raise Refused(f"an answer has no more than a few hundred numbers, not {values.size:,}")
        if values.dtype.kind == "O" and all(isinstance(x, Real | Decimal) and not isinstance(x, bool)
                                            for x in values.flat):
            values = values.astype(np.float64)  # fractions
        if values.dtype.kind not in "iuf":  # no text, no other objects, no truth values, nothing complex
            raise TypeError
        return values.astype(np.float64)
    except Refused:
        raise
    except OverflowError:
        raise Refused("not yet: that number is far too large") from None
    except Exception:
        raise Refused(f"a number or an array of numbers is needed, not {_kind(answer)}") from None


def _equal(x: np.ndarray, y: np.ndarray, close: float) -> bool:
    if x.shape != y.shape:
        return False
    size = np.max(np.abs(y), initial=0, where=np.isfinite(y))
    return bool(np.isclose(x, y, rtol=0, atol=close * size, equal_nan=True).all())  # a known mistake may overflow


def exercise(notebook: str, level: str, *, right: Any, wrong: Mapping[Any, str], close: float = EXACT):
    """Register the function under it as an `Exercise`; its docstring's first line is the task."""
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")

    def register(see: Callable[[Any], Any]) -> Exercise:
        task = inspect.getdoc(see).splitlines()[0]
        made = Exercise(see.__name__, notebook, level, task, right, wrong, see, close)
        if made.name in EXERCISES and EXERCISES[made.name].see.__module__ != see.__module__:
            raise ValueError(f"two exercises are called {made.name}")
        EXERCISES[made.name] = made
        return made

    return register


def all_exercises() -> list[Exercise]:
    """Every exercise of this package, by notebook."""
    package = import_module("mla_lab.exercises")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return sorted(EXERCISES.values(), key=lambda e: e.notebook)
