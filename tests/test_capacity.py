"""The capacity model: parameters against published totals, memory against a brute-force count, refusals."""
import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from mla_lab import footprint as fp
from mla_lab.__main__ import main
from mla_lab.errors import InputError
from mla_lab.kernels.roofline import DEVICES
from mla_lab.models import get_model
from mla_lab.serving.capacity import WEIGHT_DTYPES, Deployment
from mla_lab.serving.engines import assumptions, sglang, vllm
from mla_lab.serving.gpus import GPUS, get_gpu
from mla_lab.serving.parameters import parameters, published
from mla_lab.serving.step import Step, attention_flops, decode_step

V3 = get_model("DeepSeek-V3")
UNITS = {"B": 10**9, "T": 10**12}


def on(gpu, gpus, parallel="tp", context=8192, model=V3, **how):
    weights = None if "weights_gb" in how else how.pop("parameters", None) or parameters(model)
    return Deployment(model, get_gpu(gpu), gpus, parallel, context, weights, **how)


# --- parameters -----------------------------------------------------------------------------------------------------


def rounds_to(count, said):
    """Whether ``count`` gives ``said`` (such as 36.6B) when it is rounded, or cut, to as many digits."""
    number, unit = said[:-1], UNITS[said[-1]]
    step = Fraction(unit, 10 ** len(number.partition(".")[2]))
    return -step / 2 <= count - Fraction(number) * unit < step


@pytest.mark.parametrize("name", published())
def test_parameters_agree_with_what_the_makers_publish(name):
    counted, said = parameters(get_model(name)), published()[name]
    assert rounds_to(counted.total, said["total"]), (counted.total, said)
    assert "active" not in said or rounds_to(counted.active, said["active"]), (counted.active, said)


def test_deepseek_v3_to_the_weight():
    p = parameters(V3)
    assert p.total == 671_026_419_200
    # README_WEIGHTS.md says 11.5B without embedding and head: all but the projection of the two inputs.
    assert rounds_to(p.mtp - 2 * 7168**2, "11.5B")
    # By hand: experts, shared experts, dense MLPs, attention, routers with their bias, norms, vocabulary.
    attention = 1536 * 7168 + 24576 * 1536 + 576 * 7168 + 32768 * 512 + 7168 * 16384
    norms = 61 * (2 * 7168 + 1536 + 512) + 7168
    assert p.total == (58 * 257 * 3 * 7168 * 2048 + 3 * 3 * 7168 * 18432 + 61 * attention + 58 * 256 * 7169 + norms
                       + 2 * 129280 * 7168)


@pytest.mark.parametrize("name, weights, size", [
    ("bf16", 1, 2), ("fp8", 128 * 128, 128 * 128 + 4), ("int8", 1, 1), ("int4", 128, 64 + 2), ("nvfp4", 16, 8 + 1)])
def test_bytes_of_weights_that_share_a_scale(name, weights, size):
    assert weights * WEIGHT_DTYPES[name][0] == size


def test_layers_without_a_growing_cache_and_index_keys():
    """A hybrid caches in some layers only; index keys are dealt out with the tokens that they belong to."""
    hybrid = get_model("Kimi-Linear-48B-A3B")
    assert hybrid.cache_layers < hybrid.num_hidden_layers
    for gpus in (1, 4):
        assert on("H200", gpus, model=hybrid, weights_gb=9.0).token_bytes_per_gpu() == 1152 * hybrid.cache_layers
    sparse = get_model("DeepSeek-V3.2")
    whole, eighth = (on("H200", 8, model=sparse, dcp=dcp).token_bytes_per_gpu() for dcp in (1, 8))
    assert whole == 61 * (1152 + 132) == 8 * eighth


def test_a_config_gives_what_the_table_gives(tmp_path):
    """The table's rows and a config.json go through one reader."""
    row = {"model_type": "deepseek_v3", "hidden_size": 7168, "vocab_size": 129280, "intermediate_size": 18432,
           "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
           "first_k_dense_replace": 3, "topk_method": "noaux_tc", "max_position_embeddings": 163_840}
    assert replace(parameters(V3, row), source="", repository="") == replace(parameters(V3), source="", repository="")
    every_second = parameters(V3, row | {"moe_layer_freq": 2})
    assert (every_second.moe_layers, parameters(V3, row).moe_layers) == (29, 58)
    tied = parameters(V3, row | {"tie_word_embeddings": True})
    assert tied.total == 671_026_419_200 - 129280 * 7168 and tied.active == parameters(V3).active


@pytest.mark.parametrize("change, hint", [
    ({"model_type": "longcat_flash"}, "model_type 'longcat_flash'"), ({"vocab_size": None}, "vocab_size is missing"),
    ({"num_experts_per_tok": 257}, "num_experts_per_tok must be at most"), ({"vocab_size": "many"}, "vocab_size must"),
])
def test_what_cannot_be_counted_is_refused(change, hint):
    row = {"model_type": "deepseek_v3", "hidden_size": 7168, "vocab_size": 129280, "intermediate_size": 18432,
           "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8}
    with pytest.raises(InputError, match=hint):
        parameters(V3, row | change)


def test_touched_experts_by_enumeration():
    """E(1 - (1 - k/E)^n) against all choices of 2 of 4 experts by 3 tokens."""
    from itertools import combinations, product
    p = replace(parameters(V3), experts_per_layer=4, experts_per_token=2)
    every = [len(set().union(*chosen)) for chosen in product(combinations(range(4), 2), repeat=3)]
    assert p.experts_touched(3) == pytest.approx(sum(every) / len(every), rel=1e-12)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu, gpus, parallel, weights, context, kv", [
    ("H200", 8, "tp", "fp8", 8192, "bf16"), ("H200", 8, "dp", "fp8", 8191, "bf16"), ("H100", 16, "tp", "fp8", 1, "fp8"),
    ("H100", 8, "tp", "int4", 100_000, "fp8-tile"), ("MI300X", 7, "dp", "nvfp4", 333, "q8_0"),
])
def test_users_are_the_most_that_fit(gpu, gpus, parallel, weights, context, kv):
    """One more user a GPU would not fit, by a sum that shares no formula with the model."""
    d, p = on(gpu, gpus, parallel, context, weight_dtype=weights, kv_dtype=kv), parameters(V3)
    each = WEIGHT_DTYPES[weights][0]
    split, whole = (gpus, 1) if parallel == "tp" else (1, 1)
    experts = Fraction(1, gpus) if parallel == "tp" else Fraction(math.ceil(Fraction(256, gpus)), 256)
    held = (each * (p.by_head + p.mlp) / split + each * p.for_all_heads / whole + each * p.experts * experts
            + 2 * p.small + Fraction(2 * (p.embedding + p.head), split))
    row = 61 * Fraction(fp.row_bytes(kv, 576, 64)) * 64  # a page
    pages, usable = -(-context // 64), Fraction(str(d.gpu.memory_gb)) * 10**9 * 9 / 10
    here = d.users() // d.pools()
    assert d.users() > 0 and d.users() % d.pools() == 0
    assert held + here * pages * row <= usable < held + (here + 1) * pages * row


def test_a_latent_is_on_every_tensor_parallel_gpu_and_dcp_takes_the_copies_away():
    tp, dp = on("H200", 8), on("H200", 8, "dp")
    assert tp.token_bytes_per_gpu() == dp.token_bytes_per_gpu() == 70_272
    assert on("H200", 8, dcp=8).token_bytes_per_gpu() == Fraction(70_272, 8)
    assert on("H200", 8, dcp=8).tokens() > 7 * tp.tokens()
    grouped = replace(V3, mla=None, num_key_value_heads=8, head_dim=128)
    assert on("H200", 8, model=grouped, parameters=parameters(V3)).token_bytes_per_gpu() == 61 * 256 * 2


def test_index_keys_are_counted():
    assert on("H200", 8, model=get_model("DeepSeek-V3.2"), kv_dtype="fp8-tile").token_bytes() == 61 * (656 + 132)


@pytest.mark.parametrize("gpus, weights, fits", [
    # docs.sglang.io/basic_usage/deepseek_v3.html recommends for DeepSeek-V3 and R1 ...
    ("8 H200", "fp8", True), ("8 B200", "fp8", True), ("8 MI300X", "fp8", True), ("16 H100", "fp8", True),
    ("16 H800", "fp8", True), ("16 H20", "fp8", True), ("16 H200", "bf16", True), ("16 MI300X", "bf16", True),
    ("32 H100", "bf16", True), ("32 A100", "bf16", True), ("16 A100", "int8", True), ("32 L40S", "int8", True),
    ("8 H100", "int4", True), ("4 H200", "int4", True), ("8 A100", "int4", True), ("4 B200", "nvfp4", True),
    # ... and never half of them
    ("8 H100", "fp8", False), ("4 H200", "fp8", False), ("8 H200", "bf16", False), ("16 H100", "bf16", False),
    ("8 A100", "int8", False), ("16 L40S", "int8", False), ("4 H100", "int4", False), ("2 H200", "int4", False),
])
def test_recommended_machines_hold_a_request_and_half_of_them_do_not(gpus, weights, fits):
    n, gpu = gpus.split()
    assert (on(gpu, int(n), weight_dtype=weights).users() > 0) == fits


def test_the_cache_outgrows_the_weights():
    d = on("H200", 8)
    at = d.outgrown_at()
    assert (at - 1) * d.token_bytes() < d.weight_bytes() <= at * d.token_bytes()
    assert 9.5e6 < at < 9.6e6
    mha = on("H200", 8, model=replace(V3, mla=None, num_key_value_heads=128, head_dim=128), parameters=parameters(V3))
    assert at / mha.outgrown_at() == pytest.approx(32768 / 576, rel=1e-5)


# --- the step -------------------------------------------------------------------------------------------------------


def test_a_step_on_one_gpu_by_hand():
    llama = get_model("Llama-3.1-8B")
    s = decode_step(on("H100", 1, context=4096, model=llama, weight_dtype="bf16"), users=10)
    p = parameters(llama)
    assert s.weights == pytest.approx(2 * (p.total - p.embedding) / 3.35e12)
    assert s.products == pytest.approx(10 * 2 * (p.total - p.embedding) / 989e12)
    assert s.cache == pytest.approx(10 * 4096 * 131072 / 3.35e12)
    assert s.attention == pytest.approx(10 * 4096 * 32 * 32 * 4 * 128 / 989e12)
    assert s.communication == 0 and s.seconds == s.weights + s.cache
    assert s.longest == "reading weights" and s.tokens_per_second == 10 / s.seconds


def test_a_step_reads_the_experts_that_its_tokens_touch():
    d, p = on("H200", 8), parameters(V3)
    one, many = (decode_step(d, users=n).weights * 4.8e12 for n in (1, 10_000))
    each, expert = WEIGHT_DTYPES["fp8"][0], p.experts / 256
    everything = float(d.weight_bytes_per_gpu()) - 2 * p.embedding / 8
    assert many == pytest.approx(everything, rel=1e-9)
    assert everything - one == pytest.approx(float((256 - 8) * expert * each / 8), rel=1e-9)


def test_terms_of_a_step_under_both_kinds():
    tp, dp = (decode_step(on("H200", 8, kind), users=64) for kind in ("tp", "dp"))
    assert tp.cache == pytest.approx(8 * dp.cache)  # every GPU reads every request's latents
    assert tp.attention == pytest.approx(dp.attention)  # 64 requests x 16 heads or 8 requests x 128
    assert tp.communication == pytest.approx(2 * 61 * 2 * 7 / 8 * 64 * 7168 * 2 / 450e9)
    assert dp.communication == pytest.approx(58 * 8 * 8 * 7168 * 3 * 7 / 8 / 450e9)
    assert decode_step(on("H200", 8), users=64, efficiency=0.5).cache == pytest.approx(2 * tp.cache)
    assert attention_flops(V3, 1) == 61 * 128 * 2 * 1088


def test_the_longest_term_of_attention_follows_the_ridge():
    """241.8 FLOP/B at 128 heads: above H200's ridge, below H800's."""
    for gpu in ("H200", "H800"):
        s = decode_step(on(gpu, 16, "dp"), users=1600)
        assert (s.attention > s.cache) == (get_gpu(gpu).ridge < 2 * 128 * 1088 / 1152)
    assert get_gpu("H800").ridge > 241.8 > get_gpu("H200").ridge


# --- engines and the command ----------------------------------------------------------------------------------------


def test_options_say_what_the_deployment_says():
    def typed(engine, d, users):
        assert all(page.startswith("https://docs.") for _, page in engine(d, users))
        return [text for text, _ in engine(d, users)]
    dp = on("H200", 8, "dp", kv_dtype="fp8")
    assert typed(vllm, dp, 360) == ["--data-parallel-size 8", "--enable-expert-parallel", "--max-model-len 8192",
                                    "--gpu-memory-utilization 0.9", "--kv-cache-dtype fp8", "--max-num-seqs 45"]
    assert typed(sglang, dp, 360)[:2] == ["--tp 8", "--dp 8 --enable-dp-attention"]
    assert "--kv-cache-dtype fp8_e4m3" in typed(sglang, dp, 1)
    assert "--max-num-seqs 0" not in typed(vllm, dp, 0)
    assert {"--decode-context-parallel-size 8", "--tensor-parallel-size 8"} <= set(typed(vllm, on("H200", 8, dcp=8), 9))
    assert "--dcp-size 8" in typed(sglang, on("H200", 8, dcp=8), 9)
    llama = on("H100", 2, "dp", model=get_model("Llama-3.1-8B"))
    assert typed(sglang, llama, 4)[0] == "--dp 2" and "--enable-expert-parallel" not in typed(vllm, llama, 4)
    sparse = on("H200", 8, model=get_model("DeepSeek-V3.2"), kv_dtype="fp8-tile")
    assert "--kv-cache-dtype fp8" in typed(vllm, sparse, 1)
    assert not any("kv-cache" in text for text in typed(vllm, on("H200", 8, kv_dtype="4bit"), 1))


def test_every_gpu_has_a_source_and_sane_figures():
    for gpu in GPUS:
        assert gpu.source and gpu.bf16_tflops < (gpu.fp8_tflops or math.inf)
        assert gpu.driver_mib is None or 1 < gpu.driver_mib * 2**20 / (gpu.memory_gb * 1e9) < 1.075
        assert any("10^9 B" in said for said in assumptions(on(gpu.name, 1, weight_dtype="int4"), 1.0, None))
    assert get_gpu("nvidia h200") is get_gpu("NVIDIA-H200") is get_gpu("H200")


@pytest.mark.parametrize("name, longest", [("DeepSeek-V3", 163_840), ("Kimi-K2-Instruct", 131_072),
                                           ("Kimi-K2.5", 262_144), ("GLM-5", 202_752), ("Qwen3-32B", 40_960)])
def test_a_context_beyond_the_models_own_is_said(name, longest):
    said = [" ".join(assumptions(on("B200", 8, context=n, model=get_model(name)), 1.0, None))
            for n in (longest, longest + 1)]
    assert [f"max_position_embeddings, {longest:,}" in text for text in said] == [False, True]
    assert "--max-model-len" not in " ".join(assumptions(on("B200", 8, context=10**7, weights_gb=9.0), 1.0, None))


def test_more_gpus_than_a_node_has_are_said():
    said = [" ".join(assumptions(on("H200", n, "dp"), 1.0, None)) for n in (8, 16)]
    assert ["several nodes" in text for text in said] == [False, True]


def test_the_roofline_and_the_capacity_model_know_the_same_gpus():
    """Two tables, from two sets of sources: 989 TFLOP/s is printed as 990 as well."""
    both = {gpu.name for gpu in GPUS} & set(DEVICES)
    assert both == {"H800", "H200", "H20", "B200"}
    for name in both:
        gpu, device = get_gpu(name), DEVICES[name]
        assert gpu.bandwidth_tb * 1e12 == device.bandwidth, name
        assert round(gpu.bf16_tflops, -1) == round(device.flops / 1e12, -1), name


def test_the_command_and_its_json(tmp_path, capsys):
    target = tmp_path / "c.json"
    assert main(["capacity", "--gpu", "H200", "--gpus", "8", "--parallel", "dp", "--json", str(target)]) == 0
    said, found = capsys.readouterr().out, json.loads(target.read_text())
    assert found["users"] == 360 and found["parameters"] == 671_026_419_200 and found["pools"] == 8
    for text in ("671,026,419,200", "360 users", "binds        weights", "Assumptions", "vllm serve deepseek-ai/",
                 "python -m sglang.launch_server", "9,579,215 tokens"):
        assert text in said, text
    assert main(["capacity", "--gpu", "H100", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["step"] is None and "they do not fit" in err


def test_the_longer_of_two_terms_of_the_same_kernels_counts():
    arithmetic = Step(users=42, weights=2.0, products=3.0, cache=5.0, attention=7.0, communication=11.0)
    reading = Step(users=42, weights=3.0, products=2.0, cache=7.0, attention=5.0, communication=11.0)
    assert arithmetic.seconds == reading.seconds == 21 and reading.tokens_per_second == 2
    assert arithmetic.longest == reading.longest == "communication"


def test_every_option_of_the_command_counts(tmp_path):
    target = tmp_path / "c.json"
    words = ("capacity --gpu B200 --gpus 16 --dcp 4 --context 1000 --page 32 --users 5 --memory-gb 150 --link-gb 33 "
             "--utilization 0.8 --efficiency 0.5 --kv-dtype fp8 --weight-dtype int4 --json")
    assert main([*words.split(), str(target)]) == 0
    found = json.loads(target.read_text())
    d = on("B200", 16, context=1000, page=32, dcp=4, kv_dtype="fp8", weight_dtype="int4", memory_gb=150.0,
           utilization=0.8)
    step = decode_step(d, 5, 0.5, 33.0)
    assert (found["usable_bytes_per_gpu"], found["tokens"], found["users"]) == (120e9, d.tokens(), d.users())
    assert found["step"]["users"] == 5 and found["step"]["seconds"] == step.seconds
    assert found["step"]["seconds_of"]["communication"] == step.communication != decode_step(d, 5, 0.5).communication


def test_the_command_reads_a_config(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "vocab_size": 100, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2}))
    assert main(["capacity", "--config", str(tmp_path), "--gpu", "L40S", "--gpus", "1", "--weight-dtype", "bf16"]) == 0
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert f"{3 * layer + 64 + 2 * 100 * 64:,} parameters" in capsys.readouterr().out


@pytest.mark.parametrize("options, hint", [
    ("--gpu H300", "did you mean 'H800'"), ("--gpu H100 --parallel pp", "parallelism 'pp'"), ("", "--gpu"),
    ("--gpu H100 --gpus 7", "128 heads"), ("--gpu H100 --model Kimi-K3", "--weights-gb"),
    ("--gpu H100 --weights-gb 300 --parallel dp", "routed experts"), ("--gpu H100 --dcp 3", "dcp 3"),
    ("--gpu H100 --weight-dtype fp9", "'fp8'"), ("--gpu H100 --kv-dtype fp9", "'fp8'"), ("--gpu H100 --page 0", "page"),
    ("--gpu H100 --utilization 1.5", "utilization"), ("--gpu H100 --efficiency 2", "efficiency"),
    ("--gpu H100 --memory-gb nan", "memory-gb"), ("--gpu H100 --model Llama-3.1-8B --gpus 3", "32 heads"),
    ("--gpu H100 --model Llama-3.1-8B --kv-dtype fp8-tile", "MLA rows"), ("--gpu H100 --gpus x", "gpus"),
])
def test_bad_input_is_one_sentence(options, hint, capsys):
    assert main(["capacity", *options.split()]) == 2
    said = capsys.readouterr().err
    assert hint in said and said.startswith("mla_lab: ") and said.count("\n") == 1


def test_weights_of_any_model_can_be_given(capsys):
    assert main(["capacity", "--gpu", "H200", "--model", "Kimi-K3", "--weights-gb", "800"]) == 0
    assert "800 GB in all: as given" in capsys.readouterr().out
    with pytest.raises(InputError, match="weights_gb alone"):
        decode_step(on("H200", 8, weights_gb=800.0), 1)
