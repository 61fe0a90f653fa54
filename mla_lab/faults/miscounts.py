"""A museum of miscounts: wrong sizes of MLA caches that people published, with the formula behind each.

Those that count elements for a token and layer also serve as faults: they replace `Recipe.elements`, and every check
named in ``caught_by`` must fail under them.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ..config import MLAConfig

PER_LAYER = "elements per token and layer"
# Every check of case 1 counts its rows with `Recipe.elements`, and each of these formulas is wrong at every width.
CASE_1 = tuple("1." + name for name in (
    "per_layer", "context_8k", "all_layers", "savings", "three_percentages", "heads", "tensor_parallel", "units",
    "dtypes", "mtp", "buffers"))


@dataclass(frozen=True)
class Miscount:
    """One wrong count.

    Parameters
    ----------
    id, what : str
        What was done, in one line.
    thread : str
        Where, as owner/repository#number.
    why : str
        What is wrong with it.
    model : str
        The model it was made for.
    unit : str
        Of ``wrong``, ``right`` and what ``formula`` returns.
    formula : callable
        The wrong rule, from the dimensions of a layer.
    wrong, right : int or Fraction
        What the rule gives for ``model``, and what is true.
    """

    id: str
    what: str
    thread: str
    why: str
    model: str
    unit: str
    formula: Callable[[MLAConfig], int | Fraction]
    wrong: int | Fraction
    right: int | Fraction

    @property
    def elements(self) -> Callable[[MLAConfig], int] | None:
        """The rule as a value for `Recipe.elements`; None if it gets something else wrong."""
        return self.formula if self.unit == PER_LAYER else None

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Ids of the checks that must fail under it."""
        return CASE_1 if self.elements else ()


def _width(c: MLAConfig) -> int:
    return c.kv_lora_rank + c.qk_rope_head_dim


MISCOUNTS = (
    Miscount("two-latents-no-rope", "2 x d_c: 2 * 61 * 512 * 2 = 124,928 B a token", "LMCache/LMCache#694",
             "the latent is key and value at once, so there is no factor 2; the rope key is missing",
             "DeepSeek-V3", PER_LAYER, lambda c: 2 * c.kv_lora_rank, 1024, 576),
    Miscount("rope-key-per-head", "512 + 128 * 64 values, hence a saving of 82.29 %", "deepseek-ai/DeepSeek-R1#238",
             "one rope key serves all heads (and the baseline there has values as wide as keys)",
             "DeepSeek-R1", PER_LAYER,
             lambda c: c.kv_lora_rank + c.num_attention_heads * c.qk_rope_head_dim, 8704, 576),
    Miscount("sum-572", "512 + 64 = 572", "gpustack/gguf-parser-go#8", "the sum is 576",
             "DeepSeek-V3", PER_LAYER, lambda c: _width(c) - 4, 572, 576),
    Miscount("generic-gqa-formula", "2 x heads x hidden_size / heads", "NVIDIA/TensorRT-LLM#16707",
             "MLA was not recognised and fell through to the formula for keys and values, about 25 times too much",
             "DeepSeek-V3", PER_LAYER,
             lambda c: 2 * c.num_attention_heads * (c.hidden_size // c.num_attention_heads), 14336, 576),
    Miscount("padded-heads", "16 heads with key and value padded to 256: 442,368 B a token", "vllm-project/vllm#10927",
             "the path without MLA expanded and padded every head; the latent alone is 14.2 times smaller",
             "DeepSeek-V2-Lite", PER_LAYER, lambda c: c.num_attention_heads * (256 + 256), 8192, 576),
    Miscount("expanded-keys-and-values", "keys 128 * 192 and values 128 * 128", "deepseek-ai/DeepSeek-R1#238",
             "the published code expanded the latent before caching it: MLA's arithmetic with an MHA-sized cache",
             "DeepSeek-R1", PER_LAYER, lambda c: c.num_attention_heads * (c.qk_head_dim + c.v_head_dim), 40960, 576),
    Miscount("latent-again-as-value", "576 as key and 512 as value", "ggml-org/llama.cpp#19067",
             "the value is the latent part of the key row; a cache without values needs almost half",
             "DeepSeek-V3", PER_LAYER, lambda c: _width(c) + c.kv_lora_rank, 1088, 576),
    Miscount("head-dim-plus-latent", "head_dim + kv_lora_rank with head_dim 192", "InfiniTensor/InfiniLM#448",
             "head_dim is 64, 192 or 512 in different configurations and never the width of the rope key by contract",
             "DeepSeek-V3", PER_LAYER, lambda c: c.qk_head_dim + c.kv_lora_rank, 704, 576),
    Miscount("layers-forgotten", "572 values * 65,536 tokens at 4 bit = 17.875 MiB", "gpustack/gguf-parser-go#8",
             "that is one layer (and 18 MiB); 61 layers take 1098 MiB",
             "DeepSeek-V3", "bytes for 65,536 tokens at 4 bit",
             lambda c: (_width(c) - 4) * 65536 // 2, 18_743_296, 1_151_336_448),
    Miscount("kimi-as-gqa", "2 x 64 heads x 112, dealt out over 4 GPUs", "ai-dynamo/aiconfigurator#912",
             "MLA was known by a list of names that lacked Kimi: 6.2 times too much (TP=4 is inferred from that ratio)",
             "Kimi-K2-Instruct", "elements per token and layer on one of 4 GPUs",
             lambda c: 2 * c.num_attention_heads * (c.hidden_size // c.num_attention_heads) // 4, 3584, 576),
    Miscount("q8_0-without-scales", "one byte a value", "ikawrakow/ik_llama.cpp#259",
             "q8_0 spends 34 bytes on 32 values; the engine's log shows 1166.62 MiB for 32,768 cells, not 1098",
             "DeepSeek-V3", "bytes per token and layer", _width, 576, 612),
    Miscount("tile-scales-forgotten", "one byte a value for the layout with tile scales", "carlushuang/gcnasm#50",
             "two fp8 layouts exist: flat 576 B, and 512 + 16 B of scales + 128 B of rope key in bf16",
             "DeepSeek-V3", "bytes per token and layer", _width, 576, 656),
    Miscount("fp8-at-two-bytes", "flat fp8 sized with the model's 16-bit dtype", "vllm-project/vllm#47043",
             "an fp8 value is one byte, and its per-tensor scale lies outside the cache",
             "DeepSeek-V3", "bytes per token and layer", lambda c: 2 * _width(c), 1152, 576),
    Miscount("gib-for-gb", "an 80 GB card counted as 80 GiB", "datawhalechina/llm-algo-leetcode#133",
             "80 GiB are 85.9 GB: 7.4 % more tokens than there are",
             "DeepSeek-V3", "tokens of V3 in bf16", lambda c: 80 * 2**30 // (61 * 2 * _width(c)), 1_222_383, 1_138_433),
    Miscount("draft-gets-all-layers", "the draft context allocates all 61 layers once more", "ggml-org/llama.cpp#28626",
             "the draft runs one multi-token-prediction layer: 62 layers in all, not 122",
             "DeepSeek-V3", "bytes per token", lambda c: 122 * 2 * _width(c), 140_544, 71_424),
)
