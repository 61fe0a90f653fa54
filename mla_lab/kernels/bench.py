"""What is timed, and on which sizes.

One decode step at DeepSeek-V3's widths: b requests of s cached tokens, one new token each. Every contender gets the
same numbers. On a CPU the cache stays where it is from call to call, so what fits into the last cache is read from
there: that flatters all contenders, and the products they are compared with, alike.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from ..arrays import fresh, get_backend, to_numpy
from ..config import MLAConfig
from ..errors import InputError
from ..memory import peak_bytes
from . import Scratch, decode, peers
from .counts import Work, absorbed_kernel, attention
from .roofline import Device
from .timing import Contender


@dataclass(frozen=True)
class Size:
    """A decode step: query heads, cached tokens of each request, requests."""

    heads: int
    tokens: int
    batch: int = 1

    def numbers(self, config: MLAConfig) -> int:
        """Of its queries and its cache."""
        return self.batch * (self.heads + self.tokens) * config.cached_width

    def __str__(self) -> str:
        return f"{self.heads} heads, {self.tokens:,} tokens" + f", batch {self.batch}" * (self.batch > 1)


SIZES = {
    "cpu": tuple(Size(h, s) for h in (128, 16) for s in (4096, 16384)),
    "cuda": (Size(128, 4096, 128), Size(16, 4096, 128), Size(128, 16384, 1)),
}
LIMITS = {"cpu": (2**26, 2048), "cuda": (2**28, 8192)}  # numbers copied, side of the square matrices
KERNELS = {
    ("numpy", "cpu"): ("rows", "tiled"),
    ("torch", "cpu"): ("rows", "tiled", "sdpa"),
    ("torch", "cuda"): ("triton", "rows", "tiled", "sdpa"),
}


@dataclass(frozen=True)
class Group:
    """Everything timed in the same rounds: the contenders of one size, and what the machine can do."""

    size: Size
    contenders: tuple[Contender, ...]
    left_out: tuple[str, ...]
    exact: np.ndarray  # [h, r]  output of the first request in float64
    peak: dict[str, int]  # bytes that 'tiled' allocates, by package

    def best(self, kind: str, start: str = "", package: str | None = None) -> Contender | None:
        """The fastest of a kind, of those whose name begins so; None where all were left out."""
        found = [c for c in self.contenders
                 if c.kind == kind and package in (None, c.package) and c.name.startswith(start)]
        return min(found, key=lambda c: c.median, default=None)

    @property
    def roof(self) -> Device:
        """The machine as the two numbers that were measured beside the contenders."""
        rate = max(c.work.flops / c.median for c in self.contenders if c.name == "square product")
        speed = max(c.work.bytes / c.median for c in self.contenders if c.name == "copy")
        return Device("this machine", rate, speed, "measured in this run")

    def error(self, c: Contender) -> float | None:
        """Distance from ``exact`` relative to its norm; None for what has other inputs."""
        if not c.same_inputs or c.kind not in ("kernel", "stock"):
            return None
        result = to_numpy(c.result[0] if isinstance(c.result, tuple) else c.result)
        first = result.reshape(result.shape[0], *self.exact.shape)[0].astype(np.float64)
        return float(np.linalg.norm(first - self.exact) / np.linalg.norm(self.exact))


def libraries(device: str) -> tuple[list[str], list[str]]:
    """Which libraries take part, and a line on one that is missing."""
    try:
        get_backend("torch-cuda" if device == "cuda" else "torch", "float32")
    except InputError as error:
        if device == "cuda":
            raise
        return ["numpy"], [str(error)]
    return (["torch"] if device == "cuda" else ["numpy", "torch"]), []


def convert(x: np.ndarray, package: str, device: str) -> Any:
    """float32 on a CPU, bfloat16 on a GPU."""
    if package == "numpy":
        return x.astype(np.float32)
    import torch
    return torch.tensor(x, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)


def limits(device: str, package: str) -> list[Contender]:
    """Copy bandwidth (bytes read and bytes written) and the rate of a square matrix product."""
    copied, side = LIMITS[device]
    source = convert(np.ones(copied, dtype=np.float32), package, device)
    matrix = convert(fresh()(side, side), package, device)
    xp, target, product = array_namespace(source), source * 0, matrix * 0
    copy = partial(np.copyto, target, source) if package == "numpy" else partial(target.copy_, source)
    return [Contender("copy", package, copy, Work(0, 2 * copied * source.itemsize), "limit"),
            Contender("square product", package, partial(xp.matmul, matrix, matrix, out=product),
                      Work(2 * side**3, 3 * side**2 * matrix.itemsize), "limit")]


def group(config: MLAConfig, size: Size, device: str) -> Group:
    """The contenders of one size, with arrays of their own."""
    config = replace(config, num_attention_heads=size.heads)
    used, left_out = libraries(device)
    need, free = size.numbers(config) * (8 + 4 * len(used)), peers.available_bytes("cpu")  # drawn in float64
    if need > free * 2 / 3:
        raise InputError(f"{size} take about {need / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free; take fewer.")
    draw, found, peak = fresh(), [], {}
    q = draw(size.batch, 1, size.heads, config.cached_width)
    rows = draw(size.batch, size.tokens, config.cached_width)
    for package in used:
        mine, cache = (convert(x, package, device) for x in (q, rows))
        work = size.batch * absorbed_kernel(config, 1, size.tokens - 1, cache.itemsize)
        step = Step(config, mine, cache, work, device, package)
        found += [*limits(device, package), step.products()]
        builders = [partial(step.kernel, name) for name in KERNELS[package, device]]
        if device == "cuda":
            builders.append(step.graph)
        else:
            builders.append(step.whole)
            peak[package] = step.peak()
        if package == "torch":
            chosen = peers.FOLDED + peers.EXPANDING * (size.batch == 1) + (peers.flash_mla,) * (device == "cuda")
            builders += [partial(build, step) for build in chosen]
        for build in builders:
            try:
                found.append(build())
            except InputError as error:
                left_out.append(str(error))
    return Group(size, tuple(found), tuple(left_out), step.exact(), peak)


@dataclass(frozen=True)
class Step:
    """One decode step in one package: its arrays, and the contenders made of them."""

    config: MLAConfig
    q: Any  # [b, 1, h, r+p]
    cache: Any  # [b, s, r+p]
    work: Work  # FLOPs and bytes of absorbed attention
    device: str
    package: str

    @property
    def scale(self) -> float:
        return self.config.qk_head_dim**-0.5

    @property
    def lengths(self) -> Any:
        """On a GPU they lie there too: fetching them would stall the step."""
        b, s = self.cache.shape[:2]
        if is_torch_array(self.q) and self.q.is_cuda:
            import torch
            return torch.full((b,), s, dtype=torch.int32, device=self.q.device)
        return [s] * b

    def call(self, kernel: str = "auto") -> Any:
        """`decode` of this step, with buffers that last."""
        return partial(decode, self.q, self.cache, self.lengths, self.scale, self.config.kv_lora_rank, kernel=kernel,
                       scratch=Scratch())

    def kernel(self, name: str) -> Contender:
        run = self.call(name)
        run()  # says now what it needs and does not have
        return Contender(name, self.package, run, self.work)

    def graph(self) -> Contender:
        """The Triton kernels, launched as one CUDA graph."""
        from .graph import captured
        replay, results = captured(self.call("triton"))
        return Contender("triton, CUDA graph", self.package, lambda: (replay(), results)[1], self.work)

    def products(self) -> Contender:
        """The two matrix products of the kernels on the same shapes, without the softmax."""
        xp, r = array_namespace(self.q), self.config.kv_lora_rank
        one = self.q.shape[0] == 1
        rows, keys = (self.q[0, 0], self.cache[0]) if one else (self.q[:, 0], self.cache)  # [.., h, r+p], [.., s, r+p]
        values, scores = keys[..., :r], rows @ keys.mT
        out, tall = scores @ values, keys @ rows.mT
        if self.package == "torch":  # the order in which it is faster here, as in `mla_lab.kernels.rows.score`
            run = lambda: (xp.matmul(keys, rows.mT, out=tall), xp.matmul(tall.mT, values, out=out))
        else:
            run = lambda: (xp.matmul(rows, keys.mT, out=scores), xp.matmul(scores, values, out=out))
        return Contender("products alone, same shapes", self.package, run, self.work, "limit")

    def whole(self) -> Contender:
        """W_UK on the query, the kernel, W_UV on its output: what transformers' step does as well."""
        c, q, xp = self.config, self.q, array_namespace(self.q)
        h, n, r, v, b = c.num_attention_heads, c.qk_nope_head_dim, c.kv_lora_rank, c.v_head_dim, q.shape[0]
        w_uk, w_uv = (xp.zeros(shape, dtype=q.dtype) + 0.5 for shape in ((h, n, r), (h, r, v)))
        nope, rope = xp.permute_dims(q[..., :n], (0, 2, 1, 3)), q[..., r:]  # [b, h, 1, n], [b, 1, h, p]
        scratch, lengths = Scratch(), self.lengths

        def run() -> Any:
            absorbed = xp.concat([xp.permute_dims(nope @ w_uk, (0, 2, 1, 3)), rope], axis=-1)  # [b, 1, h, r+p]
            out, _ = decode(absorbed, self.cache, lengths, self.scale, r, scratch=scratch)
            return xp.permute_dims(out, (0, 2, 1, 3)) @ w_uv  # [b, h, 1, v]

        return Contender("step with W_UK and W_UV", self.package, run,
                         b * attention(c, 1, self.cache.shape[1] - 1, "absorbed", q.itemsize), "step")

    def peak(self) -> int:
        """Bytes that 'tiled' allocates when it has no buffers yet."""
        return peak_bytes(get_backend(self.package), lambda: decode(
            self.q, self.cache, self.lengths, self.scale, self.config.kv_lora_rank, kernel="tiled"))

    def exact(self) -> np.ndarray:
        """Output of the first request, ``[h, r]``, in float64."""
        q, cache = (to_numpy(x[:1]).astype(np.float64) for x in (self.q, self.cache))
        return decode(q, cache, [cache.shape[1]], self.scale, self.config.kv_lora_rank, kernel="tiled")[0][0, 0]
