"""Ranks as processes of one host: started, watched, and named if they are lost."""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path

from ..errors import InputError
from .comm import PeerLost

LOST = 3  # exit code of a run that lost a rank, and of a rank that lost another one


class RankLost(RuntimeError):
    """A rank died or gave no result in time."""


def alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def work(rank: int, size: int, args: argparse.Namespace, meeting: str) -> list[dict]:
    """What a rank does; returns the reports of all ranks."""
    from .ranks import all_reports, connected, placed, report
    backend = placed(args.transport, rank, size, args.dtype)
    with connected(rank, size, args.transport, meeting, args.limit / 2) as comm:  # a frozen rank is then the last
        broken = args.how if rank == args.break_rank else None
        return all_reports(comm, report(comm, tuple(args.plan), backend, args.fault, broken))


def child(rank: int, size: int, args: argparse.Namespace, meeting: str, result: str, parent: int) -> None:
    """A rank that `host` has started. Its exit code says whose fault a failure is."""
    from .ranks import stop_with
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; whoever started the ranks stops them
    stop_with(parent)
    try:
        reports = work(rank, size, args, meeting)
    except PeerLost:  # whoever started the ranks knows which one was lost, and says so once
        os._exit(LOST)
    except InputError as error:
        Path(result).with_suffix(".refused").write_text(str(error), encoding="utf-8")
        os._exit(2)
    if rank == 0:
        Path(result).write_text(json.dumps(reports), encoding="utf-8")


def host(args: argparse.Namespace) -> list[dict]:
    """Start the ranks, wait, and return their reports; nothing of them is left in any case.

    Raises
    ------
    RankLost
        If one ends without a result, or all are not done within ``args.limit`` seconds.
    """
    import torch.distributed  # noqa: F401 - once: forked ranks have it already
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    size, deadline = args.processes, time.monotonic() + args.limit
    with tempfile.TemporaryDirectory(prefix="mla_lab_") as folder:
        result = Path(folder) / "reports.json"
        ranks = [context.Process(target=child, args=(rank, size, args, f"file://{folder}/meeting", str(result),
                                                     os.getpid()), daemon=True) for rank in range(size)]
        try:
            for process in ranks:
                process.start()
            while running := [process for process in ranks if process.exitcode is None]:
                wait([process.sentinel for process in running], timeout=max(0.0, deadline - time.monotonic()))
                if any(process.exitcode for process in ranks) or time.monotonic() >= deadline:
                    break
            wait_for_causes(ranks, deadline)
            refused = result.with_suffix(".refused")
            if refused.exists():
                raise InputError(refused.read_text(encoding="utf-8"))
            lost = cause([process.exitcode for process in ranks], args.limit)
            if lost:
                raise RankLost(lost)
            return json.loads(result.read_text(encoding="utf-8"))
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def wait_for_causes(ranks: Sequence[multiprocessing.Process], deadline: float) -> None:
    """A rank that lost another one may be seen first: give the lost one a moment to be seen as well."""
    until = min(deadline, time.monotonic() + 1.0)
    while all(p.exitcode in (None, 0, LOST) for p in ranks) and any(p.exitcode == LOST for p in ranks):
        left = until - time.monotonic()
        running = [p.sentinel for p in ranks if p.exitcode is None]
        if left <= 0 or not running:
            return
        wait(running, timeout=left)


def cause(codes: Sequence[int | None], limit: float) -> str:
    """Why there is no result, from the ranks' exit codes (None: still running); empty if there is one.

    A killed rank comes first, then one that failed by itself, then one that stands still. Ranks that lost another one
    are only its consequence.
    """
    size = len(codes)
    for rank, code in sorted(enumerate(codes), key=lambda item: (item[1] or 0) >= 0):
        if code is not None and code < 0:
            return f"rank {rank} of {size} was killed by {signal.Signals(-code).name}; the other ranks were stopped"
        if code not in (None, 0, LOST):
            return f"rank {rank} of {size} ended with exit code {code}; the other ranks were stopped"
    silent = [str(rank) for rank, code in enumerate(codes) if code is None]
    if silent:
        ranks = f"rank{'s' * (len(silent) > 1)} {', '.join(silent)} of {size}"
        return f"{ranks} gave no result within the limit of {limit:g} s; all ranks were stopped"
    return f"the {size} ranks lost one another" if LOST in codes else ""
