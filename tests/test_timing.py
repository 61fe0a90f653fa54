"""Interleaved timing on a clock that the contenders set themselves: no test here waits for one."""
import pytest

from mla_lab.kernels import timing
from mla_lab.kernels.counts import Work
from mla_lab.kernels.timing import Contender, measure, quartiles, ratio


class Clock:
    """Time that the contender itself tells."""

    def __init__(self):
        self.settled = 0

    def settle(self):
        self.settled += 1

    def __call__(self, run, calls):
        return run(), run


def telling(name, *seconds, library="numpy", kind="kernel"):
    times = iter(seconds)
    return Contender(name, library, lambda: next(times), Work(10**9, 10**9), kind)


def test_rounds_are_interleaved_and_the_first_calls_are_not_counted():
    a = telling("a", 0.9, 0.5, 0.1, 0.9, 0.2)  # first, second (how many calls?), counted, waking, counted
    b = telling("b", 0.9, 0.5, 0.3, 0.9, 0.4, library="torch")
    clock = Clock()
    assert [c.name for c in measure([a, b], 2, clock)] == ["a", "b", "a", "b"]
    assert a.seconds == [0.1, 0.2] and b.seconds == [0.3, 0.4] and clock.settled == 4
    assert ratio(b, a) == (2.5, pytest.approx((2.25, 2.75)))


def test_a_slow_contender_runs_once_and_counts_that_call():
    slow, fast = telling("slow", 7.0), telling("fast", 0.9, 0.5, 0.1, 0.9, 0.2)
    list(measure([slow, fast], 2, Clock()))
    assert slow.seconds == [7.0, None] and slow.median == 7.0 and slow.spread == (7.0, 7.0)
    assert ratio(slow, fast)[0] == pytest.approx(70), "only the round in which both ran"


def test_short_calls_are_repeated():
    counted = []

    class Counting(Clock):
        def __call__(self, run, calls):
            counted.append(calls)
            return 1e-3, None

    list(measure([telling("a")], 1, Counting()))
    assert counted == [1, 1, 30]


def test_quartiles():
    assert quartiles([3.0]) == (3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_threads_of_another_library_are_waited_for():
    clock = Clock()
    list(measure([telling("a", 1.5), telling("b", 1.5), telling("c", 1.5, library="torch")], 1, clock))
    assert clock.settled == 2


def test_the_clock_divides_by_the_calls(monkeypatch):
    now = iter([10.0, 16.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    assert timing.CPUClock()(lambda: "done", 3) == (2.0, "done")
