"""Footprint counting: worked values by the public thread they come from, and every miscount caught."""
from dataclasses import replace
from fractions import Fraction

import pytest

from mla_lab import footprint as fp
from mla_lab.arrays import get_backend
from mla_lab.checks.case1_footprint import CHECKS
from mla_lab.config import MLAConfig
from mla_lab.errors import InputError
from mla_lab.faults import Fault
from mla_lab.faults.miscounts import CASE_1, MISCOUNTS
from mla_lab.models import get_model, models
from mla_lab.verdict import Setting

V3, V2, LITE, KIMI, DENSE = map(get_model, ("V3", "V2", "V2-Lite", "Kimi-K2-Instruct", "DeepSeek-67B"))
SMALL = MLAConfig(hidden_size=40, num_attention_heads=3, kv_lora_rank=24, qk_nope_head_dim=10, qk_rope_head_dim=6,
                  v_head_dim=14)
FAULTS = [Fault(m.id, m.what, m.thread, {"elements": m.elements}, m.caught_by) for m in MISCOUNTS if m.elements]


# --- the threads ----------------------------------------------------------------------------------------------------

def test_gguf_parser_go_8_layer_count_forgotten():
    layer = fp.row_bytes("bf16", V3.elements_per_token_per_layer) // 4 * 65536  # the thread's plain 4 bit a value
    assert layer == 18_874_368 and fp.mib(layer) == "18 MiB"
    assert 61 * layer == 1_151_336_448 and fp.mib(61 * layer) == "1,098 MiB"
    assert fp.mib(572 * 65536 // 2) == "17.875 MiB"  # what the thread expected


def test_lmcache_694_two_latents_and_no_rope_key():
    assert fp.bytes_per_token(V3) == 70_272
    assert fp.kib(70_272) == "68.625 KiB"
    assert 2 * 61 * 512 * 2 == 124_928 and round(124_928 / 70_272, 4) == 1.7778


def test_deepseek_r1_238_rope_key_counted_per_head():
    ours = fp.mla_elements(V3.mla)
    assert ours == 576 != 512 + 128 * 64 == 8704
    assert [fp.percent(fp.saving(ours, n)) for n in (49_152, 40_960, 32_768)] == ["98.83 %", "98.59 %", "98.24 %"]
    assert fp.expanded_elements(V3.mla) == 40_960 and fp.mha_baseline(V3) == 32_768
    assert fp.percent(fp.saving(8704, 49_152)) == "82.29 %"  # what the thread computes


def test_deepseek_v2_paper_93_percent_needs_three_changes():
    dense = fp.bytes_per_token(DENSE)
    assert dense == 389_120 and fp.bytes_per_token(V2, "6bit") == 25_920
    assert fp.saving(fp.bytes_per_token(V2, "6bit"), dense) == 1 - Fraction(207_360, 3_112_960)
    assert float(fp.saving(fp.bytes_per_token(V2, "6bit"), dense)) == pytest.approx(0.933388, abs=5e-7)
    assert float(fp.saving(fp.bytes_per_token(V2), dense)) == pytest.approx(0.822368, abs=5e-7)
    assert float(fp.saving(576, fp.mha_baseline(V2))) == pytest.approx(0.982422, abs=5e-7)


def test_vllm_10927_padded_heads_of_v2_lite():
    padded, limit = 27 * 16 * (256 + 256) * 2, Fraction("35.42") * 2**30
    assert padded == 442_368 and fp.gib(5373 * 16 * padded, 3) == "35.418 GiB"
    assert fp.bytes_per_token(LITE) == 31_104 and round(padded / 31_104, 4) == 14.2222
    assert fp.tokens_that_fit(limit, LITE) == 1_222_734


def test_aiconfigurator_912_kimi_is_mla_whatever_its_heads():
    assert KIMI.num_attention_heads == 64 and V3.num_attention_heads == 128
    assert fp.bytes_per_token(KIMI) == fp.bytes_per_token(V3) == 70_272
    assert round(2 * 64 * 112 / 4 / 576, 1) == 6.2  # the ratio in the thread
    renamed = replace(KIMI, name="never heard of", attention="?")
    assert fp.bytes_per_token(renamed) == 70_272


def test_ik_llama_259_and_473_q8_0_carries_scales():
    assert fp.bytes_per_token(V3, "q8_0") == 37_332
    assert fp.cache_bytes(V3, 32_768, dtype="q8_0") == 1_223_294_976
    assert fp.mib(1_223_294_976) == "1,166.625 MiB"
    assert fp.in_unit("MiB", fp.cache_bytes(V3, 80_128, dtype="fp16"), 5) == "5,369.90625 MiB"


def test_vllm_47043_and_82_three_small_layouts():
    rows = [fp.row_bytes(dtype, 576, 64) for dtype in ("fp8", "fp8-tile", "4bit")]
    assert rows == [576, 512 + 16 + 128, 256 + 32 + 16 + 128] == [576, 656, 432]
    assert [fp.bytes_per_token(V3, d) for d in ("fp8", "fp8-tile", "4bit")] == [35_136, 40_016, 26_352]


def test_llm_algo_leetcode_133_gb_is_not_gib():
    assert fp.tokens_that_fit(80e9, V3) == 1_138_433
    assert fp.tokens_that_fit(80 * 2**30, V3) == 1_222_383
    assert fp.gb(80 * 2**30, 3) == "85.899 GB" and fp.gib(80e9, 2) == "74.51 GiB"


def test_llama_cpp_28626_one_draft_layer_not_61():
    assert fp.bytes_per_token(V3, mtp=True) == 71_424 and fp.cached_layers(V3, mtp=True) == 62
    assert fp.bytes_per_token(V3, layers=1) == 1152
    with pytest.raises(InputError, match="DeepSeek-67B is not known to have a multi-token-prediction layer"):
        fp.bytes_per_token(DENSE, mtp=True)


@pytest.mark.parametrize("head_dim", [None, 64, 192, 512])
def test_infinilm_448_head_dim_never_changes_the_width(head_dim):
    assert replace(V3, head_dim=head_dim).elements_per_token_per_layer == 576


# --- the rest of the published numbers ------------------------------------------------------------------------------

@pytest.mark.parametrize(("name", "token", "kib"), [
    ("DeepSeek-V2", 69_120, "67.5 KiB"), ("DeepSeek-V2-Lite", 31_104, "30.375 KiB"),
    ("DeepSeek-R1", 70_272, "68.625 KiB"), ("Llama-2-7B", 524_288, "512 KiB"),
    ("Llama-3.1-405B", 516_096, "504 KiB"), ("DeepSeek-67B", 389_120, "380 KiB"), ("Falcon-7B", 8_192, "8 KiB")])
def test_bytes_per_token_in_bf16(name, token, kib):
    assert fp.bytes_per_token(get_model(name)) == token
    assert fp.kib(token) == kib


def test_131072_tokens_of_v3():
    total = fp.cache_bytes(V3, 131_072)
    assert (total, fp.gb(total), fp.gib(total, 6)) == (9_210_691_584, "9.2107 GB", "8.578125 GiB")
    assert fp.cache_bytes(V3, 1024, batch=128) == total


def test_four_attentions_at_8192_tokens():
    rows = [2 * n for n in (fp.mha_elements(128, 128), fp.gqa_elements(8, 128), fp.mqa_elements(128), 576)]
    assert rows == [65_536, 4_096, 512, 1_152]
    assert [fp.mib(8192 * n) for n in rows] == ["512 MiB", "32 MiB", "4 MiB", "9 MiB"]
    assert (fp.gib(61 * 8192 * 65_536), fp.gb(61 * 8192 * 65_536, 3)) == ("30.5 GiB", "32.749 GB")


def test_per_gpu_under_tensor_parallelism():
    assert [fp.per_gpu_elements(DENSE, tp) for tp in (1, 2, 4, 8, 16)] == [2048, 1024, 512, 256, 256]
    assert [fp.per_gpu_elements(V3, tp) for tp in (1, 3, 8)] == [576] * 3
    assert fp.per_gpu_elements(get_model("Falcon-7B"), 8) == 128  # the one head is copied
    with pytest.raises(InputError, match="8 key-value heads do not spread evenly over 3 GPUs"):
        fp.per_gpu_elements(DENSE, 3)


# --- rows at pairwise distinct small dimensions, by hand ------------------------------------------------------------

def test_counts_at_small_dimensions():
    assert fp.mla_elements(SMALL) == 24 + 6
    assert fp.expanded_elements(SMALL) == 3 * (10 + 6 + 14)
    assert fp.mha_baseline(replace(V3, mla=SMALL, num_attention_heads=3)) == 2 * 3 * 14


@pytest.mark.parametrize(("dtype", "mla", "plain"), [
    ("bf16", 60, 60), ("fp16", 60, 60), ("fp32", 120, 120), ("fp8", 30, 30), ("q8_0", 34, 34),
    ("6bit", Fraction(45, 2), Fraction(45, 2)), ("4bit", 12 + 2 + 16 + 12, 15 + 2), ("fp8-tile", 24 + 4 + 12, None)])
def test_rows_of_24_and_6(dtype, mla, plain):
    assert fp.row_bytes(dtype, 30, 6) == mla
    if plain is None:
        with pytest.raises(InputError, match="layout of MLA rows"):
            fp.row_bytes(dtype, 30)
    else:
        assert fp.row_bytes(dtype, 30) == plain


def test_tiles_and_blocks_round_up():
    assert fp.row_bytes("fp8-tile", 129 + 2, 2) == 129 + 2 * 4 + 4
    assert fp.row_bytes("q8_0", 33) == 68


def test_an_average_is_a_fraction_until_the_total():
    odd = replace(V3, mla=replace(SMALL, kv_lora_rank=23), cache_layers=1)
    assert fp.bytes_per_token(odd, "6bit") == Fraction(87, 4)
    assert fp.cache_bytes(odd, 3, dtype="6bit") == 66  # 65.25 rounded up
    assert isinstance(fp.bytes_per_token(V3, "6bit"), int)


@pytest.mark.parametrize("dtype", fp.CACHE_DTYPES)
@pytest.mark.parametrize("capacity", [1, 70_271, 70_272, 12_345_678])
def test_tokens_that_fit_fit_and_no_more(dtype, capacity):
    token, fit = fp.bytes_per_token(V3, dtype), fp.tokens_that_fit(capacity, V3, dtype)
    assert fit * token <= capacity < (fit + 1) * token


@pytest.mark.parametrize("call", [
    lambda: fp.cache_bytes(V3, 0), lambda: fp.cache_bytes(V3, 5, batch=-1), lambda: fp.cache_bytes(V3, 2.5),
    lambda: fp.bytes_per_token(V3, layers=0), lambda: fp.per_gpu_elements(V3, 0), lambda: fp.tokens_that_fit(-1, V3),
    lambda: fp.tokens_that_fit(float("nan"), V3), lambda: fp.bytes_per_token(V3, "bf17")])
def test_bad_input_is_one_sentence(call):
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) > 20


def test_units_never_mix():
    assert (fp.gb(10**9), fp.gib(2**30), fp.mib(2**20), fp.kib(1024)) == ("1 GB", "1 GiB", "1 MiB", "1 KiB")
    assert fp.gb(2**30) == "1.0737 GB" and fp.gib(10**9) == "0.9313 GiB" and fp.gb(0) == "0 GB"
    assert fp.gb(1500 * 10**9) == "1,500 GB" and fp.in_unit("kB", 70_272) == "70.272 kB"


# --- the museum and the checks --------------------------------------------------------------------------------------

@pytest.mark.parametrize("piece", MISCOUNTS, ids=lambda m: m.id)
def test_museum_piece_reproduces_its_wrong_number(piece):
    assert piece.formula(get_model(piece.model).mla) == piece.wrong != piece.right
    assert "#" in piece.thread and piece.why
    if piece.elements:
        assert get_model(piece.model).elements_per_token_per_layer == piece.right


def test_right_values_of_the_museum_that_are_not_widths():
    right = {m.id: m.right for m in MISCOUNTS if not m.elements}
    assert right == {
        "layers-forgotten": 61 * 65536 * 576 // 2, "kimi-as-gqa": fp.per_gpu_elements(KIMI, 4),
        "q8_0-without-scales": fp.row_bytes("q8_0", 576, 64),
        "tile-scales-forgotten": fp.row_bytes("fp8-tile", 576, 64),
        "fp8-at-two-bytes": fp.row_bytes("fp8", 576, 64), "gib-for-gb": fp.tokens_that_fit(80e9, V3),
        "draft-gets-all-layers": fp.bytes_per_token(V3, mtp=True)}


def test_ids_are_unique_and_every_check_has_a_fault():
    assert len({m.id for m in MISCOUNTS}) == len(MISCOUNTS)
    assert tuple(c.id for c in CHECKS) == CASE_1 == tuple(dict.fromkeys(i for f in FAULTS for i in f.caught_by))


# Each layer once. Without a rope key some miscounts count right, which is why such a model is not verified.
LAYERS = dict.fromkeys(m.mla for m in models() if m.mla and m.mla.qk_rope_head_dim)


@pytest.mark.parametrize("config", [*LAYERS, SMALL], ids=lambda c: f"d{c.hidden_size}")
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.id)
def test_check_holds_and_fails_under_each_of_its_faults(check, config):
    setting = Setting(get_backend("numpy", "float32"), config)
    assert check.run(setting).ok, check.run(setting)
    for fault in FAULTS:
        if check.id in fault.caught_by:
            assert not check.run(replace(setting, recipe=fault.spoil(setting.recipe))).ok, fault.id


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_buffers_are_measured_on_each_backend(name, dtype):
    if name == "torch":
        pytest.importorskip("torch")
    verdict = CHECKS[-1].run(Setting(get_backend(name, dtype), SMALL))
    size = {"float64": 8, "float32": 4, "bfloat16": 2 if name == "torch" else 4}[dtype]
    assert verdict.ok and verdict.expected["MLA"] == 15 * 30 * size
    assert verdict.expected["MHA"] == 15 * 2 * 3 * 14 * size
