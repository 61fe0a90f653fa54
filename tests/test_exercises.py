"""Every checker accepts the right answer, and gives each known mistake the hint that fits it."""
import numpy as np
import pytest

from mla_lab import exercises as ex


def rotated(x, at, sign=1.0, swap=False):
    radians = 10000.0 ** (-np.arange(0, len(x), 2) / len(x))
    half = len(x) // 2
    a, b = (x[:half], x[half:]) if swap else (x[0::2], x[1::2])
    c, s = np.cos(at * radians), sign * np.sin(at * radians)
    y = np.empty_like(x)
    if swap:
        y[:half], y[half:] = a * c - b * s, b * c + a * s
    else:
        y[0::2], y[1::2] = a * c - b * s, b * c + a * s
    return y


W_UK = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [1, -1, 0]]], float)
Q = np.array([[1, 1], [2, 0]], float)


@pytest.mark.parametrize(
    "checker, right",
    [
        (ex.check_cache, 35_712),
        (ex.check_rank, 576),
        (ex.check_rotation, rotated),
        (ex.check_scale, 192**-0.5),
        (ex.check_absorbed_query, np.einsum("hn,hnr->hr", Q, W_UK)),
        (ex.check_positions, [[5, 6, 7], [0, 1, 2], [2, 3, 4]]),
        (ex.check_crossover, 131072 / 768),
        (ex.check_crossover, 170.67),
        (ex.check_crossover, 171),
    ],
)
def test_right_open_and_unlike_answers(checker, right):
    assert checker(right) == "right"
    assert checker(None) == checker(...) == "not answered yet"
    assert checker("seventy" if checker is not ex.check_rotation else lambda x, at: "no").startswith(
        ("a number", "not yet")
    )


@pytest.mark.parametrize(
    "checker, answer, hint",
    [
        (ex.check_cache, 2 * 62 * 288 * 2, "key and value"), (ex.check_cache, 62 * 256 * 2, "rope key is cached"),
    (ex.check_cache, 62 * (256 + 40 * 32) * 2, "one for all heads"), (ex.check_cache, 576, "one layer"),
    (ex.check_cache, 62 * 288, "2 bytes"), (ex.check_cache, 62 * 40 * 160 * 2, "do not enter"),
    (ex.check_cache, 1, "look again"), (ex.check_rank, 1024, "share one latent"), (ex.check_rank, 640, "64 wide"),
    (ex.check_rank, 1088, "share one latent"),
        (ex.check_rank, 512, "adds its own width"),
        (ex.check_rank, 2000, "tokens"),
        (ex.check_rotation, lambda x, at: rotated(x, at, swap=True), "pairs channel i"),
        (ex.check_rotation, lambda x, at: rotated(x, at, sign=-1.0), "other way"),
        (ex.check_rotation, lambda x, at: x, "nothing has turned"),
        (ex.check_rotation, lambda x, at: x[:3], "shape"),
        (ex.check_rotation, lambda x: x, "TypeError"),
        (ex.check_scale, 576**-0.5, "cache's"),
        (ex.check_scale, 128**-0.5, "rope channels"),
        (ex.check_scale, 192**0.5, "one over"),
        (ex.check_scale, 1 / 192, "square root"),
        (ex.check_absorbed_query, [[1, 1, 0], [2, 4, 0]], "head by head"),
        (ex.check_absorbed_query, [1, 1, 2], "sum over"),
        (ex.check_absorbed_query, W_UK, "shape"),
        (ex.check_positions, [[0, 1, 2]] * 3, "starts at 0"),
        (ex.check_positions, [[5, 6, 7]] * 3, "longest"),
        (ex.check_positions, [[6, 7, 8], [1, 2, 3], [3, 4, 5]], "too far"),
        (ex.check_crossover, 131072 / (2 * 576 - 320), "2r + p"),
        (ex.check_crossover, 131072 / (1088 - 256), "p cancels"),
        (ex.check_crossover, 131072 / (1024 - 320), "on both or on neither"),
        (ex.check_crossover, 131072 / (576 - 320), "used twice"),
        (ex.check_crossover, 128 * 131072 / 768, "factor of the heads"),
        (ex.check_crossover, 131072 / 768 / 128, "they cancel"),
        (ex.check_crossover, 65536 / 768, "values are rebuilt"),
        (ex.check_crossover, 2 * 131072 / 768, "two FLOP"),
        (ex.check_crossover, 768 / 131072, "inverse"),
        (ex.check_crossover, 170, "look again"),
        (ex.check_crossover, [170.67, 170.67], "shape"),
    ],
)
def test_each_mistake_gets_its_own_hint(checker, answer, hint):
    assert hint in checker(answer), checker(answer)
    assert checker(answer) != "right"
