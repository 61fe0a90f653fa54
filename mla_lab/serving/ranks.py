"""A rank on torch.distributed: gloo on CPUs, NCCL on GPUs (which no GPU has run yet)."""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..arrays import Array, Backend, get_backend
from ..errors import InputError
from .comm import Comm, PeerLost
from .trial import distance, inputs, on_rank, one_process

TRANSPORTS = {"gloo": "torch", "nccl": "torch-cuda"}
BROKEN = ("die", "hang")


@dataclass
class Processes(Comm):
    """Ranks that are processes. A failed collective is a `PeerLost`, whatever the transport calls it."""

    group: Any = None  # torch.distributed

    def _run(self, collective: Any, *arguments: Any) -> None:
        try:
            collective(*arguments)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise PeerLost(f"rank {self.rank} of {self.size}: another rank is gone or late ({reason})") from None

    def _collect(self, x: Array) -> list[Array]:
        x = x.contiguous()
        parts = [x.new_empty(x.shape) for _ in range(self.size)]
        self._run(self.group.all_gather, parts, x)
        return parts

    def _sum(self, x: Array) -> Array:
        x = x.clone()
        self._run(self.group.all_reduce, x)
        return x


@contextlib.contextmanager
def connected(rank: int, size: int, transport: str, meeting: str, limit: float) -> Iterator[Processes]:
    """A connection to the other ranks that meet at the address ``meeting``; closed at the end."""
    import torch.distributed as group
    if transport == "gloo" and meeting.startswith("file:"):  # all ranks are on this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        group.init_process_group(transport, init_method=meeting, rank=rank, world_size=size,
                                 timeout=timedelta(seconds=limit))
    except RuntimeError as error:
        raise PeerLost(f"rank {rank} of {size}: the ranks did not meet ({str(error).splitlines()[0][:200]})") from None
    try:
        yield Processes(rank, size, group=group)
    finally:
        group.destroy_process_group()


def placed(transport: str, rank: int, size: int, dtype: str) -> Backend:
    """Where a rank computes: on the CPU with one thread, or on a GPU of its own."""
    import torch
    if transport == "nccl":
        seen = torch.cuda.device_count()
        here = int(os.environ.get("LOCAL_RANK", rank))
        if here >= seen:
            raise InputError(f"rank {rank} of {size} needs a GPU of its own for nccl, and torch sees {seen}; use gloo.")
        torch.cuda.set_device(here)
    else:
        torch.set_num_threads(1)
    return get_backend(TRANSPORTS[transport], dtype)


def stop_with(parent: int) -> None:
    """End this process when the one that started it is gone, whatever this one is doing."""
    if sys.platform == "linux":  # the kernel's word, which reaches even a process that is stopped
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def report(comm: Processes, plans: tuple[str, ...], backend: Backend, fault: str | None, broken: str | None) -> dict:
    """What this rank found: for each plan its distance from one process, bytes, and collectives."""
    from .planted import rules_under
    weights, hidden = inputs(backend)
    reference = one_process(weights, hidden, backend)
    found: dict[str, Any] = {"pid": os.getpid(), "one process": {
        "cache_bytes": reference.cache_bytes, "weight_bytes": reference.weight_bytes}}
    for plan in plans:
        each = Processes(comm.rank, comm.size, group=comm.group)
        if broken == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif broken == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        done = on_rank(plan, each, weights, hidden, backend, rules_under(fault))
        found[plan] = {
            "distance": distance(done.output, reference.output), "cache_bytes": done.cache_bytes,
            "weight_bytes": done.weight_bytes, "sent": each.sent(),
            "collectives": {name: {"calls": c.calls, "payload": c.payload} for name, c in done.counts.items()},
        }
    return found


def all_reports(comm: Processes, mine: dict) -> list[dict]:
    """Every rank's report, on every rank."""
    every: list = [None] * comm.size
    comm._run(comm.group.all_gather_object, every, mine)
    return every
