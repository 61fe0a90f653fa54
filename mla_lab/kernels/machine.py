"""What measured times depend on."""
from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

import numpy as np

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def facts(device: str, packages: Collection[str]) -> Iterator[tuple[str, str]]:
    """Names and values: the day, the machine, versions, threads."""
    yield "date", date.today().isoformat()
    yield "processor", processor()
    yield "NumPy", np.__version__
    if "torch" in packages:
        import torch
        yield "torch", torch.__version__
        if device == "cuda":
            yield "GPU", torch.cuda.get_device_name()
        yield "torch threads", str(torch.get_num_threads())
    yield "cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    for name in THREAD_VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]


def processor() -> str:
    """Its name where the system tells, else its architecture."""
    with suppress(OSError):  # Linux alone has this file
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
