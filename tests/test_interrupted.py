"""What ends a command early: Ctrl-C, too little memory, a report over its own input; one sentence, nothing spoilt."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mla_lab import commands
from mla_lab.__main__ import main

ROOT = Path(__file__).parent.parent


def heard():
    """In the child: Ctrl-C ends it, even where a shell has started these tests in the background, deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(folder, *words, once):
    """Exit code and what was said, Ctrl-C having gone to the whole process group when ``once(pid)`` was true."""
    target = folder / "report.json"
    command = [sys.executable, "-m", *words, "--json", str(target)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heard) as process:
        try:
            deadline = time.monotonic() + 60
            while not once(process.pid):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert not list(folder.iterdir()), "a file is left"
    return process.returncode, said


def children(pid):
    """Processes that this one has started, from its kernel's list."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def frozen(pid):
    """Whether one of two ranks has stopped itself."""
    ranks = children(pid)
    return len(ranks) == 2 and any(Path(f"/proc/{rank}/stat").read_text().split()[2] == "T" for rank in ranks)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks(tmp_path):
    pytest.importorskip("torch")
    seen = []
    code, said = interrupted(tmp_path, "mla_lab.serving.launch", "--break-rank", "1", "--how", "hang",
                             once=lambda pid: frozen(pid) and (seen.extend(children(pid)) or True))
    assert (code, said) == (130, "mla_lab: interrupted.\n")
    assert len(seen) == 2 and not any(Path(f"/proc/{rank}").exists() for rank in seen)


def test_a_benchmark(tmp_path):
    begun = lambda pid: list(tmp_path.glob("*.part"))
    code, said = interrupted(tmp_path, "mla_lab", "bench", "--heads", "2", "--tokens", "64", once=begun)
    assert code == 130 and said.endswith("mla_lab: interrupted.\n") and "Traceback" not in said


@pytest.mark.parametrize("command", [commands.bench, commands.verify], ids=["bench", "verify"])
def test_too_little_memory_is_said_of_the_command_that_ran(command, monkeypatch, capsys):
    """Only `verify` has a case to leave out."""
    def full(args):
        raise MemoryError
    monkeypatch.setattr(command, "run", full)
    assert main([command.__name__.rpartition(".")[2]]) == 2
    said = capsys.readouterr().err
    assert "not enough memory" in said and ("case 5" in said) is (command is commands.verify) and said.count("\n") == 1


@pytest.mark.parametrize("words, target, read", [
    ("capacity --gpu L40S --gpus 1 --config here/config.json", "here/config.json", "config"),
    ("capacity --gpu L40S --gpus 1 --config here", "here/config.json", "config"),
    ("capacity --gpu L40S --gpus 1 --config here", "here/a.safetensors", "config"),
    ("capacity --gpu L40S --gpus 1 --config here/config.json", "linked.json", "config"),
    ("diagnose here/mine.py:attend", "here/mine.py", "target"),
    ("grade b.ipynb here/a.ipynb", "here/a.ipynb", "notebooks"),
])
def test_a_report_does_not_replace_what_is_read(words, target, read, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "vocab_size": 100, "intermediate_size": 96,
              "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    for name in ("config.json", "a.safetensors", "mine.py", "a.ipynb"):
        (here / name).write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "linked.json").symlink_to(here / "config.json")
    assert main([*words.split(), "--json", target]) == 2
    said = capsys.readouterr().err
    assert said == f"mla_lab: --json {target} would replace the {read} that is read; take another name.\n"
    assert json.loads(Path(target).read_text(encoding="utf-8")) == config
    for _ in range(2 if words.startswith("capacity") else 0):  # a report of ours may be replaced
        assert main([*words.split(), "--json", "here/report.json"]) == 0
