"""Exercises of notebook 13: what a split protects, what a transfer costs, who fits, and a wrong time per token."""
from __future__ import annotations

from .registry import exercise


@exercise("13", "recall", right="b", wrong={
    "a": "with all requests at hand and no limits, four nodes that do everything were done first",
    "c": "a server that puts prompts first does that on all of its nodes; after a split only some of them prefill",
    "d": "nothing is computed or cached twice or not at all: there is one more copy on the way",
})
def check_what_a_split_protects(answer):
    """What is better after a split than with prompts first: a tokens/s, b the time per token, c the TTFT, d memory?"""
    return answer


@exercise("13", "compute", close=5e-3, right=4096 * 70272 / 25e9 * 1e3, wrong={
    4096 * 70272 / 200e9 * 1e3: "200 Gb/s are bits; a byte has 8 of them",
    4096 * 71424 / 25e9 * 1e3: "DeepSeek-V3 has 61 layers; the 62nd is the MTP module",
    4096 * 1152 / 25e9 * 1e3: "that is one layer; there are 61",
    4096 * 35136 / 25e9 * 1e3: "bf16 takes 2 B a value",
    4096 * 61 * 128 * 256 * 2 / 25e9 * 1e3: "those are keys and values of 128 heads; MLA sends the latent",
    4096 * 70272 / 8 / 25e9 * 1e3: "one link carries all of it: the latent is not cut by 8",
    4096 * 70272 / 25e9: "that is in seconds; milliseconds are asked for",
})
def check_transfer(answer):
    """ms for the cache of 4,096 tokens of DeepSeek-V3 (61 layers, 576 numbers, bf16) over one link of 200 Gb/s."""
    return answer


def _users(room, token, context, page):
    return room // (token * page * -(-context // page))


def _fraction(room, token, context, page):
    return room / (token * page * -(-context // page))


def _no_pages(room, token, context, page):
    return room // (token * context)


def _pages_cut(room, token, context, page):
    return room // (token * page * (context // page)) if context >= page else 0


def _one_page_more(room, token, context, page):
    return room // (token * page * (context // page + 1))


def _tokens(room, token, context, page):
    return room // token


@exercise("13", "implement", right=_users, wrong={
    _fraction: "half a user cannot be served: round down",
    _no_pages: "a request takes whole pages: round its tokens up to a multiple of the page first",
    _pages_cut: "its last page is rarely full, but the request needs it: round the tokens up, not down",
    _one_page_more: "a request whose tokens fill their pages exactly takes no further page",
    _tokens: "that is the number of tokens that fit; a user has `context` of them",
})
def check_users(answer):
    """A function (room in bytes, bytes of a token, tokens of a user, tokens of a page) -> users that fit."""
    inputs = ((7_000_000, 1152, 1000, 64), (1_000_000, 100, 128, 64), (10_000_000, 70_272, 65, 64), (999, 10, 3, 16))
    return [answer(*x) for x in inputs]


@exercise("13", "find the bug", right=3, wrong={
    1: "the first token is timed from the arrival, queue included: right",
    2: "the last token is timed when it came out: right",
    4: "both limits have to hold for the same request: right",
    5: "the share of requests in time: right",
})
def check_tpot_line(answer):
    """The number of the line that makes a slow engine look fast."""
    return answer
