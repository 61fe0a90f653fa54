"""CUDA graphs: a decode step is a handful of short kernels, and launching each can take longer than running it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InputError


def captured(step: Callable[[], Any], warm_up: int = 3) -> tuple[Callable[[], None], Any]:
    """Record the kernels that ``step()`` launches; return what launches them all at once, and where the results lie.

    The arrays that ``step`` reads are read again at each replay, so new queries and lengths are copied into them. The
    step runs first as it is, because tuning and compiling cannot be recorded. No GPU has run this yet.
    """
    import torch
    if not torch.cuda.is_available():
        raise InputError("a CUDA graph needs a CUDA GPU, and torch sees none here.")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph.replay, results
