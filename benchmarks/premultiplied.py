"""Time one token's output projection at DeepSeek-V3's size: W_UV and W_O apart, against their product made in advance.

``python benchmarks/premultiplied.py``; needs 3 GB. The ratio is what counts: both are timed in turn, in one run.
"""
from __future__ import annotations

import statistics
import time

import numpy as np

from mla_lab.models import get_mla
from mla_lab.weights import exact_noise

ROUNDS = 7


def main() -> None:
    config = get_mla("DeepSeek-V3").mla
    h, r, v, d = config.num_attention_heads, config.kv_lora_rank, config.v_head_dim, config.hidden_size
    rng = np.random.default_rng(0)
    z, w_uv, w_o = exact_noise(rng, h, 1, r), exact_noise(rng, h, r, v), exact_noise(rng, h * v, d)
    merged = np.concatenate([w_uv[i] @ w_o[i * v : (i + 1) * v] for i in range(h)])  # [h r, d]
    ways = {
        "apart": (lambda: (z @ w_uv).reshape(1, h * v) @ w_o, w_uv.size + w_o.size),
        "in advance": (lambda: z.reshape(1, h * r) @ merged, merged.size),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (run, _size) in ways.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    print(f"one token, {h} heads, r = {r}, v = {v}, d = {d:,}, float32, median of {ROUNDS}")
    for name, (_, size) in ways.items():
        print(f"{name:<11} {size:>12,} weights  {1e3 * statistics.median(seconds[name]):8.1f} ms")
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    print(f"the product made in advance takes {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
