"""The rotation that a published configuration asks for, read as transformers reads it."""
import pytest
from configs import SMALL, YARN, refused, without

from mla_lab.config import Yarn
from mla_lab.errors import InputError
from mla_lab.models import verifiable
from mla_lab.read_config import read_config
from mla_lab.rope import frequencies, softmax_scale, table_scale


def scaling(**block):
    """SMALL with this ``rope_scaling``; None takes a key away."""
    return SMALL | {"rope_scaling": {k: v for k, v in (YARN | block).items() if v is not None}}


def test_rope_theta_is_read_inside_the_block_and_beside_it():
    base = without(SMALL, "rope_theta")
    inside = {"rope_parameters": {"rope_type": "default", "rope_theta": 8_000_000}}
    assert read_config(base | inside).mla.rope_theta == 8_000_000
    assert read_config(SMALL | inside | {"rope_theta": 8e6}).mla.rope_theta == 8e6
    assert read_config(SMALL | {"rope_scaling": None}).mla.rope_theta == 50_000
    assert read_config(base | {"rope_parameters": {"rope_theta": 7}}).mla == read_config(SMALL | {"rope_theta": 7}).mla
    refused(SMALL | inside, "rope_parameters.rope_theta 8e+06", "rope_theta 50000", "disagree")
    with pytest.raises(InputError, match="counted but not verified: rope_theta is missing"):
        verifiable(read_config(base))


def test_both_blocks_must_agree():
    new = without(YARN, "type") | {"rope_type": "yarn", "rope_theta": 50_000, "factor": 40.0}
    both = read_config(SMALL | {"rope_scaling": YARN, "rope_parameters": new})
    assert both.mla == read_config(scaling()).mla and both.mla.rope_scaling == Yarn(40)
    refused(SMALL | {"rope_scaling": YARN, "rope_parameters": new | {"factor": 32}}, "rope_parameters", "rope_scaling",
            "disagree")


@pytest.mark.parametrize("block, why", [
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, "'llama3'"),
    ({"type": "linear", "factor": 2.0}, "'linear'"), ({"type": "dynamic", "factor": 2.0}, "'dynamic'"),
    ({"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}, "'longrope'"),
    (YARN | {"truncate": False}, "truncate"),
    ({"full_attention": YARN, "sliding_attention": {"rope_type": "default"}}, "the type of layer")])
def test_other_rotations_are_counted_but_not_verified(block, why):
    model = read_config(SMALL | {"rope_scaling": block})
    assert model.elements_per_token_per_layer == 30
    with pytest.raises(InputError, match=why) as caught:
        verifiable(model)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_one_block_for_all_types_of_layer():
    block = YARN | {"rope_theta": 50_000}
    model = read_config(SMALL | {"rope_parameters": {"full_attention": block, "linear_attention": dict(block)}})
    assert model.mla == read_config(scaling()).mla and not model.unsupported


@pytest.mark.parametrize("given", [
    {}, {"mscale": 0.5}, {"mscale_all_dim": 0.5}, {"mscale": 0.5, "mscale_all_dim": 0.0},
    {"mscale": 1.0, "mscale_all_dim": 0.5}, {"attention_factor": 0.8}, {"mscale_all_dim": 1.0, "attention_factor": 1.0},
    {"beta_fast": None, "beta_slow": None}])
def test_missing_yarn_numbers_are_those_of_transformers(given):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils", reason="needs transformers")
    v3 = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    block = without(YARN, "mscale", "mscale_all_dim") | {"factor": 4, "original_max_position_embeddings": 1000} | given
    mla = read_config(SMALL | {"rope_scaling": dict(block)}).mla
    theirs = v3.DeepseekV3Config(**SMALL | {"rope_scaling": dict(block)})
    inverse, table = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    assert table_scale(mla) == pytest.approx(table, rel=1e-12)
    assert softmax_scale(mla) == pytest.approx(v3.yarn_apply_mscale(theirs.rope_parameters, 20**-0.5), rel=1e-12)
    assert frequencies(mla) == pytest.approx(inverse.numpy(), rel=1e-6)


def test_yarn_numbers_that_are_given_and_those_that_are_not():
    bare = scaling(beta_fast=None, beta_slow=None, mscale=None, mscale_all_dim=None, attention_factor=0.8)
    yarn = read_config(bare).mla.rope_scaling
    assert (yarn.beta_fast, yarn.beta_slow, yarn.attention_factor, yarn.mscale_all_dim) == (32, 1, 0.8, 0)
    assert table_scale(read_config(bare).mla) == 0.8 and softmax_scale(read_config(bare).mla) == 20**-0.5
    assert read_config(scaling(beta_fast=7, beta_slow=2)).mla.rope_scaling == Yarn(40, beta_fast=7, beta_slow=2)


def test_half_of_the_mscales_leaves_a_note():
    assert "mscale without mscale_all_dim" in read_config(scaling(mscale_all_dim=None)).notes
    assert "mscale_all_dim without mscale" in read_config(scaling(mscale=None)).notes
    assert not read_config(scaling()).notes and not read_config(scaling(mscale=None, mscale_all_dim=None)).notes


def test_conventions_that_a_configuration_states_or_its_class_implies():
    assert read_config(SMALL).mla.rope_interleave
    assert not read_config(SMALL | {"rope_interleave": False}).mla.rope_interleave
    small = read_config(without(SMALL, "v_head_dim") | {"model_type": "minicpm3", "hidden_size": 95}).mla
    assert not small.rope_interleave and small.v_head_dim == 95 // 5
    k3 = SMALL | {"mla_use_nope": True, "mla_use_output_gate": True, "attention_bias": True}
    assert (read_config(k3).mla.mla_use_nope, read_config(k3).mla.output_gate) == (True, "value")
    assert read_config(k3).mla.attention_bias and not read_config(SMALL).mla.attention_bias
    assert read_config(SMALL | {"model_type": "bailing_hybrid"}).mla.output_gate == "head"
    assert read_config(scaling(llama_4_scaling_beta=0.1)).mla.rope_scaling.llama_4_scaling_beta == 0.1
    assert read_config(scaling(type="deepseek_yarn")).mla.rope_scaling == Yarn(40)
    nope = read_config(without(SMALL, "rope_theta") | {"qk_rope_head_dim": 0})
    assert nope.elements_per_token_per_layer == 24 and nope.mla.mla_use_nope
    with pytest.raises(InputError, match="qk_rope_head_dim is 0"):
        verifiable(nope)
    for kind in ("axk2", "hy_v4", "dots3_note_text"):
        with pytest.raises(InputError, match="counted but not verified"):
            verifiable(read_config(SMALL | {"model_type": kind}))
    assert read_config(SMALL).mla.rms_norm_eps == 1e-5
    assert read_config(without(SMALL, "rms_norm_eps")).mla.rms_norm_eps == 1e-6
