"""Claims on work and traffic: FLOPs, bytes, and which of them binds."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from .. import footprint as fp
from ..config import MLAConfig
from ..kernels.counts import absorb, absorbed_kernel, attention, mha_kernel
from ..kernels.roofline import DEVICES, Device, intensity_limit
from ..models import get_model
from ..serving.checks13_serving import RIGHT, Rules, apart, memory_bound
from ..serving.page_size import KERNEL_PAGES
from ..serving.planted13 import PLANTED as FAULTS
from ..verdict import Setting
from .ledger import Finding

V3 = get_model("DeepSeek-V3")
# The decode kernel of deepseek-ai/FlashMLA as first released and after: sources named by commit.
FLASH_MLA = {"csrc/flash_fwd_mla_kernel.h": "927eebc", "csrc/kernels/mla_combine.cu": "287061e",
             "csrc/kernels/get_mla_metadata.h": "287061e", "csrc/flash_api.cpp": "287061e",
             "csrc/cuda_kernels/smxx/decode/combine/combine.cu": "a123d0b"}
LANGUAGES = {".cu": "CUDA C++", ".cuh": "CUDA C++", ".h": "C++", ".cpp": "C++", ".py": "Python (Triton)"}
CLAIMED = (3.0e12, 660e12)  # B/s and FLOP/s on H800, README of deepseek-ai/FlashMLA
PLANTED = {fault.id: fault for fault in FAULTS}


def per_step(kernel: Callable = absorbed_kernel) -> Finding:
    """FLOPs of a decode step at 8,192 and 16,384 cached tokens."""
    short, long = (kernel(V3.mla, 1, cached).flops for cached in (8192, 16_384))
    return Finding(short == long, f"absorption {absorb(V3.mla, 1).flops / 1e6:.1f} MFLOP a step whatever is cached; "
                                  f"attention {(long - short) // 8192:,} FLOP for every cached token")


def traffic(said: float = 50, expanded: Callable[[MLAConfig], int] = fp.expanded_elements) -> Finding:
    m = V3.mla
    mha, own = (n / m.cached_width for n in (fp.mha_baseline(V3), expanded(m)))
    flops = absorbed_kernel(m, 1, 0).flops / mha_kernel(m, 1, 0).flops
    whole = {n: attention(m, 1, n, "mha").bytes / attention(m, 1, n, "absorbed").bytes for n in (1024, 131_072)}
    return Finding(mha > said and own > said, f"cache bytes {mha:.1f} times fewer than MHA's and {own:.1f} than the "
                   f"expanded cache's, FLOPs a cached token {flops:.1f} times more; with W_UK and W_UV read as well, "
                   f"{whole[1024]:.1f} times at 1,024 tokens and {whole[131_072]:.1f} at 131,072",
                   min(whole.values()) > said)


def bound(devices: Mapping[str, Device] = DEVICES, rules: Rules = RIGHT) -> Finding:
    mla = intensity_limit(V3.mla)
    mha = mha_kernel(V3.mla, 1, 10**6).intensity
    seen = memory_bound(Setting(None, V3.mla), rules).saw.values()
    by = {name: devices[name].bound(mla) for name in ("H800", "H200")}
    return Finding(all(row[0] == "memory" and row[2] == "arithmetic" for row in seen),
                   f"prefill of 8,192 tokens compute-bound on {len(seen)} GPUs; decode: MHA {mha:.1f} FLOP/B, "
                   f"memory-bound; MLA {mla:.1f} FLOP/B, "
                   + ", ".join(f"{b}-bound on {name} (ridge {devices[name].ridge:.0f})" for name, b in by.items()),
                   set(by.values()) == {"memory"})


def language(sources: Mapping[str, str] = FLASH_MLA, said: str = "Python (Triton)") -> Finding:
    found = Counter(LANGUAGES[PurePosixPath(path).suffix] for path in sources)
    h800 = DEVICES["H800"]
    shares = CLAIMED[0] / h800.bandwidth, CLAIMED[1] / h800.flops
    return Finding(said in found, f"{len(sources)} sources of its decode kernel: " + ", ".join(
        f"{n} {name}" for name, n in sorted(found.items())) + f"; the 3,000 GB/s and 660 TFLOP/s claimed for it are "
        f"{fp.percent(shares[0], 0)} and {fp.percent(shares[1], 0)} of H800's peaks; its page is "
        f"{KERNEL_PAGES['FlashMLA']}")


def split(rules: Rules = RIGHT) -> Finding:
    """The simulated scenario of case 13: with limits on the times, against each alternative, and without limits."""
    saw = apart(Setting(None, V3.mla), rules).saw
    first, chunked, alone = saw["requests/s in time"]
    seconds = saw["seconds for all at once"]
    best = min(seconds[name] for name in seconds if "apart" in name)
    whole = seconds["prefill first"]
    return Finding(3 * first <= alone <= 4 * first,
                   f"4 nodes of 8 H200, simulated: {alone:g} requests/s in time against {first:g} with prefill first "
                   f"and {chunked:g} with chunked prefill; all at once, {best:.0f} s against {whole:.0f} s",
                   alone > chunked and best < whole)


SETTLE = {
    "A20": (per_step, {"kernel": lambda config, new, cached: absorb(config, new)}),
    "A21": (traffic, {"expanded": lambda config: 4096}),
    "A25": (bound, {"devices": DEVICES | {"H200": DEVICES["H800"]}}),
    "A26": (language, {"sources": {"flash_mla/decode.py": "planted"}}),
    "A28": (split, {"rules": PLANTED["prompts_cost_nothing"].spoil(RIGHT)}),
}
