"""What is not known must not be named: small errors, wrong LSE, NaN everywhere, early ends, odd messages."""
import numpy as np
import pytest
from test_diagnose_isolated import run, write

torch = pytest.importorskip("torch", reason="the implementations written by hand are in torch")

from plain.decode import decode  # noqa: E402

from mla_lab.diagnosis import diagnose  # noqa: E402


def spoiled(change):
    """The right decode, with its output and LSE changed."""
    def function(*args):
        return change(*decode(*args), args)
    return function


DOUBTFUL = {
    "one element": lambda out, lse, a: (out.index_fill(3, torch.tensor([4]), 0) + torch.nn.functional.pad(
        out[..., 4:5] * 1.01, (4, out.shape[3] - 5)), lse),
    "a factor": lambda out, lse, a: (out * 1.001, lse),
    "a larger factor": lambda out, lse, a: (out * 1.01, lse),
    "a constant": lambda out, lse, a: (out + 1e-3, lse),
    "LSE to base 10": lambda out, lse, a: (out, lse / np.log(10)),
    "LSE off": lambda out, lse, a: (out, lse * 1.001),
    "LSE constant": lambda out, lse, a: (out, 0 * torch.nan_to_num(lse) + 1),
    "LSE reversed": lambda out, lse, a: (out, lse.flip(0)),
    "scale off by 1e-3": lambda out, lse, a: decode(*a[:6], a[6] * 1.001),
    "scale off by 1e-5": lambda out, lse, a: decode(*a[:6], a[6] * 1.00001),
    "NaN everywhere": lambda out, lse, a: (out * np.nan, lse * np.nan),
    "infinity everywhere": lambda out, lse, a: (out * 0 + np.inf, lse),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_no_fault_is_named_with_certainty(name):
    found = diagnose(spoiled(DOUBTFUL[name]), "decode", arrays="torch")
    assert found.verdict in ("unknown", "nearest"), str(found)
    assert "KNOWN FAULT: " not in str(found) and ("inf of the" not in str(found))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("change, words", [
    (lambda out, lse, a: decode(*a[:6], a[6] * 1.1), "the softmax scale times 1.1000"),
    (lambda out, lse, a: decode(*a[:6], a[6] * 0.3)[0], "the softmax scale times 0.3000"),  # it gives no LSE
    (lambda out, lse, a: (out * 1.1, lse), "the right output times 1.1000"),
    (lambda out, lse, a: -out, "the right output times -1.0000")])
def test_one_factor_is_told_and_stays_an_unknown_fault(change, words, dtype):
    found = diagnose(spoiled(change), "decode", dtype=dtype, arrays="torch")
    assert found.verdict == "unknown" and not found.ok and found.faults == ()
    if dtype == "float64":
        assert f"UNKNOWN FAULT, but it looks like {words}: that" in str(found)
    else:  # where the factor is fitted to rounded numbers
        assert found.looks.rsplit(" ", 1)[0] == words.rsplit(" ", 1)[0]
        assert float(found.looks.split()[-1]) == pytest.approx(float(words.split()[-1]), rel=2**-7)


@pytest.mark.parametrize("change", [
    lambda out, lse, a: (out * 1.1 + 1e-3, lse), lambda out, lse, a: (out, lse * 1.1),
    lambda out, lse, a: (decode(*a[:6], a[6] * 1.1)[0], lse),
    lambda out, lse, a: (decode(*a[:6], a[6] * (1 + 1e-3 * a[0].shape[1]))[0]),  # another one in each case
])
def test_what_no_one_factor_reproduces_is_not_called_one(change):
    found = diagnose(spoiled(change), "decode", arrays="torch")
    assert found.verdict in ("unknown", "nearest") and found.looks == ""


def test_a_departure_of_lse_is_a_share_of_lse():
    text = str(diagnose(spoiled(lambda out, lse, a: (out, lse * 1.44)), "decode", arrays="torch"))
    assert "off by 0.44 of the LSE's size" in text and "of the output's size" not in text


def test_one_factor_of_a_layer():
    from plain.layer import layer

    def tenth_more(hidden, weights, config, cache=None):
        out, cache = layer(hidden, weights, config, cache)
        return 1.1 * out, cache
    assert diagnose(tenth_more).looks == "the right output times 1.1000"


@pytest.mark.parametrize("name", ["LSE to base 10", "LSE constant", "NaN everywhere"])
def test_nor_in_bfloat16(name):
    found = diagnose(spoiled(DOUBTFUL[name]), "decode", dtype="bfloat16", arrays="torch")
    assert found.verdict in ("unknown", "nearest"), str(found)


def test_noise_of_the_size_of_tf32_is_hedged():
    generator = torch.Generator().manual_seed(4)
    def noisy(out, lse, a):
        return out * (1 + 2e-3 * torch.randn(out.shape, generator=generator, dtype=out.dtype)), lse
    found = diagnose(spoiled(noisy), "decode", arrays="torch")
    assert found.verdict in ("precision", "unknown", "nearest") or "seem to round" in str(found), str(found)


def test_inputs_written_in_place_are_noted():
    def writes(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
        out = decode(q_nope.clone(), q_rope, kv_cache.clone(), w_uk, w_uv, lengths, scale)
        q_nope *= 2
        return out
    found = diagnose(writes, "decode", arrays="torch")
    assert any("in place: q_nope" in r for r in found.remarks)


@pytest.mark.parametrize("before, words", [
    ("decode.calls = getattr(decode, 'calls', 0) + 1\n    if decode.calls == 5: os._exit(0)",
     "ended with code 0 before"),
    ("raise ValueError('bad \\udcff \\x1b[31m text')", "bad \\udcff \\x1b[31m text"),
], ids=["early end", "odd message"])
def test_early_ends_and_odd_messages(tmp_path, capsys, before, words):
    code, out, err = run(capsys, write(tmp_path, before), "--protocol", "decode")
    assert code == 1 and "AGREES" not in out and words in " ".join(out.split()) and "\x1b" not in out, out


def test_what_it_started_ends_with_it(tmp_path, capsys):
    mark = tmp_path / "mark"
    run(capsys, write(tmp_path, f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 25; touch {mark}'])"),
        "--protocol", "decode")
    import subprocess
    assert "sleep 25" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_cases_as_pytest_wraps_them_are_taken():
    from mla_lab.errors import InputError
    from mla_lab.testing import assert_conforms, conformance_cases
    assert_conforms(decode, conformance_cases("decode", arrays="torch")[0])
    with pytest.raises(InputError, match="conformance_cases"):
        assert_conforms(decode, "values")
