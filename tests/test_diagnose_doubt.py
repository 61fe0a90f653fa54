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
