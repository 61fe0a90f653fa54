"""What a simulation of serving takes and gives: rates of a node, requests, and when their tokens came out."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """How fast one node is, in seconds.

    Parameters
    ----------
    prefill : callable
        For prompts of these lengths, all at once.
    step : callable
        Of a decode step for so many requests.
    mixed : callable
        Of a decode step for so many requests (or none) and so many prompt tokens.
    transfer : callable
        From the end of a prompt's prefill to the arrival of its cache at another node, if the link is free.
    slots : int
        Requests that a node's cache holds.
    batch_tokens : int
        Most prompt tokens that are prefilled at once; a longer prompt goes alone.
    chunk : int
        Most prompt tokens in a step under ``chunked``.
    """

    prefill: Callable[[tuple[int, ...]], float]
    step: Callable[[int], float]
    mixed: Callable[[int, int], float]
    transfer: Callable[[int], float]
    slots: int
    batch_tokens: int = 8192
    chunk: int = 2048


@dataclass
class Request:
    """One request: when it came, what it asks for, and when its first and its last token came out (s)."""

    arrival: float
    prompt: int
    outputs: int
    first: float = math.nan
    last: float = math.nan
    made: int = 0

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first - self.arrival

    @property
    def tpot(self) -> float:
        """Mean time per output token after the first."""
        return (self.last - self.first) / (self.outputs - 1) if self.outputs > 1 else 0.0


@dataclass(frozen=True)
class Result:
    """All requests at their end; how long each node was busy, and how long it all took (s)."""

    requests: tuple[Request, ...]
    busy: tuple[float, ...]
    seconds: float

    def attained(self, ttft: float, tpot: float) -> float:
        """The share of requests that had their first token and their tokens in time."""
        return sum(r.ttft <= ttft and r.tpot <= tpot for r in self.requests) / len(self.requests)

    def tokens_per_second(self) -> float:
        """Output tokens, from the first arrival to the last token."""
        return sum(r.outputs for r in self.requests) / self.seconds
