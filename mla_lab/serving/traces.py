"""Request traces: synthetic ones with stated distributions, and three public formats read from a file.

A prompt is a sequence of runs ``(identity, tokens)``: two prompts share their beginning as far as their runs agree.
"""
from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import numpy as np

from ..errors import InputError, positive_int

Run = tuple[Hashable, int]  # identity of a piece of text, and its tokens
MOONCAKE_BLOCK = 512  # tokens behind one entry of hash_ids
MOST_SYNTHETIC = 100_000


@dataclass(frozen=True)
class Request:
    """One call: when it arrived (seconds after the first), its prompt, and what was generated."""

    arrival: float
    prompt: tuple[Run, ...]
    output_tokens: int
    reply: Hashable = None  # identity of the output, where a later prompt may contain it

    @property
    def input_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival.

    Parameters
    ----------
    what : str
        Where they come from, or from which distributions they were drawn.
    requests : tuple of Request
    granularity : int or None
        How finely shared beginnings are known, in tokens: 1 where every token is, None where nothing is known.
    """

    what: str
    requests: tuple[Request, ...]
    granularity: int | None

    def shared_tokens(self) -> list[int]:
        """For each request, the tokens at its beginning that an earlier prompt or reply left in an endless cache."""
        if self.granularity is None:
            raise InputError(f"{self.what} says nothing of shared beginnings; prefix hits need a trace that does.")
        root, found = {}, []
        for request in self.requests:
            node, shared = root, 0
            for run in (*request.prompt, (request.reply, request.output_tokens)):
                shared += run[1] if run in node else 0
                node = node.setdefault(run, {})
            found.append(min(shared, request.input_tokens))  # a reply is not a beginning
        return found


# --- synthetic ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Chat:
    """Conversations: a system prompt, then turns, each with all that was said before as its prompt.

    Lengths in tokens are log-normal, given by median and sigma (of the logarithm). How many turns a conversation has is
    geometric; which system prompt it starts with follows Zipf's law (the k-th has a share proportional to 1/k);
    requests arrive as a Poisson process, and conversations take turns at random.
    """

    requests: int = 400
    systems: int = 8
    system: tuple[float, float] = (800.0, 0.6)
    message: tuple[float, float] = (120.0, 1.0)
    reply: tuple[float, float] = (250.0, 0.8)
    turns: float = 4.0  # mean
    open_at_once: int = 20
    rate: float = 2.0  # requests a second

    def __str__(self) -> str:
        lengths = ", ".join(f"{name} {median:g} (sigma {sigma:g})" for name, (median, sigma) in (
            ("system prompt", self.system), ("message", self.message), ("reply", self.reply)))
        return (f"{self.requests} requests, Poisson {self.rate:g}/s; log-normal lengths, medians in tokens: {lengths}; "
                f"{self.systems} system prompts by Zipf's law; {self.turns:g} turns on average, geometric")


def synthetic(chat: Chat | None = None, seed: int = 0) -> Trace:
    """A trace drawn from the distributions of ``chat``, the same for the same seed."""
    chat, rng = chat or Chat(), np.random.default_rng(seed)
    if positive_int("requests", chat.requests) > MOST_SYNTHETIC:
        raise InputError(f"requests must be at most {MOST_SYNTHETIC:,} for a synthetic trace, not {chat.requests:,}.")

    def length(median: float, sigma: float) -> int:
        return max(1, round(median * math.exp(sigma * float(rng.standard_normal()))))

    systems = [(("system", k), length(*chat.system)) for k in range(chat.systems)]
    share = 1 / np.arange(1, chat.systems + 1)
    requests, talks, started, now = [], [], 0, 0.0
    for _ in range(chat.requests):
        now += float(rng.exponential(1 / chat.rate))
        while len(talks) < chat.open_at_once:
            talks.append((started, [systems[int(rng.choice(chat.systems, p=share / share.sum()))]]))
            started += 1
        at = int(rng.integers(len(talks)))
        number, said = talks[at]
        said.append(((number, "message", len(said)), length(*chat.message)))
        reply, tokens = (number, "reply", len(said)), length(*chat.reply)
        requests.append(Request(now, tuple(said), tokens, reply))
        said.append((reply, tokens))
        if rng.random() < 1 / chat.turns:
            del talks[at]
    return Trace(f"synthetic: {chat}; seed {seed}", tuple(requests), 1)


# --- public formats -------------------------------------------------------------------------------------------------

def read_trace(path: str | os.PathLike, limit: int | None = None) -> Trace:
    """Read the first ``limit`` requests (all by default) of a file in one of three public formats.

    * Mooncake, JSON lines: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``, one for every 512
      tokens of the prompt or part of them (github.com/kvcache-ai/Mooncake, FAST25-release/traces).
    * Azure LLM inference, CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens`` (github.com/Azure/AzurePublicDataset). It
      says nothing of shared beginnings.
    * BurstGPT, CSV: ``Timestamp`` (s), ``Request tokens``, ``Response tokens`` and more (github.com/HPMLL/BurstGPT).
      It says nothing of them either.

    Raises
    ------
    InputError
        If the file cannot be read or a line is not what its format promises; the line is named.
    """
    path, limit = os.fspath(path), None if limit is None else positive_int("limit", limit)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            if first.lstrip().startswith("{"):
                requests, name, granularity = _mooncake(path, file), "Mooncake", MOONCAKE_BLOCK
            elif "ContextTokens" in first:
                requests, name, granularity = _table(path, file, AZURE, since_1970), "Azure", None
            elif "Request tokens" in first:
                requests, name, granularity = _table(path, file, BURST, float), "BurstGPT", None
            else:
                raise InputError(f"{path} is not a trace: its first line should be a JSON object with timestamp, "
                                 "input_length, output_length and hash_ids (Mooncake), or a heading with "
                                 f"{','.join(AZURE)} (Azure) or {','.join(BURST)} (BurstGPT).")
            found = list(islice(requests, limit))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a trace: it is not UTF-8 text.") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error}.") from None
    if not found:
        raise InputError(f"{path} holds no request.")
    start = min(request.arrival for request in found)
    found = sorted((Request(r.arrival - start, r.prompt, r.output_tokens) for r in found), key=lambda r: r.arrival)
    return Trace(f"{name} trace {os.path.basename(path)}, {len(found)} requests", tuple(found), granularity)


def _mooncake(path: str, lines: Iterator[str]) -> Iterator[Request]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _mooncake_line(line, f"{path}, line {number}")


def _mooncake_line(line: str, where: str) -> Request:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not a JSON object.") from None
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object.")
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in row:
            raise InputError(f"{where} has no {name!r}.")
    tokens, ids = _count(row["input_length"], "input_length", where), row["hash_ids"]
    if not isinstance(ids, list) or len(ids) != -(-tokens // MOONCAKE_BLOCK) or any(
            isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise InputError(f"{where}: hash_ids must hold {-(-tokens // MOONCAKE_BLOCK)} whole numbers, one for every "
                         f"{MOONCAKE_BLOCK} of {tokens} tokens or part of them.")
    runs = [(i, min(MOONCAKE_BLOCK, tokens - MOONCAKE_BLOCK * n)) for n, i in enumerate(ids)]
    time = row["timestamp"]
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not 0 <= time <= 10**15:
        raise InputError(f"{where}: timestamp must be a number of milliseconds from 0 to 10^15, "
                         f"not {time!r:.40}.")
    return Request(time / 1000, tuple(runs), _count(row["output_length"], "output_length", where))


AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")  # arrival, prompt, output
BURST = ("Timestamp", "Request tokens", "Response tokens")
LIKE = {"TIMESTAMP": "2023-11-16 18:15:46.68,", "Timestamp": "45 or 45.5, in seconds,"}


def since_1970(text: str) -> float:
    """Seconds of a date and time, which is UTC where it names no zone."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _table(path: str, lines: Iterator[str], names: Sequence[str], seconds: Callable[[str], float]) -> Iterator[Request]:
    rows, (at, prompt, reply) = csv.DictReader(lines), names
    for name in names:
        if name not in (rows.fieldnames or ()):
            raise InputError(f"{path} has no column {name!r}; it has {', '.join(map(repr, rows.fieldnames or ()))}.")
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        try:
            arrival = seconds((row[at] or "").strip())
        except (ValueError, OverflowError):
            arrival = math.nan
        if not abs(arrival) <= 10**12:
            raise InputError(f"{where}: {at} must be like {LIKE[at]} not {row[at]!r}.")
        yield Request(arrival, ((rows.line_num, _count(row[prompt], prompt, where)),),
                      _count(row[reply], reply, where))


def _count(value: object, name: str, where: str) -> int:
    """A number of tokens from 0 to a billion."""
    text = value if isinstance(value, str) else ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 10**9:
        raise InputError(f"{where}: {name} must be a whole number of tokens from 0 to 10^9, not {str(value)[:40]!r}.")
    return number


def lengths(trace: Trace) -> Sequence[int]:
    """Tokens of each request when it is done."""
    return [request.tokens for request in trace.requests]
