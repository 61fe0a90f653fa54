"""The simulated tile scheduler: what every schedule must hold, and cases counted by hand."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_lab.errors import InputError
from mla_lab.kernels.scheduler import (
    OVERHEAD,
    Piece,
    blocks_of,
    fixed_splits,
    greedy,
    loads,
    parts_of,
    tiles,
    utilisation,
)

LENGTHS = st.lists(st.integers(0, 9000), min_size=1, max_size=40)


def covered(plan, lengths):
    """The blocks of each request, in the order in which its pieces are numbered."""
    found = {request: [] for request in range(len(lengths))}
    pieces = [(piece.request, piece.split) for part in plan for piece in part]
    for request, splits in ((i, sorted(split for j, split in pieces if j == i)) for i in found):
        assert splits == list(range(len(splits))), request
    for piece in sorted((piece for part in plan for piece in part), key=lambda piece: (piece.request, piece.split)):
        assert piece.blocks > 0
        found[piece.request] += range(piece.first, piece.first + piece.blocks)
    return found


@given(lengths=LENGTHS, parts=st.integers(1, 140), splits=st.integers(1, 40))
def test_every_block_is_read_exactly_once(lengths, parts, splits):
    for plan in (greedy(lengths, parts), fixed_splits(lengths, parts, splits)):
        assert len(plan) == parts
        assert covered(plan, lengths) == {i: list(range(blocks_of(n))) for i, n in enumerate(lengths)}


@given(lengths=LENGTHS, parts=st.integers(1, 140))
def test_no_part_gets_more_than_its_payload(lengths, parts):
    total = sum(blocks_of(n) + OVERHEAD for n in lengths)
    assert max(loads(greedy(lengths, parts))) <= -(-total // parts) + OVERHEAD


def test_two_parts_by_hand():
    # 10 and 4 blocks, 5 of overhead each: 24 blocks, so two parts get 12 + 5 = 17 each.
    plan = greedy([640, 256], 2)
    assert plan == ((Piece(0, 0, 10, 0),), (Piece(1, 0, 4, 0),))
    assert loads(plan) == (15, 9)
    # One request of 40 blocks in three parts: 15 + 5 = 20 each, 15 of them useful.
    plan = greedy([40 * 64], 3)
    assert plan == ((Piece(0, 0, 15, 0),), (Piece(0, 15, 15, 1),), (Piece(0, 30, 10, 2),))
    assert utilisation(plan) == 40 / (20 * 3)


def test_without_overhead_the_parts_are_even():
    plan = greedy([64 * 70, 64 * 30, 64 * 20], 4, overhead=0)
    assert loads(plan, 0) == (30, 30, 30, 30) and utilisation(plan, 0) == 1


def test_greedy_beats_whole_requests_where_lengths_differ():
    lengths = [64 * 1024] + [1024] * 65
    whole, cut = fixed_splits(lengths, 66, 1), greedy(lengths, 66)
    assert max(loads(whole)) == 1024 + OVERHEAD
    assert max(loads(cut)) < max(loads(whole)) / 15


def test_parts_and_tiles_are_those_of_flash_mla():
    assert [parts_of(132, heads, tokens) for heads, tokens in ((128, 1), (64, 1), (16, 1), (16, 5), (128, 2))] == [
        66, 132, 132, 66, 33]
    # H20, 16 heads: 1 to 4 query tokens take one time, 5 and 6 take twice that
    assert [tiles(16 * tokens) for tokens in (1, 2, 3, 4, 5, 6)] == [1, 1, 1, 1, 2, 2]
    assert [blocks_of(n) for n in (0, 1, 64, 65)] == [1, 1, 1, 2]


def test_bad_sizes_are_refused():
    for call in (lambda: greedy([1], 0), lambda: greedy([-1], 2), lambda: fixed_splits([1], 2, 0), lambda: tiles(0)):
        with pytest.raises(InputError):
            call()
