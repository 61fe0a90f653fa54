"""Plain implementations agree with the right conventions, and each fault made by hand with its entry in the registry.

The plain files share nothing with mla_lab, so that this is a comparison of two readings of one sentence.
"""
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest

from mla_lab.diagnosis.cases import LayerCase, config_dict, decode_cases, layer_cases
from mla_lab.diagnosis.distance import shares
from mla_lab.diagnosis.predict import predict
from mla_lab.diagnosis.search import BITS
from mla_lab.faults import FAULTS, attending, rotation, scale, weights
from mla_lab.recipe import RIGHT

torch = pytest.importorskip("torch")
from plain.attention import MERGING  # noqa: E402
from plain.decode import DECODE_FAULTS, decode  # noqa: E402
from plain.layer import LAYER_FAULTS, layer  # noqa: E402

REGISTRY = {fault.id: fault for fault in FAULTS}
FUNCTIONS = {"absorb": partial(layer, mode="absorb"), "naive": partial(layer, mode="naive"),
             "blocks": partial(decode, pieces="blocks"), "halves": partial(decode, pieces="halves")}
PLANTED = [(name, fault) for name, groups in (("absorb", LAYER_FAULTS), ("naive", LAYER_FAULTS),
                                              ("blocks", DECODE_FAULTS), ("halves", DECODE_FAULTS))
           for group in groups.values() for fault in group if name != "halves" or fault in MERGING]
ONLY_IN_FLOAT32_OR_WIDER = {"tf32"}
OF_THE_SIZE_OF_ITS_ROUNDING = {"lse_in_bfloat16"}  # which no distance can tell from bfloat16 elsewhere
# Where a plain implementation makes the mistake in another way than any form of the registry does, and how.
@lru_cache
def cases(name: str):
    return tuple(layer_cases(fp8=True) if name in ("absorb", "naive") else decode_cases())


@lru_cache
def right(case):
    return predict(case)


@lru_cache
def predicted(case, fault, form, mode):
    return predict(case, replace(RIGHT, decode_mode=mode, **REGISTRY[fault].forms[form]))


def run(case, function, dtype):
    """What ``function`` makes of ``case``, as `predict` gives it."""
    def tensor(x):
        return torch.from_numpy(np.ascontiguousarray(x)).to(getattr(torch, dtype))

    if not isinstance(case, LayerCase):
        inputs = (case.q_nope, case.q_rope, case.kv_cache, case.w_uk, case.w_uv)
        outputs = function(*map(tensor, inputs), torch.tensor(case.lengths), RIGHT.scale(case.config))
    else:
        weights = {name: torch.from_numpy(w).view(torch.float8_e4m3fn) if w.dtype == np.uint8
                   else torch.from_numpy(w) if name.endswith("_scale_inv") else tensor(w)
                   for name, w in case.state.items()}
        cache, outputs = None, []
        for x in case.hidden:
            out, cache = function(tensor(x), weights, config_dict(case.config), cache)
            outputs.append(out)
    return tuple(x.double().numpy() for x in outputs)


def distance(found, meant):
    """The largest relative rms over the outputs of a case; infinite where what is not finite is not the same."""
    worst = 0.0
    for x, y in zip(found, meant, strict=True):
        finite = np.isfinite(y)
        if x.shape != y.shape or not np.array_equal(np.where(finite, 0, y), np.where(np.isfinite(x), 0, x),
                                                    equal_nan=True):
            return np.inf
        if finite.any():
            worst = max(worst, np.linalg.norm(x[finite] - y[finite]) / np.linalg.norm(y[finite]))
    return worst


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_right(name, dtype):
    """Inside the radius that rounding is likely to reach on these very numbers."""
    for case in cases(name):
        used = shares(run(case, FUNCTIONS[name], dtype), case, BITS[dtype][0])
        assert max(share.max() for share in used) <= 1, case.name


def test_every_fault_is_there():
    covered = {fault for _, fault in PLANTED}
    assert covered == {fault.id for part in (rotation, scale, weights, attending) for fault in part.FAULTS}


@pytest.mark.parametrize("name, fault", PLANTED)
def test_a_fault_shows(name, fault):
    function = partial(FUNCTIONS[name], fault=fault)
    assert any(distance(run(case, function, "float64"), right(case)) > 1e-6 for case in cases(name))
    if fault not in ONLY_IN_FLOAT32_OR_WIDER | OF_THE_SIZE_OF_ITS_ROUNDING:
        assert any(distance(run(case, function, "bfloat16"), right(case)) > 2e-2 for case in cases(name))


@pytest.mark.parametrize("name, fault", PLANTED)
def test_the_registry_predicts(name, fault):
    found = {case: run(case, partial(FUNCTIONS[name], fault=fault), "float64") for case in cases(name)}
    forms, modes = range(len(REGISTRY[fault].forms)), {"absorb", "naive" if name == "naive" else "absorb"}
    # The LSE that comes with a wrong output is not part of the prediction.
    only = slice(1) if fault == "wrong_heads_of_padded" and name in ("blocks", "halves") else slice(None)
    assert any(all(distance(found[case][only], predicted(case, fault, form, mode)[only]) < 1e-12 for case in found)
               for mode in sorted(modes) for form in forms)
