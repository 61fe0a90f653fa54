"""One node, one step after the other, without any events: what `mla_lab.serving.simulate` must agree with."""
from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from .requests import Rates, Request
from .simulate import take


def by_steps(requests: Sequence[Request], rates: Rates, chunked: bool = False) -> int:
    """Fill in when each request's tokens came out; returns the number of steps, prefills and idle waits it took."""
    coming, waiting, running = deque(requests), deque(), []
    now, turns = 0.0, 0
    while coming or waiting or running:
        while coming and coming[0].arrival <= now:
            waiting.append(coming.popleft())
        turns += 1
        free, admitted = rates.slots - len(running), []
        if waiting and free and not chunked:
            admitted = take(waiting, rates.batch_tokens, free)
            now += rates.prefill(tuple(request.prompt for request in admitted))
        elif running or (waiting and free):
            tokens = 0
            while chunked and waiting and tokens < rates.chunk and len(admitted) < free:
                part = min(rates.chunk - tokens, waiting[0].prompt - waiting[0].made)
                waiting[0].made += part
                tokens += part
                if waiting[0].made == waiting[0].prompt:
                    admitted.append(waiting.popleft())
            now += rates.mixed(len(running), tokens) if tokens else rates.step(len(running))
            for request in running:
                request.made, request.last = request.made + 1, now
        else:
            now = coming[0].arrival
        for request in admitted:
            request.made, request.first, request.last = 1, now, now
        running = [request for request in [*running, *admitted] if request.made < request.outputs]
    return turns


def waits_in_a_queue(arrivals: Sequence[float], service: float) -> list[float]:
    """Waiting times before one server that takes ``service`` seconds for each, first come first served.

    Lindley's recursion (Proc. Cambridge Phil. Soc. 48 (1952) 277): W' = max(0, W + service - gap).
    """
    waits = [0.0]
    for before, after in pairwise(arrivals):
        waits.append(max(0.0, waits[-1] + service - (after - before)))
    return waits
