"""`python -m mla_lab diagnose` on files that print, crash, hang or return the wrong thing; the pytest plugin."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mla_lab import __main__ as cli
from mla_lab.diagnosis import diagnose
from mla_lab.errors import InputError

HERE = Path(__file__).parent
# A decode in NumPy, in few lines; `{}` is where a mistake goes in.
DECODE = """
import os, sys, time
import numpy as np
print("this is printed at import")

def decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
    print("and this in every call", file=sys.stderr)
    {before}
    out = np.zeros((*q_nope.shape[:3], w_uv.shape[2]))
    t, r = q_nope.shape[1], w_uk.shape[2]
    for i, length in enumerate(lengths):
        for j in range(t):
            rows = kv_cache[i, : length - t + j + 1]
            if len(rows):
                q = np.concatenate([np.einsum("hn,hnr->hr", q_nope[i, j], w_uk), q_rope[i, j]], axis=1)
                p = np.exp(q @ rows.T * {scale})
                out[i, j] = np.einsum("hr,hrv->hv", p / p.sum(1, keepdims=True) @ rows[:, :r], w_uv)
    {after}
    return out
"""


def write(folder, before="", after="", scale="scale", name="port.py"):
    path = folder / name
    path.write_text(DECODE.format(before=before or "pass", after=after or "pass", scale=scale))
    return f"{path}:decode"


def run(capsys, *args):
    code = cli.main(["diagnose", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_right_one_agrees_whatever_it_prints(tmp_path, capsys):
    code, out, err = run(capsys, write(tmp_path), "--protocol", "decode")
    assert code == 0 and "AGREES with the right conventions to float64" in out
    assert "printed at import" not in out + err and "every call" not in out + err


def test_a_fault_is_named_and_written_as_json(tmp_path, capsys):
    target, report = write(tmp_path, scale="q_nope.shape[-1] ** -0.5"), tmp_path / "report.json"
    code, out, _ = run(capsys, target, "--protocol", "decode", "--json", report)
    found = json.loads(report.read_text())
    assert code == 1 and "KNOWN FAULT" in out and "scale_by_nope" in out and "maxtext#1370" in out
    assert found["faults"] == ["scale_by_nope"] and not found["ok"] and "thread" in found["about"]["scale_by_nope"]


@pytest.mark.parametrize("before, after, words", [
    ("raise ValueError('no such\\n thing')", "", "raised ValueError: no such thing (inputs: q_nope (3, 2"),
    ("os._exit(7)", "", "the process ended with code 7"),
    ("sys.exit(0)", "", "raised SystemExit"),
    ("os.kill(os.getpid(), 11)", "", "the process ended with code -11"),
    ("", "return out[..., :3]", "output has shape (3, 2, 5, 3), but needs (3, 2, 5, 10)"),
    ("", "return 'done'", "output"),
    ("", "return out, out", "lse has shape"),
    ("", "out = None", "output is NoneType, which is no array"),
], ids=["raises", "exits", "sys.exit", "segfaults", "shape", "text", "lse", "none"])
def test_what_breaks_is_reported_as_such(tmp_path, capsys, before, after, words):
    code, out, err = run(capsys, write(tmp_path, before, after), "--protocol", "decode")
    flat = " ".join(out.split())
    assert code == 1 and "BREAKS" in out and words in flat and "Traceback" not in out + err


def test_an_exception_in_one_case_leaves_the_others(tmp_path, capsys):
    code, out, _ = run(capsys, write(tmp_path, "if 0 in list(lengths): raise ValueError('empty')"), "--protocol",
                       "decode")
    assert code == 1 and "BREAKS in 1 case, and agrees in the others" in out and "case empty row" in out


def test_a_hang_ends_at_the_time_limit(tmp_path, capsys):
    code, out, _ = run(capsys, write(tmp_path, "time.sleep(60)"), "--protocol", "decode", "--seconds", 6)
    assert code == 1 and "no answer within 6 s" in out


@pytest.mark.parametrize("target, words", [
    ("port.py", "must be given as FILE.py:FUNCTION"), ("nowhere.py:decode", "does not exist"),
    ("{}/port.py:nothing", "has no 'nothing'"), ("{}/broken.py:decode", "cannot be loaded: SyntaxError"),
    ("{}/port.py:np", "nothing that can be called"), ("{}/port.txt:decode", "must be given as FILE.py:FUNCTION"),
])
def test_what_cannot_be_loaded_is_refused(tmp_path, capsys, target, words):
    write(tmp_path)
    (tmp_path / "broken.py").write_text("def decode(:\n")
    code, out, err = run(capsys, target.format(tmp_path), "--protocol", "decode")
    assert code == 2 and words in err and not out and "Traceback" not in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("options, words", [
    (("--protocol", "layers"), "protocol"), (("--dtype", "float16"), "dtype"), (("--arrays", "jax"), "arrays"),
    (("--seconds", "0"), "--seconds"), (("--config", "nowhere.json"), "nowhere.json"),
    (("--protocol", "decode", "--dtype", "bfloat16"), "NumPy has no bfloat16"),
    (("--protocol", "module", "--arrays", "numpy"), "must be torch"),
])
def test_bad_options_are_one_sentence(tmp_path, capsys, options, words):
    code, out, err = run(capsys, write(tmp_path), *options)
    assert code == 2 and words in err and not out and len(err.splitlines()) == 1


def test_the_implementation_s_own_imports_work(tmp_path, capsys):
    write(tmp_path, name="helper.py")
    (tmp_path / "main.py").write_text("from helper import decode as decode\n")
    assert run(capsys, f"{tmp_path}/main.py:decode", "--protocol", "decode")[0] == 0


def test_the_other_protocol_is_proposed(tmp_path, capsys):
    """A function that cannot take what this protocol passes and can take what the other one does."""
    code, out, err = run(capsys, write(tmp_path))
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert "decode takes 7 arguments (q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale) and protocol layer" in err
    assert "protocol layer calls it with 3 or 4; did you mean --protocol decode?" in err

    def layer(hidden, weights, config, cache=None):
        raise AssertionError("called")
    with pytest.raises(InputError, match=r"takes 4 arguments .* calls it with 7; did you mean --protocol layer\?"):
        diagnose(layer, "decode")
    assert diagnose(lambda one: one, "decode").verdict == "raises"  # it fits neither
    assert diagnose(lambda *any: any, "layer").verdict == "raises"  # it fits both


def test_bad_arguments_of_the_function():
    for implementation, more, words in ((3, {}, "function or a module"), (print, {"protocol": "x"}, "protocol"),
                                        (print, {"dtype": "x"}, "dtype")):
        with pytest.raises(InputError, match=words):
            diagnose(implementation, **more)


TEST = """
import pytest
from mla_lab.testing import assert_conforms, conformance_cases
from port import decode

@pytest.mark.parametrize("case", conformance_cases("decode"))
def test_decode(case):
    assert_conforms(decode, case)

def test_by_fixture(mla_decode_case):
    assert_conforms(decode, mla_decode_case)
"""


@pytest.mark.parametrize("scale, passed, failed", [("scale", 20, 0), ("kv_cache.shape[-1] ** -0.5", 4, 16)])
def test_the_pytest_plugin(tmp_path, scale, passed, failed):
    write(tmp_path, scale=scale)
    (tmp_path / "test_port.py").write_text(TEST)
    loaded = [] if _installed() else ["-p", "mla_lab.testing"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded, str(tmp_path)],
                          capture_output=True, text=True, cwd=tmp_path)
    assert f"{passed} passed" in done.stdout and (not failed or f"{failed} failed" in done.stdout), done.stdout[-2000:]
    if failed:
        assert "KNOWN FAULT" in done.stdout and "scale_by_cached_width" in done.stdout
        assert "test_decode[one_token-float64]" in done.stdout


def _installed() -> bool:
    from importlib.metadata import entry_points
    return any(e.value == "mla_lab.testing" for e in entry_points(group="pytest11"))
