"""Requests through nodes that prefill and decode, together or apart: a discrete-event simulation with SimPy.

A node decodes all of its running requests in one step after another. How long a step and a prefill take is said by
`mla_lab.serving.requests.Rates`: those of `mla_lab.serving.rates` come from the roofline, and any other functions will
do. Three ways to arrange the work:

* ``prefill-first``: a node with waiting prompts does them before its next decode step;
* ``chunked``: it does some prompt tokens in every decode step (Agrawal et al., arXiv 2403.02310);
* ``apart``: some nodes only prefill, and hand the cache over a link to nodes that only decode (Zhong et al., DistServe,
  arXiv 2401.09670).

As long as nothing begins or ends on a node all of its steps are alike, so it sleeps through them in one event.
"""
from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from ..errors import InputError, positive_int, unknown
from .requests import Rates, Request, Result

POLICIES = ("prefill-first", "chunked", "apart")


class _Node:
    """What runs on one node, and what waits for it.

    A running request is a mark on the node's count of steps: it is done when the count has reached it.
    """

    def __init__(self, env: Any, rates: Rates, chunked: bool):
        self.env, self.rates, self.chunked = env, rates, chunked
        self.waiting: deque[Request] = deque()  # prompts still to do
        self.ready: deque[Request] = deque()  # requests that come with their cache
        self.marks: list[tuple[int, int, Request]] = []  # a heap
        self.counted, self.order, self.doing, self.busy = 0, count(), 0, 0.0
        self.bell = env.event()
        env.process(self.work())

    def load(self) -> int:
        return len(self.waiting) + self.doing + len(self.ready) + len(self.marks)

    def give(self, queue: deque[Request], request: Request) -> None:
        queue.append(request)
        if not self.bell.triggered:
            self.bell.succeed()

    def work(self) -> Iterator[Any]:
        while True:
            while self.ready and len(self.marks) < self.rates.slots:
                self.run(self.ready.popleft())
            if self.waiting and len(self.marks) < self.rates.slots:
                yield from self.piece() if self.chunked else self.prompts()
            elif self.marks:
                yield from self.steps()
            else:
                self.bell = self.env.event()
                yield self.bell

    def prompts(self) -> Iterator[Any]:
        """As many waiting prompts as go together; everybody who is decoding waits for them."""
        batch = take(self.waiting, self.rates.batch_tokens, self.rates.slots - len(self.marks))
        yield self.spend(self.rates.prefill(tuple(request.prompt for request in batch)), batch)
        self.admit(batch)

    def piece(self) -> Iterator[Any]:
        """One decode step, and with it the next tokens of the prompts at the head of the queue."""
        room, done, free = self.rates.chunk, [], self.rates.slots - len(self.marks)
        while self.waiting and room and len(done) < free:
            head = self.waiting[0]
            tokens = min(room, head.prompt - head.made)
            head.made, room = head.made + tokens, room - tokens  # prompt tokens, until it is admitted
            if head.made == head.prompt:
                done.append(self.waiting.popleft())
        yield self.spend(self.rates.mixed(len(self.marks), self.rates.chunk - room), done)
        self.advance(1)
        self.admit(done)

    def steps(self) -> Iterator[Any]:
        """Decode steps, until a request is done or another one comes."""
        began, each = self.env.now, self.rates.step(len(self.marks))
        steps = self.marks[0][0] - self.counted
        self.bell = self.env.event()
        done = self.env.timeout(steps * each)
        yield done | self.bell
        if not done.processed:  # somebody came: finish the step that is under way
            steps = min(steps, max(1, math.ceil((self.env.now - began) / each)))
            yield self.env.timeout(max(0.0, began + steps * each - self.env.now))
        self.busy += steps * each
        self.advance(steps)

    def spend(self, seconds: float, prompts: list[Request]) -> Any:
        self.busy += seconds
        self.doing = len(prompts)
        return self.env.timeout(seconds)

    def admit(self, prompts: list[Request]) -> None:
        """Prompts are done, and their first tokens with them."""
        self.doing = 0
        for request in prompts:
            request.first = request.last = self.env.now
            request.made = 1
            if request.outputs > 1:
                self.run(request)

    def run(self, request: Request) -> None:
        heapq.heappush(self.marks, (self.counted + request.outputs - request.made, next(self.order), request))

    def advance(self, steps: int) -> None:
        self.counted += steps
        while self.marks and self.marks[0][0] <= self.counted:
            _, _, request = heapq.heappop(self.marks)
            request.made, request.last = request.outputs, self.env.now


def take(queue: deque[Request], tokens: int, most: int) -> list[Request]:
    """The first requests of ``queue`` that together have no more prompt tokens than that; at least one."""
    batch = [queue.popleft()]
    left = tokens - batch[0].prompt
    while queue and len(batch) < most and queue[0].prompt <= left:
        batch.append(queue.popleft())
        left -= batch[-1].prompt
    return batch


def start_anew(requests: Sequence[Request], rates: Rates) -> None:
    """Refuse what cannot be simulated, and forget what an earlier simulation left in ``requests``."""
    for name in ("slots", "batch_tokens", "chunk"):
        positive_int(name, getattr(rates, name))
    if not requests:
        raise InputError("a simulation needs at least one request.")
    before = 0.0
    for number, request in enumerate(requests):
        if not before <= request.arrival < math.inf:
            raise InputError(f"request {number} arrives at {request.arrival:g} s; requests must be in the order in "
                             "which they arrive, from 0 s on.")
        positive_int(f"prompt of request {number}", request.prompt)
        positive_int(f"outputs of request {number}", request.outputs)
        before, request.made = request.arrival, 0
        request.first = request.last = math.nan


def simulate(requests: Sequence[Request], rates: Rates, policy: str, nodes: int, prefill_nodes: int = 0) -> Result:
    """Run ``requests`` to their end on ``nodes`` nodes; under ``apart`` ``prefill_nodes`` of them only prefill.

    Prompts wait in one queue for all prefill nodes. Otherwise, and behind a prefill, a request goes to the node with
    the fewest requests. Every prefill node has one link, and sends one cache at a time.
    """
    try:
        import simpy
    except ImportError:
        raise InputError("simulating a service needs simpy, which is not installed; `pip install simpy` or `make lab` "
                         "installs it.") from None
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    if not 0 <= prefill_nodes < positive_int("nodes", nodes) or (policy == "apart") != (prefill_nodes > 0):
        raise InputError(f"'apart' needs 1 to nodes - 1 prefill nodes and the other policies none, not {prefill_nodes} "
                         f"of {nodes} under {policy!r}.")
    start_anew(requests, rates)
    env = simpy.Environment()
    decoders = [_Node(env, rates, policy == "chunked") for _ in range(nodes - prefill_nodes)]
    queue: deque[Request] = deque()
    idle: deque[Any] = deque()  # bells of prefill nodes that have nothing to do
    busy = [0.0] * prefill_nodes

    def prefill(number: int) -> Iterator[Any]:
        free = 0.0  # when the node's link has sent what it was given
        while True:
            if not queue:
                idle.append(env.event())
                yield idle[-1]
                continue
            batch = take(queue, rates.batch_tokens, len(queue))
            seconds = rates.prefill(tuple(request.prompt for request in batch))
            yield env.timeout(seconds)
            busy[number] += seconds
            for request in batch:
                request.first = request.last = env.now
                request.made = 1
                if request.outputs > 1:
                    free = max(free, env.now) + rates.transfer(request.prompt)
                    env.process(hand_over(request, free - env.now))

    def hand_over(request: Request, seconds: float) -> Iterator[Any]:
        yield env.timeout(seconds)
        node = min(decoders, key=_Node.load)
        node.give(node.ready, request)

    def arrivals() -> Iterator[Any]:
        for request in requests:
            yield env.timeout(request.arrival - env.now)
            if policy == "apart":
                queue.append(request)
                if idle:
                    idle.popleft().succeed()
            else:
                node = min(decoders, key=_Node.load)
                node.give(node.waiting, request)

    for number in range(prefill_nodes):
        env.process(prefill(number))
    env.process(arrivals())
    env.run()
    return Result(tuple(requests), (*busy, *(node.busy for node in decoders)),
                  max(r.last for r in requests) - min(r.arrival for r in requests))
