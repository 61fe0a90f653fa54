"""Interleaved timing on a clock that the contenders set themselves: no test here waits for one."""
import pytest

from mla_lab.kernels import timing
from mla_lab.kernels.counts import Work
from mla_lab.kernels.timing import Contender, measure, quartiles, ratio


class Clock:
    """Time that the contender itself tells."""

    def __init__(self, *shares):
        self.settled, self.shares, self.patience, self.disturbed = 0, list(shares), 0, 0.0

    def settle(self):
        self.settled += 1

    def wait(self):
        self.patience -= 1
        return self.patience >= 0

    def __call__(self, run, calls):
        self.disturbed = self.shares.pop(0) if self.shares else 0.0
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
    assert counted == [1, 1, 100]


def test_quartiles():
    assert quartiles([3.0]) == (3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_threads_of_another_library_are_waited_for():
    clock = Clock()
    list(measure([telling("a", 1.5), telling("b", 1.5), telling("c", 1.5, library="torch")], 1, clock))
    assert clock.settled == 2


def test_a_disturbed_measurement_is_done_again_while_there_is_patience():
    a = telling("a", 0.9, 0.5, 0.7, 0.9, 0.3, 0.9, 0.6)  # first, second, counted, (waking, counted) twice
    clock = Clock(0, 0, 0.5, 0, 0.2, 0, 0.01)
    clock.patience = 5
    list(measure([a], 1, clock))
    assert a.seconds == [0.6] and a.disturbed == 0 and clock.patience == 3


def test_without_patience_the_least_disturbed_counts_and_is_remembered():
    a = telling("a", 0.9, 0.5, 0.7, 0.9, 0.3, 0.9, 0.6)
    clock = Clock(0, 0, 0.5, 0, 0.2, 0, 0.4)
    clock.patience = 2
    list(measure([a], 1, clock))
    assert a.seconds == [0.3] and a.disturbed == 1
    slow = telling("slow", 7.0)
    list(measure([slow], 1, Clock(0.1)))
    assert slow.disturbed == 1


def test_waiting_ends_when_nothing_else_runs_or_patience_ends(monkeypatch):
    now, busy = [0.0], [True] * 3 + [False] * 4 + [True] + [False] * 9
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(timing, "others_run", lambda: busy.pop(0))
    clock = timing.CPUClock(patience=1.0)
    assert clock.wait() and len(busy) == 4 and clock.patience == pytest.approx(1 - 13 * timing.PAUSE / timing.LOOKS)
    monkeypatch.setattr(timing, "others_run", lambda: True)
    assert not clock.wait() and clock.patience <= 0
    assert not clock.wait()


def test_disturbance_is_the_share_of_time_in_which_something_waited(monkeypatch):
    now, stalls = iter([10.0, 14.0]), iter([3.0, 4.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(timing, "waited", lambda: next(stalls))
    clock = timing.CPUClock()
    clock(lambda: None, 1)
    assert clock.disturbed == 0.25


def test_what_the_system_says(monkeypatch, tmp_path):
    assert timing.waited() >= 0 and timing.others_run() in (True, False)
    files = {"/proc/pressure/cpu": "some avg10=1.00 avg60=2.00 avg300=3.00 total=2500000\nfull total=9\n",
             "/proc/loadavg": "0.1 0.2 0.3 2/99 4567\n"}
    for name, text in files.items():
        (tmp_path / name.replace("/", "_")).write_text(text)
    real = open
    monkeypatch.setattr("builtins.open", lambda name, *a, **k: real(tmp_path / str(name).replace("/", "_"), *a, **k))
    assert timing.waited() == 2.5 and timing.others_run()
    (tmp_path / "_proc_loadavg").write_text("0.1 0.2 0.3 1/99 4567\n")
    assert not timing.others_run()
    (tmp_path / "_proc_loadavg").unlink()
    (tmp_path / "_proc_pressure_cpu").unlink()
    assert timing.waited() == 0 and not timing.others_run()


def test_the_clock_divides_by_the_calls(monkeypatch):
    now = iter([10.0, 16.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    assert timing.CPUClock()(lambda: "done", 3) == (2.0, "done")
