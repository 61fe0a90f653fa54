"""Request traces: what is drawn, what is read, what is refused; and the books of page sizes on them."""
import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_lab.__main__ import main
from mla_lab.errors import InputError
from mla_lab.serving.blocks import PAGING
from mla_lab.serving.page_size import PAGE_SIZES, page_cost, prefixes_that_fit, replay
from mla_lab.serving.traces import Chat, Request, Trace, lengths, read_trace, synthetic

MOONCAKE = [
    {"timestamp": 27482, "input_length": 6758, "output_length": 500, "hash_ids": list(range(14))},
    {"timestamp": 30535, "input_length": 7322, "output_length": 490, "hash_ids": [0, *range(14, 28)]},
    {"timestamp": 30535, "input_length": 1024, "output_length": 0, "hash_ids": [0, 14]},
]
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:48.1,879,55
"""


def written(tmp_path, content, name="trace"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else "\n".join(map(json.dumps, content)), encoding="utf-8")
    return path


# --- synthetic ------------------------------------------------------------------------------------------------------

def test_a_synthetic_trace_says_what_it_was_drawn_from_and_is_that():
    chat = Chat(requests=3000, systems=3, turns=4, rate=5.0)
    trace = synthetic(chat, seed=1)
    assert trace == synthetic(chat, seed=1) != synthetic(chat, seed=2)
    said = ("3000 requests", "Poisson 5/s", "log-normal", "120 (sigma 1)", "3 system prompts", "geometric", "seed 1")
    assert all(word in trace.what for word in said)
    times = [r.arrival for r in trace.requests]
    assert times == sorted(times) and abs(times[-1] / 3000 - 1 / 5) < 0.02
    replies = np.log([r.output_tokens for r in trace.requests])
    assert abs(np.median(replies) - math.log(250)) < 0.06 and abs(np.std(replies) - 0.8) < 0.05
    first = [r.prompt[0][0][1] for r in trace.requests if len(r.prompt) == 2]  # conversations that begin
    share = np.bincount(first, minlength=3) / len(first)
    assert np.abs(share - np.array([6, 3, 2]) / 11).max() < 0.06
    assert abs(3000 / len(first) - 4) < 0.5


def test_a_turn_begins_with_all_that_was_said_before():
    trace = synthetic(Chat(requests=200), seed=2)
    talks = {}
    for request, shared in zip(trace.requests, trace.shared_tokens(), strict=True):
        number = request.prompt[1][0][0]
        if number in talks:
            assert request.prompt[: len(talks[number])] == talks[number]
            assert shared == sum(tokens for _, tokens in talks[number])
        else:
            assert shared in (0, request.prompt[0][1])
        talks[number] = (*request.prompt, (request.reply, request.output_tokens))
    assert max(len(t) for t in talks.values()) > 6


# --- read -----------------------------------------------------------------------------------------------------------

def test_mooncake(tmp_path):
    trace = read_trace(written(tmp_path, MOONCAKE, "conversation_trace.jsonl"))
    assert trace.what == "Mooncake trace conversation_trace.jsonl, 3 requests" and trace.granularity == 512
    assert [(r.arrival, r.input_tokens, r.output_tokens) for r in trace.requests] == [
        (0, 6758, 500), (30.535 - 27.482, 7322, 490), (30.535 - 27.482, 1024, 0)]
    assert trace.requests[0].prompt[-1] == (13, 6758 - 13 * 512)
    assert trace.shared_tokens() == [0, 512, 1024]
    assert len(read_trace(tmp_path / "conversation_trace.jsonl", limit=2).requests) == 2
    assert replay(trace, 100, 512).hit_tokens == page_cost(trace, 512).hit_tokens == 512 + 1024


def test_the_same_request_twice_finds_its_prompt_and_no_more(tmp_path):
    """Outputs of one length are not one text."""
    trace = read_trace(written(tmp_path, [MOONCAKE[0], MOONCAKE[0]]))
    assert trace.shared_tokens() == [0, MOONCAKE[0]["input_length"]]


def test_azure_has_lengths_and_no_prefixes(tmp_path):
    trace = read_trace(written(tmp_path, AZURE))
    assert [(round(r.arrival, 4), r.input_tokens, r.output_tokens) for r in trace.requests] == [
        (0, 374, 44), (1.4194, 879, 55), (4.3146, 396, 109)]
    assert trace.granularity is None and page_cost(trace, 64).hit_tokens is None
    zoned = AZURE.replace("46.6805900", "46.680590+00:00").replace("50.9951690", "50.995169+00:00")
    assert [r.input_tokens for r in read_trace(written(tmp_path, zoned)).requests] == [374, 879, 396]
    head = AZURE.splitlines()[0]
    zones = f"{head}\n2024-05-12 00:00:00+02:00,1,7\n2024-05-11 21:30:00,2,7\n2024-05-11 23:00:00+00:00,3,7\n"
    assert [(r.arrival, r.input_tokens) for r in read_trace(written(tmp_path, zones)).requests] == [
        (0, 2), (1800, 1), (5400, 3)], "a time without a zone is UTC"
    for act in (trace.shared_tokens, lambda: replay(trace, 10, 64)):
        with pytest.raises(InputError, match="says nothing of shared beginnings"):
            act()


def test_burstgpt_has_seconds_and_no_prefixes(tmp_path):
    trace = read_trace(written(tmp_path, BURST))
    assert [(r.arrival, r.input_tokens, r.output_tokens) for r in trace.requests] == [(0, 472, 18), (40.5, 1087, 230)]
    assert trace.granularity is None and trace.what.startswith("BurstGPT trace")


def bad(line, **changes):
    return [*MOONCAKE[:line], MOONCAKE[line] | changes, *MOONCAKE[line + 1 :]]


@pytest.mark.parametrize("content, words", [
    ("", ["not a trace", "Mooncake", "Azure"]), ("hello\n", ["not a trace"]), ("{\n", ["line 1", "not a JSON object"]),
    ('{"timestamp": 1}\n', ["line 1", "'input_length'"]), ([MOONCAKE[0], [1]], ["line 2", "not a JSON object"]),
    (bad(1, input_length=-1), ["line 2", "input_length", "'-1'"]), (bad(1, input_length=1.5), ["line 2", "'1.5'"]),
    (bad(0, output_length=True), ["output_length", "'True'"]), (bad(2, hash_ids=[0]), ["line 3", "must hold 2"]),
    (bad(2, hash_ids=[0, "x"]), ["must hold 2 whole numbers"]), (bad(0, hash_ids=7), ["must hold 14"]),
    (bad(0, timestamp="now"), ["timestamp", "'now'"]), (bad(0, timestamp=-5), ["timestamp", "-5"]),
    (json.dumps(MOONCAKE[0]).replace("27482", "NaN"), ["timestamp", "nan"]),
    ("{" + '"a":{' * 100_000 + "\n", ["line 1", "not a JSON object"]),
    (bad(0, timestamp=10**400), ["line 1", "from 0 to 10^15"]),
    (BURST.replace("45.5", "inf"), ["line 3", "Timestamp must be like 45", "'inf'"]),
    (BURST.replace("45.5", "soon"), ["line 3", "Timestamp", "'soon'"]),
    (BURST.replace("Response", "Reply"), ["no column 'Response tokens'", "'Reply tokens'"]),
    (AZURE.replace("TIMESTAMP", "TIME"), ["no column 'TIMESTAMP'", "'TIME'"]),
    (AZURE.replace("374", "37x"), ["line 2", "ContextTokens", "'37x'"]),
    (AZURE.replace("109", ""), ["line 3", "GeneratedTokens", "''"]),
    (AZURE.replace("2023-11-16 18:15:46.6805900", "yesterday"), ["line 2", "TIMESTAMP", "'yesterday'"]),
    (AZURE.replace(",109", ""), ["line 3", "GeneratedTokens", "'None'"]),
    (AZURE.splitlines()[0] + "\n", ["holds no request"]),
])
def test_what_is_not_a_trace_is_refused_by_line(tmp_path, content, words):
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert all(word in text for word in [str(path), *words]) and text.endswith(".") and "\n" not in text, text


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "gone")
    with pytest.raises(InputError, match="directory"):
        read_trace(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(InputError, match="not UTF-8"):
        read_trace(tmp_path / "x")
    with pytest.raises(InputError, match="limit"):
        read_trace(tmp_path / "x", limit=0)


# --- page sizes -----------------------------------------------------------------------------------------------------

@given(st.lists(st.integers(1, 999), min_size=1, max_size=9), st.sampled_from(PAGE_SIZES))
def test_the_books_of_a_page_size(tokens, size):
    trace = Trace("made up", tuple(Request(0, ((i, n),), 0) for i, n in enumerate(tokens)), 1)
    cost = page_cost(trace, size)
    assert cost.tokens == sum(tokens) == sum(lengths(trace)) and 0 <= cost.empty_slots < size * len(tokens)
    assert cost.table_bytes == 4 * sum(math.ceil(n / size) for n in tokens)
    assert cost.empty_share == Fraction(cost.empty_slots, cost.empty_slots + cost.tokens) and cost.hit_share == 0


def test_larger_pages_cost_memory_and_hits_and_save_table():
    costs = [page_cost(synthetic(), size) for size in PAGE_SIZES]
    for smaller, larger in pairwise(costs):
        assert smaller.empty_share < larger.empty_share and smaller.hit_share > larger.hit_share
        assert smaller.table_bytes > larger.table_bytes
    assert costs[0].empty_slots == 0 and float(costs[6].empty_slots / 400) == pytest.approx(31.5, rel=0.1)


@pytest.mark.parametrize("size", [1, 16, 64, 256])
def test_an_endless_pool_finds_what_the_formula_says(size):
    trace = synthetic(Chat(requests=80), seed=7)
    run = replay(trace, 10**6 // size, size)
    assert run.hit_tokens == page_cost(trace, size).hit_tokens and (run.evicted, run.refused, run.waited) == (0, 0, 0)


def test_a_small_pool_evicts_waits_and_refuses_and_finds_less():
    trace = synthetic(Chat(requests=80), seed=7)
    shares = [replay(trace, blocks, 64).hit_share for blocks in (40, 120, 400, 4000)]
    assert shares == sorted(shares) and shares[0] < shares[-1] / 2
    small = replay(trace, 40, 64)
    assert small.evicted > 100 and small.waited > 10 and small.refused > 0
    assert replay(trace, 40, 64, running=2, rules=PAGING).waited < small.waited


def test_prefixes_that_fit():
    assert prefixes_that_fit(10**12, 2048, 70_272, 64) == 10**12 // (64 * 70_272) // 32 == 6948
    assert prefixes_that_fit(100, 3, 10) == 3 and prefixes_that_fit(100, 3, 10, 4) == 2
    assert prefixes_that_fit(100, 1, Fraction(3, 4)) == 133


def test_a_trace_of_empty_prompts_divides_by_nothing(tmp_path):
    trace = read_trace(written(tmp_path, [{"timestamp": 0, "input_length": 0, "output_length": 0, "hash_ids": []}]))
    cost = page_cost(trace, 64)
    assert cost.empty_share == cost.hit_share == replay(trace, 3, 64).hit_share == 0


# --- the command ----------------------------------------------------------------------------------------------------

def run(capsys, *words):
    code = main(["pages", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_prints_the_books(tmp_path, capsys):
    code, out, err = run(capsys)
    assert code == 0 and not err and "synthetic: 400 requests" in out and "70,272 B a token" in out
    assert out.splitlines()[-3].split()[:3] == ["64", "16,507", "13,051"]
    code, out, _ = run(capsys, "--trace", written(tmp_path, MOONCAKE), "--page", 64, "--page", 512, "--json")
    found = json.loads(out)
    assert code == 0 and found["granularity"] == 512 and [row["page_size"] for row in found["page_sizes"]] == [64, 512]
    assert [row["hit_tokens"] for row in found["page_sizes"]] == [1536, 1536]
    assert found["page_sizes"][1]["empty_bytes"] == found["page_sizes"][1]["empty_slots"] * found["bytes_per_token"]
    code, out, _ = run(capsys, "--trace", written(tmp_path, MOONCAKE), "--page", 64, "--model", "Kimi-K2-Instruct")
    assert code == 0 and "in steps of 512 tokens" in out and "Kimi-K2-Instruct" in out
    code, out, _ = run(capsys, "--trace", written(tmp_path, AZURE), "--requests", 2)
    assert code == 0 and "nothing can be said" in out and out.splitlines()[-1].split()[-1] == "unknown"


@pytest.mark.parametrize("words, said", [
    (["--trace", "gone.jsonl"], "cannot read gone.jsonl"), (["--model", "DeepSek-V3"], "did you mean 'DeepSeek-V3'?"),
    (["--requests", 100_001], "at most 100,000"), (["--page", 0], "whole number"),
    (["--requests", "x"], "whole number")])
def test_the_command_refuses_in_one_sentence(capsys, words, said):
    try:
        code, out, err = run(capsys, *words)
    except SystemExit as stop:
        code, (out, err) = stop.code, capsys.readouterr()
    assert code == 2 and not out and said in err and "Traceback" not in err
