"""transformers' attention classes under `diagnose`: they conform, and where they do not, the fault is named."""
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="transformers' layers are torch modules")
pytest.importorskip("transformers", minversion="5.24", reason="the comparison with transformers needs transformers")

import hf

from mla_lab.diagnosis import diagnose
from mla_lab.diagnosis.cases import FULL
from mla_lab.diagnosis.observe import observe

PLAIN = {"deepseek_v2", "deepseek_v2 lite", "deepseek_v3", "deepseek_v3 half-split", "youtu", "axk1", "glm4_moe_lite",
         "minicpm3"}
THEIR_EPS = replace(FULL, rms_norm_eps=1e-6)  # the default that their latent norms have whatever the configuration says


def factory(name):
    family = hf.FAMILIES[name]

    def make(config):
        theirs = family.load(family.config, configuration=True)(**config | family.theirs)
        theirs._attn_implementation = "eager"
        rotary = family.load(family.attention.replace("Attention", "RotaryEmbedding"))
        return family.load(family.attention)(theirs, 0), rotary(theirs)
    return make


def config_of(name, config):
    return replace(config, **hf.FAMILIES[name].ours, **({"q_lora_rank": None} if "lite" in name else {}))


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_their_layers_conform(name):
    """To float32: their norms, rotary tables and softmax run in it whatever the dtype of the layer is."""
    found = diagnose(factory(name), "module", config=config_of(name, THEIR_EPS))
    assert found.ok and found.precision == "float32", str(found)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_their_layers_conform_in_bfloat16(name):
    assert diagnose(factory(name), "module", config=config_of(name, THEIR_EPS), dtype="bfloat16").ok


def test_their_epsilon_is_not_the_configuration_s():
    found = diagnose(factory("deepseek_v3"), "module", config=FULL)
    assert (found.verdict, found.faults) == ("fault", ("norm_eps_wrong",)), str(found)
    assert "huggingface/transformers#44346" in str(found)


def test_one_read_by_the_other_convention_is_named():
    found = diagnose(factory("deepseek_v3 half-split"), "module", config=THEIR_EPS)
    assert found.faults == ("half_split_pairing",), str(found)


def test_a_module_whose_weights_have_other_names_breaks_with_the_name():
    from mla_lab.diagnosis.cases import layer_cases
    from mla_lab.diagnosis.module import as_layer
    seen = observe(as_layer(factory("deepseek_v3")), list(layer_cases(replace(THEIR_EPS, q_lora_rank=None)))[:1],
                   "float64", "torch")
    assert seen.outputs or seen.problems
    seen = observe(as_layer(lambda config: __import__("torch").nn.Linear(3, 3)), list(layer_cases())[:1], "float64",
                   "torch")
    assert "weight" in seen.problems[0].what and "Hugging Face's names" in seen.problems[0].what
