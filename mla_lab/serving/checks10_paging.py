"""Case 10: a paged latent cache gives what a contiguous one gives, to the bit, and loses no block."""
from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np

from .. import footprint as fp
from ..arrays import fresh, to_numpy
from ..cache import LatentCache
from ..checks.common import SMALL, under_test
from ..decode import forward
from ..faults import Fault
from ..models import get_model
from ..recipe import keep
from ..verdict import Check, Setting, Verdict, exactly
from ..weights import MLAWeights, random_state
from .blocks import PAGING, BlockTables, CacheFull, Paging, chained
from .page_size import PAGE_SIZES, page_cost, prefixes_that_fit, replay
from .paging import PagedCache
from .random_operations import HAPPENED, WRONG, Player, layer
from .traces import Chat, lengths, synthetic

NAN = float("nan")


def operations(setting: Setting, rules: Paging = PAGING, histories: int = 120, first: int = 0) -> Verdict:
    """Random histories number ``first`` to ``first + histories - 1``, or to the first that shows something wrong."""
    backend, seen = setting.backend, Counter()
    with np.errstate(invalid="ignore"):  # a fault that lets NaN through is meant to
        for seed in range(first, first + histories):
            seen += Player(seed, backend, rules, under_test(setting), layer(SMALL, backend)).play()
            if any(seen[what] for what in WRONG):
                break
    saw = {what: seen[what] for what in WRONG} | {"kinds of operation": sum(seen[what] > 0 for what in HAPPENED)}
    done = ", ".join(f"{seen[what]} {what}" for what in HAPPENED)
    return exactly(OPERATIONS, saw, dict.fromkeys(WRONG, 0) | {"kinds of operation": len(HAPPENED)},
                   f"{histories} histories of {SMALL.cached_width} numbers a row: {done}")


@np.errstate(invalid="ignore")
def whole_layer(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """A ragged prefill, a chunk and a step, on pages of several sizes and on contiguous rows."""
    backend, recipe, differ = setting.backend, under_test(setting), {}
    weights = MLAWeights.from_hugging_face(random_state(SMALL, backend, 110), SMALL, recipe)
    hidden = backend.asarray(fresh(111)(3, 9, SMALL.hidden_size))
    calls = ((hidden[:, :5, :], (5, 0, 2)), (hidden[:, 5:8, :], (1, 3, 0)), (hidden[:, 8:, :], (1, 1, 1)))
    for size in (1, 2, 3, 4, 64):
        pages = PagedCache.allocate(SMALL, 20, size, backend, NAN, rules)
        random.Random(size).shuffle(pages.tables.free)  # as in a pool that has been in use for a while
        for name in "abc":
            pages.tables.begin(name)
        paged, rows = pages.batch(*"abc"), LatentCache.allocate(SMALL, 3, 9, backend, NAN)
        differ[size] = 0
        for new, counts in calls:
            ours, paged = forward(new, weights, SMALL, paged, counts=counts, recipe=recipe)
            theirs, rows = forward(new, weights, SMALL, rows, counts=counts, recipe=recipe)
            differ[size] += int(np.sum(~(to_numpy(ours) == to_numpy(theirs))))
    return exactly(LAYER, differ, dict.fromkeys(differ, 0), "outputs that differ, by page size; 7, 4 and 3 tokens")


@np.errstate(invalid="ignore")
def unused(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """5 and 2 tokens in pages of 4: what lies behind them must not matter."""
    backend, recipe, results = setting.backend, under_test(setting), []
    weights = MLAWeights.from_hugging_face(random_state(SMALL, backend, 112), SMALL, recipe)
    hidden = backend.asarray(fresh(113)(2, 5, SMALL.hidden_size))
    for fill in (0.0, NAN, float("inf")):
        pages = PagedCache.allocate(SMALL, 4, 4, backend, fill, rules)
        for name in "ab":
            pages.tables.begin(name)
        out, _ = forward(hidden, weights, SMALL, pages.batch(*"ab"), counts=(5, 2), recipe=recipe)
        results.append(to_numpy(out))
    differ = sum(int(np.sum(~(r == results[0]))) for r in results[1:])
    return exactly(UNUSED, [differ, bool(np.isfinite(results[0]).all())], [0, True],
                   "outputs that change when slots without a token hold NaN or infinity instead of 0")


def copies(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """Fork 3 to 8 tokens in pages of 4, let the child go on, and look at the parent and at the copies made."""
    backend, latent = setting.backend, SMALL.kv_lora_rank
    rows = backend.asarray(fresh(114)(10, SMALL.cached_width))
    saw, want = {}, {}
    for tokens in range(3, 9):
        pages = PagedCache.allocate(SMALL, 6, 4, backend, NAN, rules)
        pages.tables.begin("parent")
        pages.append("parent", rows[:tokens, :latent], rows[:tokens, latent:])
        pages.tables.fork("parent", "child")
        pages.append("child", rows[9:, :latent], rows[9:, latent:])
        parent, child = (to_numpy(pages.gather([name]))[0] for name in ("parent", "child"))
        held = {block for t in pages.tables.tables.values() for block in t.blocks}
        kept = bool(np.all(parent[:tokens] == to_numpy(rows)[:tokens]))
        follows = bool(np.all(child[: tokens + 1] == to_numpy(rows)[[*range(tokens), 9]]))
        saw[tokens], want[tokens] = [kept, follows, len(held)], [True, True, -(-tokens // 4) + 1]
    return exactly(COPIES, saw, want, "parent as before, child continues it, blocks held by both: one more than before")


def prefixes(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """Every shared length from 0 to 9 at pages of 1 to 5 tokens, equal pages behind different ones, and a trace."""
    saw, want = {}, {}
    for size in range(1, 6):
        for shared in range(10):
            tables = BlockTables(40, size, rules)
            for name, tail in (("first", [5] * 3), ("second", [6] * 3)):
                prompt = list(range(10, 10 + shared)) + tail
                found = tables.begin(name, prompt)
                tables.extend(name, len(prompt) - found, prompt[found:])
            saw[shared, size], want[shared, size] = found, shared // size * size
    tables = BlockTables(9, 2, rules)
    for prompt, right in (((1, 2, 3, 4), 0), ((7, 8, 5, 6), 0), ((7, 8, 3, 4), 2), ((9, 9, 3, 4), 0)):
        saw[prompt], want[prompt] = tables.begin(prompt, prompt), right
        tables.extend(prompt, 4 - saw[prompt], prompt[saw[prompt] :])
    trace = synthetic(Chat(requests=60), seed=3)
    for size in (16, 64, 256):
        saw["trace", size] = replay(trace, 4000, size, rules=rules).hit_tokens
        want["trace", size] = page_cost(trace, size).hit_tokens
    return exactly(PREFIXES, saw, want, "tokens found, by shared length and page size; then on a trace of 60 requests")


def eviction(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """Eight pages: two prompts of four come and go, the first is used again, then a stranger takes two pages."""
    first, second, stranger = ([at + i for i in range(8)] for at in (10, 20, 30))
    tables, saw = BlockTables(8, 2, rules), []
    with suppress(CacheFull):  # where nothing ever comes back
        for name, prompt in (("1", first), ("2", second), ("1 again", first)):
            saw.append(tables.begin(name, prompt))
            tables.extend(name, 8 - saw[-1], prompt[saw[-1] :])
            tables.drop(name)
        tables.begin("stranger", stranger)
        tables.extend("stranger", 4, stranger[:4])
        saw += [tables.begin("1 a third time", first), tables.begin("2 again", second), len(tables.audit())]
    return exactly(EVICTION, saw, [0, 0, 8, 8, 4, 0],
                   "tokens found at each of five visits, and errors in the books; the last two after 2 evictions")


def waste(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """Pages taken for the requests of a trace, against the lengths alone; and (B - 1) / 2 where lengths fall evenly."""
    trace, saw, want = synthetic(Chat(requests=60), seed=4), {}, {}
    for size in PAGE_SIZES:
        tables = BlockTables(sum(n // size + 2 for n in lengths(trace)), size, rules)
        for number, tokens in enumerate(lengths(trace)):
            tables.begin(number)
            tables.extend(number, tokens)
        entries = sum(len(t.blocks) for t in tables.tables.values())
        empty = sum(-tokens % size for tokens in lengths(trace))
        even = [rules.blocks_for(n, size) * size - n for n in range(1, 4 * size + 1)]
        saw[size] = [entries * size - sum(lengths(trace)), 4 * entries, Fraction(sum(even), len(even))]
        want[size] = [empty, 4 * (sum(lengths(trace)) + empty) // size, Fraction(size - 1, 2)]
    return exactly(WASTE, saw, want, "empty slots and table bytes (int32) of 60 requests by page size; mean if even")


def prefixes_fit(setting: Setting, rules: Paging = PAGING) -> Verdict:
    """DeepSeek-V3's shape in bf16; MHA and GQA-8 with 128 heads of 128 and 61 layers as well."""
    v3 = get_model("DeepSeek-V3")
    ours = setting.recipe.elements(v3.mla)
    grouped = replace(v3, mla=None, num_key_value_heads=8, head_dim=128)
    elements = {"MHA": 2 * 128 * 128, "GQA-8": 2 * 8 * 128, "MLA": ours}
    fit = {name: prefixes_that_fit(10**12, 2048, 61 * 2 * n, 64) for name, n in elements.items()}
    shards = fp.per_gpu_elements(grouped, 8), fp.per_gpu_elements(v3, 8, setting.recipe.elements)
    saw = {"times MHA": str(Fraction(elements["MHA"], ours)), "times GQA-8": str(Fraction(elements["GQA-8"], ours)),
           "on one of 8 GPUs, times GQA-8": str(Fraction(*shards)), "prefixes in 1 TB": fit}
    want = {"times MHA": "512/9", "times GQA-8": "32/9", "on one of 8 GPUs, times GQA-8": "4/9",
            "prefixes in 1 TB": {"MHA": 122, "GQA-8": 1954, "MLA": 6948}}
    return exactly(FIT, saw, want, "bf16, 61 layers, prefixes of 2,048 tokens in pages of 64; 512/9 = 56.9")


OPERATIONS = "whatever begins, grows, forks and ends, pages hold what contiguous rows hold, and no block is lost"
LAYER = "prefill, chunk and step on pages of 1 to 64 tokens give the contiguous cache's outputs to the bit"
UNUSED = "what lies in unused slots of the last page cannot reach the output"
COPIES = "a fork shares every block, and the first write to a shared block copies that one block and no other"
PREFIXES = "of a shared beginning of s tokens, whole pages are found, floor(s / B) B, and never another text's block"
EVICTION = "eviction takes the block released longest ago, a prompt's tail before its head, and forgets its content"
WASTE = "pages of B tokens leave what the lengths say empty, (B - 1) / 2 slots a request if lengths fall evenly"
FIT = "at equal bytes on one GPU 56.9 times as many prefixes fit as with MHA and 3.6 times as with GQA-8"

CHECKS = (
    Check("10.operations", OPERATIONS, operations), Check("10.layer", LAYER, whole_layer),
    Check("10.unused", UNUSED, unused), Check("10.copies", COPIES, copies), Check("10.prefixes", PREFIXES, prefixes),
    Check("10.eviction", EVICTION, eviction), Check("10.waste", WASTE, waste), Check("10.fit", FIT, prefixes_fit),
)


# --- faults: values of `Paging`, but for the last two -----------------------------------------------------------------

def own_tokens(parent, tokens):
    return chained(b"", tokens)


def always(references):
    return references > 0


def to_zero(references):
    return 0


def one_too_many(tokens, block_size):
    return tokens // block_size + 1


FAULTS = (
    Fault("block_known_by_own_tokens", "a block is looked up by its own tokens, not by all before it",
          "vllm-project/aibrix#2329", {"key": own_tokens}, ("10.operations", "10.prefixes"),
          "prompts of a test rarely hold the same page behind different beginnings"),
    Fault("shared_block_written", "an unfinished shared block is written to without a copy",
          "Avarok-Cybersecurity/atlas#1193", {"writable": always}, ("10.operations", "10.copies"),
          "sequences that go on with the same tokens write the same rows"),
    Fault("share_not_counted", "a table takes a shared block without raising its count",
          "Avarok-Cybersecurity/atlas#692", {"shared": keep}, ("10.operations", "10.copies"),
          "nothing is wrong until the first holder lets go"),
    Fault("count_set_to_zero", "letting go of a block sets its count to zero whoever else holds it",
          "Avarok-Cybersecurity/atlas#373", {"released": to_zero}, ("10.operations",),
          "one sequence at a time never shares"),
    Fault("count_never_lowered", "a block that is let go keeps its count and never comes back", "xLLM-AI/xllm#828",
          {"released": keep}, ("10.operations", "10.eviction"), "a short run does not fill the pool"),
    Fault("evicted_block_still_known", "an evicted block is still found under its old content",
          "ovg-project/kvcached#362", {"forgets_evicted": False}, ("10.operations", "10.eviction"),
          "a pool that is large enough never evicts"),
    Fault("head_released_first", "a prompt's blocks are released head first, so its head is evicted first",
          "llm-d/llm-d-inference-sim#704", {"release_order": list}, ("10.eviction",), "only the hit rate tells"),
    Fault("evicted_in_order_of_allocation", "eviction goes by when a block was taken, not by when it was last used",
          "antonellof/ferrox#14", {"victim": min}, ("10.eviction",), "only the hit rate tells"),
    Fault("one_block_too_many", "a sequence whose length is a multiple of the page takes one page more",
          "gittensor-ai-lab/sparkinfer#110", {"blocks_for": one_too_many}, ("10.operations", "10.waste", "10.copies"),
          "every number is right; only memory tells"),
    Fault("pages_read_in_pool_order", "pages are read by their place in the pool and not by the table",
          "NVIDIA/cutlass#2221", {"read_order": sorted}, ("10.operations", "10.layer"),
          "in a fresh pool pages are handed out in order"),
    Fault("unused_slots_read", "slots behind the last token are trusted to be harmless", "flashinfer-ai/flashinfer#941",
          {"unused": keep}, ("10.operations", "10.layer", "10.unused"), "a fresh pool holds zeros"),
    Fault("two_latents_no_rope", "a row counted as two latents without the rope key", "LMCache/LMCache#694",
          {"elements": lambda config: 2 * config.kv_lora_rank}, ("10.fit",), "the ratio still looks impressive"),
)
