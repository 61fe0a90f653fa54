"""The options that tell vLLM and SGLang what a `Deployment` assumes, and those assumptions in words.

Options of servers change between releases: each is given with the page of the documentation that it was read on, and
none was run here.
"""
from __future__ import annotations

from collections.abc import Sequence

from .. import footprint as fp
from .capacity import WEIGHT_DTYPES, Deployment
from .step import NETWORK_GB, NODE

VLLM = "https://docs.vllm.ai/en/v0.8.5/serving/engine_args.html"
VLLM_DP = "https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/"
VLLM_EP = "https://docs.vllm.ai/projects/recipes/en/latest/DeepSeek/DeepSeek-V3.html"
VLLM_DCP = "https://docs.vllm.ai/projects/ascend/en/latest/user_guide/feature_guide/context_parallel.html"
SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
SGLANG_DP = "https://docs.sglang.io/basic_usage/deepseek_v32.html"
SGLANG_DCP = "https://docs.sglang.io/docs/advanced_features/dcp.md"
SGLANG_KV = "https://docs.sglang.io/docs/advanced_features/quantized_kv_cache.md"

Option = tuple[str, str]  # as it is typed, and where it is documented


def _kv(d: Deployment, flat: str) -> str | None:
    """The cache format's name for an engine whose flat fp8 is ``flat``; '' for its default, None if it has none."""
    if d.kv_dtype == "bf16":
        return ""
    # Where attention is sparse, both engines store fp8 rows as 512 + 16 + 128 B, which is "fp8-tile" here.
    return flat if d.kv_dtype == ("fp8-tile" if d.model.index_layers else "fp8") else None


def vllm(d: Deployment, users: int) -> list[Option]:
    """Options of ``vllm serve``; ``--max-num-seqs`` is per data-parallel rank."""
    found, moe = [], d.parameters is not None and d.parameters.experts
    if d.gpus > 1 and d.parallel == "tp":
        found.append((f"--tensor-parallel-size {d.gpus}", VLLM))
    elif d.gpus > 1:
        found.append((f"--data-parallel-size {d.gpus}", VLLM_DP))
        found += [("--enable-expert-parallel", VLLM_EP)] * bool(moe)
    if d.dcp > 1:
        found.append((f"--decode-context-parallel-size {d.dcp}", VLLM_DCP))
    found += [(f"--max-model-len {d.context}", VLLM), (f"--gpu-memory-utilization {d.utilization:g}", VLLM)]
    if _kv(d, "fp8"):
        found.append((f"--kv-cache-dtype {_kv(d, 'fp8')}", VLLM))
    return found + [(f"--max-num-seqs {users // d.pools()}", VLLM)] * (users >= d.pools())


def sglang(d: Deployment, users: int) -> list[Option]:
    """Options of ``python -m sglang.launch_server``; with attention in data parallel ``--dp`` is inside ``--tp``."""
    found, moe = [], d.parameters is not None and d.parameters.experts
    if d.gpus > 1 and d.parallel == "dp" and not moe:
        found.append((f"--dp {d.gpus}", SGLANG))
    elif d.gpus > 1:
        found.append((f"--tp {d.gpus}", SGLANG))
        found += [(f"--dp {d.gpus} --enable-dp-attention", SGLANG_DP)] * (d.parallel == "dp")
    if d.dcp > 1:
        found.append((f"--dcp-size {d.dcp}", SGLANG_DCP))
    found += [(f"--context-length {d.context}", SGLANG), (f"--mem-fraction-static {d.utilization:g}", SGLANG)]
    if _kv(d, "fp8_e4m3"):
        found.append((f"--kv-cache-dtype {_kv(d, 'fp8_e4m3')}", SGLANG_KV))
    return found + [(f"--max-running-requests {users}", SGLANG)] * (users > 0)


def command(start: str, options: Sequence[Option]) -> str:
    """The line to type."""
    return " ".join([start, *(text for text, _ in options)])


def assumptions(d: Deployment, efficiency: float, link_gb: float | None) -> list[str]:
    """Everything that the numbers rest on, one sentence each."""
    gpu, p, m = d.gpu, d.parameters, d.model
    memory = d.memory_gb or gpu.memory_gb
    said = [f"memory: {memory:g} GB a GPU, GB taken as 10^9 B ({'given' if d.memory_gb else gpu.source})"]
    if gpu.driver_mib and not d.memory_gb:
        more = gpu.driver_mib * 2**20
        said.append(f"nvidia-smi shows {gpu.driver_mib:,} MiB on this card: --memory-gb {more / 1e9:.1f} counts them")
    said.append(f"{fp.percent(d.utilization, 0)} of it for weights and cache, the rest for activations and buffers")
    if d.weights_gb is not None:
        said.append(f"weights: {d.weights_gb:g} GB, as given, spread evenly")
    else:
        said += [
            f"parameters: {p.total:,}, counted from the fields of {p.source}; multi-token prediction is left out",
            f"weights in {d.weight_dtype}: {WEIGHT_DTYPES[d.weight_dtype][1]}; embedding, head, norms and routers 2 B",
            "tensor parallelism deals out heads, MLPs, experts, vocabulary; down-projections and norms are on every GPU"
            if d.parallel == "tp" else
            "data-parallel attention deals out routed experts only; every GPU has all other weights",
        ]
    longest = p and p.max_position_embeddings
    if longest and d.context > longest:
        said.append(f"{d.context:,} tokens are beyond the model's max_position_embeddings, {longest:,}: vLLM refuses "
                    "such a --max-model-len unless told otherwise (vllm-project/vllm#7080)")
    row = fp.CACHE_DTYPES[d.kv_dtype].layout
    said.append(f"cache in {d.kv_dtype}: {row}; {m.cache_layers} layers; requests take whole pages of {d.page} tokens")
    if m.index_layers:
        said.append(f"index keys of sparse attention in {m.index_layers} layers, fp8, are counted; that it reads "
                    "chosen tokens only is not, so its time is overstated")
    if m.mla:
        part = "all" if d.dcp == 1 else f"1/{d.dcp}"
        said.append(f"the latent has no heads: each tensor-parallel GPU keeps {part} of it" if d.parallel == "tp" else
                    "each GPU keeps whole requests, so no latent is stored twice")
    if d.gpus > NODE:
        said.append(f"{d.gpus:,} GPUs are several nodes of {NODE}; the commands below do not say how the nodes meet")
    link = link_gb or (gpu.link_gb if d.gpus <= NODE else NETWORK_GB)
    how = "given" if link_gb else "data sheet, one direction" if d.gpus <= NODE else "a 400 Gb/s card for each GPU"
    rates = f"{gpu.bf16_tflops:,g} TFLOP/s in bf16" + (f", {gpu.fp8_tflops:,g} in fp8" if gpu.fp8_tflops else "")
    return [*said, f"step: {fp.percent(efficiency, 0)} of the dense peaks {gpu.bandwidth_tb:g} TB/s, {rates}; links of "
                   f"{link:g} GB/s ({how}); communication is not overlapped; experts are chosen uniformly"]
