"""Exercises of notebook 10: pages, tables, copies, counts."""
from __future__ import annotations

from .registry import exercise

TOKEN = 61 * 576 * 2  # bytes of a token of DeepSeek-V3 in bf16


@exercise("10", "recall", right="copy", wrong={
    "write": "the other sequence would read your token as its own",
    "refuse": "there is room, and nothing is wrong with two continuations of one text",
    "evict": "a block that stands in two tables is in use: it is the last one to be given away",
})
def check_shared_block(answer):
    """Two sequences share an unfinished block and one appends a token. First: write, copy, refuse or evict?"""
    return answer


@exercise("10", "compute", right=24 * TOKEN, wrong={
    40 * TOKEN: "1,000 mod 64 = 40 are the slots of the last page that are in use",
    24 * 576 * 2: "that is one layer; every layer has pages of its own",
    24: "those are slots; each holds a row of 576 values in bf16 in 61 layers",
    64 * TOKEN: "the last page is not empty: count only what the request leaves of it",
    24 * 61 * 576: "those are values; bf16 takes 2 bytes each",
    24 * 61 * 2 * 576 * 2: "the latent is key and value at once, so nothing is counted twice",
})
def check_empty_bytes(answer):
    """Bytes that a request of 1,000 tokens leaves empty in pages of 64: DeepSeek-V3, bf16, all layers."""
    return answer


@exercise("10", "compute", right=960, wrong={
    1000: "only whole pages are found: what stands in the rest of the last page is another text's",
    1024: "rounded up, the last page would bring 24 tokens of another text with it",
    15: "those are pages; each saves 64 tokens",
    40: "those are the tokens that must be computed again",
    936: "the shared beginning is counted from the first token: 15 pages of 64 fit into 1,000",
})
def check_found_tokens(answer):
    """Tokens found of a prompt that shares its first 1,000 tokens with a cached one, in pages of 64."""
    return answer


def _slot(table, position, size):
    return table[position // size] * size + position % size


@exercise("10", "implement", right=_slot, wrong={
    lambda table, position, size: position:
        "that is the place in the text; the table says which page of the pool holds it",
    lambda table, position, size: table[position // size] + position % size:
        "a page number is not a slot number: page k begins at slot k times the page size",
    lambda table, position, size: table[position % len(table)] * size + position // size:
        "quotient and remainder are swapped: the quotient chooses the page",
    lambda table, position, size: table[position // size] * size:
        "that is the first slot of the right page; where in the page does the token lie?",
    lambda table, position, size: table.index(position // size) * size + position % size if position // size in table
        else -1: "the table is read backwards: it is indexed by the place in the text and holds page numbers",
})
def check_slot(answer):
    """A function (table, position, page size) -> slot of the pool in which the token at this position lies."""
    return [answer(list(table), position, size) for table, position, size in (
        ((7, 2, 5), 9, 4), ((7, 2, 5), 0, 4), ((3, 1, 0, 2), 6, 2), ((3, 1, 0, 2), 7, 2))]


@exercise("10", "find the bug", right=3, wrong={
    2: "the order is right: of a beginning without its end something is found, of an end without its beginning nothing",
    4: "the question is the right one; look at what was done to the number it asks about",
    5: "a block that nobody holds does belong to the free ones",
    1: "the function is given all it needs",
})
def check_release(answer):
    """The number of the line that frees blocks which other sequences still hold."""
    return answer
