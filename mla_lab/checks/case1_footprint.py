"""Case 1: what is cached. Rows are counted by the recipe under test; the other side is published or measured."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .. import footprint as fp
from ..cache import LatentCache
from ..footprint import bytes_per_token, cache_bytes
from ..models import get_model
from ..verdict import Check, Setting, exactly

V3, V2, KIMI, DENSE = map(get_model, ("DeepSeek-V3", "DeepSeek-V2", "Kimi-K2-Instruct", "DeepSeek-67B"))


def _claim(text: str) -> Callable[[Callable[[Setting], tuple]], Check]:
    """Make a check of a function that returns what was seen, what must be seen, and a note on unit and baseline."""
    return lambda body: Check(f"1.{body.__name__}", text, lambda setting: exactly(text, *body(setting)))


def _layer_bytes(setting: Setting) -> dict[str, int]:
    """Bytes per token and layer at 16 bit of V3's shape under the four attentions."""
    counts = {"MHA": fp.mha_elements(128, 128), "GQA-8": fp.gqa_elements(8, 128), "MQA": fp.mqa_elements(128),
              "MLA": setting.recipe.elements(V3.mla)}
    return {name: 2 * n for name, n in counts.items()}


@_claim("V3's shape caches 65,536 B (MHA), 4,096 B (GQA-8), 512 B (MQA), 1,152 B (MLA) per token and layer")
def per_layer(setting):
    return (_layer_bytes(setting), {"MHA": 65536, "GQA-8": 4096, "MQA": 512, "MLA": 1152},
            "bf16; 128 heads of 128. MQA is smaller than MLA: the claim is size at MHA's quality")


@_claim("8,192 tokens take 512 MiB (MHA), 32 (GQA-8), 4 (MQA), 9 (MLA) a layer")
def context_8k(setting):
    layer = _layer_bytes(setting)
    saw = {name: fp.mib(8192 * n) for name, n in layer.items()}
    saw["MHA, 61 layers"] = f"{fp.gib(61 * 8192 * layer['MHA'])} = {fp.gb(61 * 8192 * layer['MHA'], 3)}"
    saw["MLA, 61 layers"] = fp.mib(61 * 8192 * layer["MLA"])
    return (saw, {"MHA": "512 MiB", "GQA-8": "32 MiB", "MQA": "4 MiB", "MLA": "9 MiB",
                  "MHA, 61 layers": "30.5 GiB = 32.749 GB", "MLA, 61 layers": "549 MiB"},
            "bf16, one request. MiB, not MB; 61 * 512 MiB divided by 1000 would be neither GB nor GiB")


@_claim("DeepSeek-V3 caches 70,272 B a token")
def all_layers(setting):
    token = bytes_per_token(V3, count=setting.recipe.elements)
    return [token, fp.kib(token)], [70272, "68.625 KiB"], "bf16: 61 layers * 576 * 2 B; no multi-token prediction"


@_claim("MLA saves 98.24 % against MHA and 71.88 % against GQA-8")
def savings(setting):
    ours = setting.recipe.elements(V3.mla)
    baselines = {"MHA, 128 wide": 2 * 128 * 128, "GQA-8": 2 * 8 * 128, "V3 expanded, 192 + 128": 128 * (192 + 128),
                 "192 + 192": 128 * (192 + 192)}
    return ({name: fp.percent(fp.saving(ours, n)) for name, n in baselines.items()},
            dict(zip(baselines, ("98.24 %", "71.88 %", "98.59 %", "98.83 %"), strict=True)),
            "elements per token and layer at V3's dimensions, 128 heads; on one GPU")


@_claim("93.3 %, 82.24 % and 98.24 % answer three questions")
def three_percentages(setting):
    count, dense = setting.recipe.elements, bytes_per_token(DENSE)
    saw = {
        "V2 at 6 bit, 60 layers, against DeepSeek-67B at 16 bit, GQA-8, 95 layers":
            fp.percent(fp.saving(bytes_per_token(V2, "6bit", count=count), dense), 1),
        "the same at equal precision": fp.percent(fp.saving(bytes_per_token(V2, count=count), dense)),
        "one layer against MHA of the same shape": fp.percent(fp.saving(count(V2.mla), 2 * 128 * 128)),
    }
    return (saw, dict(zip(saw, ("93.3 %", "82.24 %", "98.24 %"), strict=True)),
            "DeepSeek-V2's paper prints no derivation of its 93.3 %; this one gives every digit of it")


@_claim("the head count does not matter: Kimi-K2's 64 heads cache what DeepSeek-V3's 128 do")
def heads(setting):
    count, own = setting.recipe.elements, setting.config
    saw = {m.num_attention_heads: bytes_per_token(m, count=count) for m in (V3, KIMI)}
    several = {count(replace(own, num_attention_heads=times * own.num_attention_heads)) for times in (1, 2, 3)}
    return ([saw, len(several)], [{128: 70272, 64: 70272}, 1],
            "B a token in bf16, 61 layers each; then how many widths h, 2h and 3h heads of the chosen model give")


@_claim("on each of 8 tensor-parallel GPUs GQA-8 holds 256 elements and MLA 576")
def tensor_parallel(setting):
    grouped = replace(V3, name="V3 with GQA-8", mla=None, num_key_value_heads=8, head_dim=128)
    saw = {f"{name}, TP={tp}": fp.per_gpu_elements(model, tp, setting.recipe.elements)
           for tp in (1, 8, 16) for name, model in (("GQA-8", grouped), ("MLA", V3))}
    return (saw, dict(zip(saw, (2048, 576, 256, 576, 256, 576), strict=True)),
            "per token and layer; a latent has no head axis to cut, so every GPU keeps all of it")


@_claim("131,072 tokens of DeepSeek-V3 take 9.2107 GB, which is 8.578125 GiB")
def units(setting):
    how = {"count": setting.recipe.elements}
    total = cache_bytes(V3, 131072, **how)
    fit = {"80 GB": fp.tokens_that_fit(80 * 10**9, V3, **how), "80 GiB": fp.tokens_that_fit(80 * 2**30, V3, **how)}
    return ([total, fp.gb(total), fp.gib(total, 6), fit],
            [9_210_691_584, "9.2107 GB", "8.578125 GiB", {"80 GB": 1_138_433, "80 GiB": 1_222_383}],
            "bf16, 61 layers; at the end the tokens that fit")


@_claim("a token of DeepSeek-V3 takes 35,136 B in flat fp8, 40,016 with tile scales, 26,352 at 4 bit, 37,332 in q8_0")
def dtypes(setting):
    how = {"count": setting.recipe.elements}
    saw = {dtype: bytes_per_token(V3, dtype, **how) for dtype in ("fp8", "fp8-tile", "4bit", "q8_0")}
    saw["q8_0, 32,768 cells"] = fp.mib(cache_bytes(V3, 32768, dtype="q8_0", **how))
    return (saw, dict(zip(saw, (35136, 40016, 26352, 37332, "1,166.625 MiB"), strict=True)),
            "61 rows of 576, 656, 432 and 612 B; with scales and a bf16 rope key, 4 bit is 6 bits a value")


@_claim("with its multi-token-prediction layer DeepSeek-V3 caches 62 layers: 71,424 B a token")
def mtp(setting):
    how = {"count": setting.recipe.elements}
    return ([bytes_per_token(V3, **how), bytes_per_token(V3, mtp=True, **how), bytes_per_token(V3, layers=1, **how)],
            [70272, 71424, 1152], "bf16: without it, with it, the draft alone; never 122 layers")


@_claim("the buffers that MHA, GQA, MQA and MLA allocate are as large as the formulas say")
def buffers(setting):
    # The formula is under test and the allocation is the truth.
    c, full, batch, tokens = setting.config, setting.backend.full, 3, 5
    h, v, groups = c.num_attention_heads, c.v_head_dim, min(8, c.num_attention_heads)
    formula = {"MHA": fp.mha_elements(h, v), f"GQA-{groups}": fp.gqa_elements(groups, v), "MQA": fp.mqa_elements(v),
               "MLA": setting.recipe.elements(c)}
    keys_and_values = [[full((batch, tokens, n, v), 0.0) for _ in "kv"] for n in (h, groups, 1)]
    latent = LatentCache.allocate(c, batch, tokens, setting.backend)
    measured = [*(sum(x.nbytes for x in pair) for pair in keys_and_values), latent.rows.nbytes]
    size = latent.rows.dtype.itemsize  # of the buffer: NumPy keeps its emulated bfloat16 in 4 bytes
    return ({name: n * size * batch * tokens for name, n in formula.items()}, dict(zip(formula, measured, strict=True)),
            "B for 3 requests of 5 tokens in a layer; heads of the baselines are as wide as the chosen model's values")


CHECKS = (per_layer, context_8k, all_layers, savings, three_percentages, heads, tensor_parallel, units, dtypes, mtp,
          buffers)
