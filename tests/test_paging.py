"""The paged cache: 10,000 random histories, its books, its refusals, and every fault that its checks must see."""
import numpy as np
import pytest
from conftest import make
from hypothesis import given
from hypothesis import strategies as st

from mla_lab.arrays import fresh, to_numpy
from mla_lab.checks.common import SMALL
from mla_lab.decode import forward
from mla_lab.errors import InputError
from mla_lab.models import get_model
from mla_lab.serving import checks10_paging as checks
from mla_lab.serving.blocks import PAGING, BlockTables, CacheFull, Paging
from mla_lab.serving.common import caught, under
from mla_lab.serving.page_size import prefixes_that_fit
from mla_lab.serving.paging import PagedCache
from mla_lab.verdict import Setting
from mla_lab.weights import MLAWeights, random_state

V3 = get_model("DeepSeek-V3")


def setting(backend):
    return Setting(backend, V3.mla, V3.name)


@pytest.mark.parametrize("first", range(0, 10_000, 2_500))
def test_ten_thousand_histories_to_the_bit_and_no_block_lost(first):
    verdict = checks.operations(setting(make("numpy")), histories=2_500, first=first)
    assert verdict.ok, (verdict.saw, verdict.note)
    assert verdict.note.startswith("2500 histories")


@pytest.mark.parametrize("member, dtype, histories", [
    ("torch", "float64", 300), ("torch", "bfloat16", 100), ("numpy", "float32", 100), ("numpy", "bfloat16", 100),
    ("array-api-strict", "float64", 100), ("torch-cuda", "bfloat16", 50)])
def test_histories_on_other_backends(member, dtype, histories):
    verdict = checks.operations(setting(make(member, dtype)), histories=histories, first=20_000)
    assert verdict.ok, (verdict.saw, verdict.note)


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda c: c.id)
@pytest.mark.parametrize("member, dtype", [("numpy", "float64"), ("torch", "bfloat16"), ("torch-cuda", "bfloat16")])
def test_every_check_holds_and_fails_under_each_of_its_faults(check, member, dtype):
    here = setting(make(member, dtype))
    verdict = check.run(here)
    assert verdict.ok and str(verdict).startswith("holds"), (verdict.saw, verdict.expected)
    seen = caught(check, checks.FAULTS, here, PAGING)
    assert seen and all(seen.values()), seen


def test_every_fault_is_a_change_of_the_rules_and_is_assigned():
    ids = {check.id for check in checks.CHECKS}
    assert {check.case for check in checks.CHECKS} == {10} and len(ids) == len(checks.CHECKS)
    assert len({f.id for f in checks.FAULTS}) == len(checks.FAULTS) >= 12
    here = setting(make("numpy"))
    for fault in checks.FAULTS:
        assert fault.caught_by and set(fault.caught_by) <= ids and "#" in fault.thread and fault.what and fault.why
        assert under(fault, here, PAGING) != (here, PAGING)
    untouched = {name for f in checks.FAULTS for name in f.changes} ^ set(Paging.__dataclass_fields__)
    assert untouched == {"unused", "elements"}  # the two that are values of a Recipe; every rule has a fault


@given(st.data())
def test_the_books_hold_whatever_is_done(data):
    """The same as the random histories on tables alone, driven by hypothesis, which shrinks what it finds."""
    size, blocks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    tables, told = BlockTables(blocks, size), {}
    for number in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["begin", "extend", "fork", "drop"])) if told else "begin"
        some = data.draw(st.sampled_from(sorted(told))) if told else None
        tokens = data.draw(st.lists(st.integers(0, 1), max_size=2 * size + 1))
        if what == "begin":
            told[number] = tokens[: tables.begin(number, tokens)]
        elif what == "fork":
            tables.fork(some, number)
            told[number] = list(told[some])
        elif what == "drop":
            tables.drop(some)
            del told[some]
        else:
            before = repr((tables.__dict__, tables[some]))
            try:
                tables.extend(some, len(tokens), tokens)
                told[some] = told[some] + tokens
            except CacheFull:
                assert repr((tables.__dict__, tables[some])) == before
        assert tables.audit() == []
        assert {name: (t.length, t.tokens) for name, t in tables.tables.items()} == {
            name: (len(t), t) for name, t in told.items()}
    for name in told:
        tables.drop(name)
    assert tables.available == blocks and not any(tables.references) and tables.audit() == []


def test_an_audit_sees_what_it_is_there_for():
    tables = BlockTables(4, 2)
    for name in "ab":
        tables.begin(name)
        tables.extend(name, 2, [1, 2] if name == "a" else [3, 4])
    assert tables.audit() == []
    for spoil, word in (
        (lambda t: t.free.append(t.free[-1]), "free twice"), (lambda t: t.free.append(t["a"].blocks[0]), "given away"),
        (lambda t: t.free.pop(), "lost"), (lambda t: t.references.__setitem__(0, 7), "reference count"),
        (lambda t: setattr(t["a"], "length", 5), "longer or shorter"), (lambda t: t.content.clear(), "known under")):
        fresh_tables = BlockTables(4, 2)
        for name in "ab":
            fresh_tables.begin(name)
            fresh_tables.extend(name, 2, [1, 2] if name == "a" else [3, 4])
        spoil(fresh_tables)
        assert any(word in line for line in fresh_tables.audit()), word


def test_a_step_through_a_fork_leaves_the_parent_as_it_was(backend):
    """Two continuations of one prompt: each gives what it would give alone."""
    weights = MLAWeights.from_hugging_face(random_state(SMALL, backend, 1), SMALL)
    hidden = backend.asarray(fresh(2)(1, 7, SMALL.hidden_size))
    pages = PagedCache.allocate(SMALL, 9, 2, backend, float("nan"))
    pages.tables.begin("a")
    forward(hidden[:, :5, :], weights, SMALL, pages.batch("a"))
    pages.tables.fork("a", "b")
    other, _ = forward(hidden[:, 6:, :], weights, SMALL, pages.batch("b"))
    out, _ = forward(hidden[:, 5:6, :], weights, SMALL, pages.batch("a"))
    for tail, got in ((hidden[:, 6:, :], other), (hidden[:, 5:6, :], out)):
        alone = PagedCache.allocate(SMALL, 9, 2, backend)
        alone.tables.begin("x")
        forward(hidden[:, :5, :], weights, SMALL, alone.batch("x"))
        want, _ = forward(tail, weights, SMALL, alone.batch("x"))
        np.testing.assert_array_equal(to_numpy(got), to_numpy(want))


def refused(words, act):
    with pytest.raises(InputError) as caught_:
        act()
    text = str(caught_.value)
    assert all(word in text for word in words) and text.endswith(".") and "\n" not in text, text


def test_refusals():
    backend = make("numpy")
    pages = PagedCache.allocate(SMALL, 2, 3, backend)
    r, p = SMALL.kv_lora_rank, SMALL.qk_rope_head_dim
    rows = lambda n, dtype=float: (np.zeros((n, r), dtype), np.zeros((n, p), dtype))
    refused(["block_size", "0"], lambda: BlockTables(2, 0))
    refused(["blocks", "-1"], lambda: PagedCache.allocate(SMALL, -1, 3, backend))
    pages.tables.begin("a")
    refused(["'a'", "drop it"], lambda: pages.tables.begin("a"))
    refused(["'b'", "'a'"], lambda: pages.append("b", *rows(1)))
    refused(["'b'"], lambda: pages.batch("a", "b"))
    refused(["'a', 'a'"], lambda: pages.batch("a", "a"))
    refused(["none"], lambda: pages.batch())
    refused(["c_kv", "(any, 32)"], lambda: pages.append("a", np.zeros((1, r + 1)), np.zeros((1, p))))
    refused(["k_rope", "(2, 6)"], lambda: pages.append("a", np.zeros((2, r)), np.zeros((1, p))))
    refused(["float32"], lambda: pages.append("a", *rows(1, np.float32)))
    refused(["1 new tokens", "2"], lambda: pages.append("a", *rows(1), tokens=[1, 2]))
    refused(["7 tokens", "3 more blocks", "2 are free"], lambda: pages.append("a", *rows(7)))
    pages.append("a", *rows(3))
    pages.tables.begin("b")
    refused(["2 sequences", "up to 2", "1 are free"],
            lambda: pages.batch("a", "b").append(np.zeros((2, 1, r)), np.zeros((2, 1, p))))
    assert [pages.tables[name].length for name in "ab"] == [3, 0] and pages.tables.audit() == []
    refused(["tokens", "0"], lambda: prefixes_that_fit(10, 0, 1))


@pytest.mark.parametrize("tokens", [[1.5, 2, 3], [2**70, 2, 3], [2**63, 2, 3], "123", [[1], [2], [3]], [[1], [2, 3]],
                                    [True, False, True], [None, 2, 3], None])
def test_ids_that_are_not_whole_numbers_change_nothing(tokens):
    """1.5 as 1 would find a page of other text; a name must not stay behind, and no length without rows."""
    tables = BlockTables(4, 3)
    tables.begin("a", range(2))
    tables.extend("a", 3, np.array([1, 2, 3], np.uint8))
    refused(["tokens must be whole numbers"], lambda: tables.begin("b", tokens))
    if tokens is not None:
        refused(["tokens must be whole numbers"], lambda: tables.extend("a", 3, tokens))
    for count in (-3, 2.5):
        refused(["count", "at least 0"], lambda count=count: tables.extend("a", count))
    assert list(tables.tables) == ["a"] and tables["a"].length == 3 and tables.audit() == []
    assert tables.begin("c", [1, 2, 3, 4]) == 3


def test_a_page_that_is_evicted_is_not_found_and_what_is_found_is_right():
    """A trace of hits over evictions, followed by hand."""
    tables = BlockTables(3, 2)
    tables.begin("a")
    tables.extend("a", 5, [1, 2, 3, 4, 5])  # pages (1 2) (3 4) (5 .)
    tables.drop("a")
    assert (len(tables.free), len(tables.idle)) == (1, 2)
    assert tables.begin("b", [1, 2, 3, 9]) == 2
    tables.extend("b", 2, [3, 9])  # the free page
    assert tables.evicted == 0 and tables.begin("c", [1, 2, 3, 4]) == 4
    with pytest.raises(CacheFull):
        tables.extend("c", 1)
    tables.drop("c")
    tables.extend("b", 1, [9])  # evicts (3 4)
    assert tables.evicted == 1 and tables.begin("d", [1, 2, 3, 4]) == 2 and tables.audit() == []
