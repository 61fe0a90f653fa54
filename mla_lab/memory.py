"""How many bytes a computation allocates at its peak, measured and not estimated."""
from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable

from .arrays import Backend


def peak_bytes(backend: Backend, work: Callable[[], object]) -> int:
    """Largest number of bytes alive at once among those that ``work`` allocates on ``backend``.

    NumPy reports its buffers to tracemalloc, CUDA keeps its own high-water mark, and on torch's CPU every
    new storage is watched from its operator until nothing refers to it.
    """
    if backend.name == "torch-cuda":
        import torch
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if backend.name == "torch":
        return _peak_of_torch(work)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _peak_of_torch(work: Callable[[], object]) -> int:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        """Counts each new storage until Python lets go of it."""

        alive = peak = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                    storage = tensor.untyped_storage()
                    self.alive += storage.nbytes()
                    self.peak = max(self.peak, self.alive)
                    weakref.finalize(storage, self.forget, storage.nbytes())
            return result

        def forget(self, nbytes: int) -> None:
            self.alive -= nbytes

    with Watch() as seen:
        work()
    return seen.peak
