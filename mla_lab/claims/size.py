"""Claims on what is cached and what is saved: exact counts."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from .. import footprint as fp
from ..config import MLAConfig
from ..models import Model, get_model
from ..serving.parameters import parameters
from .ledger import Finding

V3, V2, B67 = (get_model(name) for name in ("DeepSeek-V3", "DeepSeek-V2", "DeepSeek-67B"))
MHA, GQA8, MQA = (replace(V3, name=f"V3 with {name}", mla=None, num_key_value_heads=heads, head_dim=128)
                  for name, heads in (("MHA", 128), ("GQA-8", 8), ("MQA", 1)))
Count = Callable[[MLAConfig], int]


def row(model: Model, count: Count = fp.mla_elements) -> int:
    """Bytes of a token in a layer, 16 bit."""
    return 2 * fp.elements(model, count)


def printed(value: Fraction | float, digits: int) -> str:
    return f"{float(value):.{digits}f}"


def mha_row(said: int = 65_536, heads: int = 128) -> Finding:
    size = 2 * fp.mha_elements(heads, 128)
    return Finding(size == said, f"2 x {heads} heads x 128 x 2 B = {size:,} B")


def mha_layer(said: int = 512, tokens: int = 8192) -> Finding:
    size = row(MHA) * tokens
    return Finding(size == said * 2**20, f"{fp.mib(size)} = {fp.in_unit('MB', size, 1)}", size == said * 10**6)


def mha_request(said: str = "31.25", layers: int = 61) -> Finding:
    """Whether the printed number is the size in either unit."""
    size = row(MHA) * 8192 * layers
    gib, gb = (printed(Fraction(size, unit), 2) for unit in (2**30, 10**9))
    mixed = Fraction(size, 2**20 * 1000)
    return Finding(said in (gib, gb),
                   f"{float(gib):g} GiB = {gb} GB; {size // 2**20:,} MiB / 1,000 = {printed(mixed, 2)}; "
                   f"{fp.gib(row(MHA) * 8000 * 64)} is 64 layers of 8,000 tokens")


def width_ratio(said: Fraction = Fraction(1, 32), keys_and_values: int = 2) -> Finding:
    m = V3.mla
    keys = m.num_attention_heads * m.v_head_dim
    alone, both = (Fraction(m.kv_lora_rank, n) for n in (keys, keys_and_values * keys))
    cached = Fraction(keys_and_values * keys, m.cached_width)
    return Finding(both == said, f"{alone} of the keys alone, {both} of keys and values; with the rope key 1/"
                                 f"{float(cached):.1f}")


def mla_row(said: tuple[int, int] = (576, 1152), count: Count = fp.mla_elements) -> Finding:
    n, size = fp.elements(V3, count), row(V3, count)
    return Finding((n, size) == said, f"{V3.mla.kv_lora_rank} + {V3.mla.qk_rope_head_dim}: {n} values = {size:,} B")


def saved_of_mha(said: str = "98.24", count: Count = fp.mla_elements) -> Finding:
    ours = fp.elements(V3, count)
    mha, own = (fp.percent(fp.saving(ours, n)) for n in (fp.mha_baseline(V3), fp.expanded_elements(V3.mla)))
    return Finding(mha == f"{said} %", f"{mha} against 128 heads of 128 for K and V; {own} against MLA's own keys and "
                                       "values, 192 and 128 wide", mha == own)


def saved_of_gqa(said: str = "71.88", count: Count = fp.mla_elements, tp: int = 8) -> Finding:
    one = fp.percent(fp.saving(fp.elements(V3, count), fp.elements(GQA8)))
    mla, gqa = fp.per_gpu_elements(V3, tp, count), fp.per_gpu_elements(GQA8, tp)
    return Finding(one == f"{said} %", f"{one} on one GPU; on each of {tp} tensor-parallel GPUs MLA keeps {mla} values "
                                       f"and GQA-8 {gqa}", mla < gqa)


def table_of_rows(said: tuple[int, ...] = (512, 4096, 4, 32, 9), count: Count = fp.mla_elements) -> Finding:
    rows = [row(MQA), row(GQA8), row(V3, count)]
    layer = [8192 * n for n in rows]
    as_said = (*rows[:2], *(Fraction(n, 2**20) for n in layer)) == said
    text = ", ".join(f"{name} {fp.mib(n)}" for name, n in zip(("MQA", "GQA-8", "MLA"), layer, strict=True))
    return Finding(as_said, f"{rows[0]:,} B and {rows[1]:,} B; at 8,192 tokens {text}; MLA is not the smallest of them",
                   all(n == m * 10**6 for n, m in zip(layer, said[2:], strict=True)) and min(rows) == rows[2])


def v2_savings(bits: str = "6bit") -> tuple[str, str]:
    """DeepSeek-V2 in that format, and in 16 bit, against DeepSeek-67B in 16 bit."""
    return tuple(fp.percent(fp.saving(fp.bytes_per_token(V2, dtype), fp.bytes_per_token(B67)))
                 for dtype in (bits, "bf16"))


def title(said: str = "93", bits: str = "6bit") -> Finding:
    deployed, equal = v2_savings(bits)
    return Finding(deployed.startswith(said), f"{deployed} with V2's cache at 6 bits against DeepSeek-67B's at 16 bits "
                                              f"(GQA-8, 95 layers); {equal} at equal precision",
                   equal.startswith(said))


def against_mha(said: str = "93.3", count: Count = fp.mla_elements) -> Finding:
    mha, (deployed, equal) = fp.percent(fp.saving(fp.elements(V2, count), fp.mha_baseline(V2))), v2_savings()
    return Finding(mha.startswith(said), f"{mha} against MHA of V2's own shape; {deployed} is against DeepSeek-67B, "
                                         f"which is GQA-8, with 6 bits against 16; {equal} at equal precision")


def quarter(resident: int = 890) -> Finding:
    """Whether 890 B a token, said to be a quarter, can be an MLA model's cache.

    DeepSeek-V4-Flash, which it is a quarter of, keeps rows of 584 B for every 4th token in 21 layers and every 128th in
    20, and index keys of 68 B for every 4th token in 21 (FlashMLA@9241ae3:tests/quant.py; secondary for the rest).
    """
    older = Fraction(21 * 584, 4) + Fraction(20 * 584, 128) + Fraction(21 * 68, 4)
    layer, token = row(V3), fp.bytes_per_token(V3)
    return Finding(resident >= token, f"{resident} B a token is less than one layer of MLA ({layer:,} B; DeepSeek-V3 "
                                      f"{token:,} B); it is 1/{float(older) / resident:.2f} of V4-Flash's "
                                      f"{float(older):,.0f} B, and neither is MLA")


def two_things(experts: int | None = None, count: Count = fp.mla_elements) -> Finding:
    """Change the attention: the cache changes. Change the experts of a token: the active weights change."""
    whole = parameters(V3)
    fewer = replace(whole, experts_per_token=experts or whole.experts_per_token // 2)
    caches = [fp.bytes_per_token(m, count=count) for m in (V3, MHA)]
    apart = caches[0] < caches[1] and fewer.active < whole.active
    return Finding(apart, f"MLA for MHA: {caches[1]:,} B to {caches[0]:,} B a token in all layers; "
                          f"{whole.experts_per_token} of {whole.experts_per_layer} experts for a token: "
                          f"{whole.active / 1e9:.1f} of {whole.total / 1e9:.0f} billion weights active, and "
                          f"{fewer.active / 1e9:.1f} with {fewer.experts_per_token}")


def expanded(config: MLAConfig) -> int:
    return fp.expanded_elements(config)


SETTLE = {
    "A01": (mha_row, {"heads": 64}),
    "A02": (mha_layer, {"tokens": 8000}),
    "A03": (mha_request, {"said": "30.50"}),
    "A05": (width_ratio, {"keys_and_values": 1}),
    "A06": (mla_row, {"count": lambda config: 572}),
    "A07": (saved_of_mha, {"count": lambda config: 2 * config.kv_lora_rank}),
    "A08": (saved_of_gqa, {"tp": 2}),
    "A09": (table_of_rows, {"count": expanded}),
    "A10": (title, {"bits": "fp8"}),
    "B02": (against_mha, {"count": expanded}),
    "B03": (quarter, {"resident": 70_272}),
    "B05": (two_things, {"count": lambda config: 32_768}),
}
