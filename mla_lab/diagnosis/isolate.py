"""Run an implementation from a file in a process of its own: it may print, crash or hang without harm."""
from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..config import MLAConfig
from ..errors import InputError
from .cases import Case, config_dict, config_from, decode_cases, layer_cases
from .observe import Observed, Problem, observe, printable

PROTOCOLS = ("layer", "decode", "module")
ARGUMENTS = {"layer": (3, 4), "decode": (7,)}  # of a prefill and of a later call; of a decode call
LIBRARIES = ("numpy", "torch")
RESULT, PROBLEMS = "{}.npz", "problems.json"


@lru_cache(maxsize=8)
def battery(protocol: str, config: MLAConfig | None, fp8: bool) -> tuple[Case, ...]:
    """The cases of a protocol: the same objects every time, for predictions are remembered by case."""
    return tuple(decode_cases(config) if protocol == "decode" else layer_cases(config, fp8))


def split_target(target: str) -> tuple[Path, str]:
    """``FILE.py:FUNCTION``."""
    file, _, function = target.rpartition(":")
    path = Path(file)
    if not file or not function.isidentifier() or path.suffix != ".py":
        raise InputError(f"the implementation must be given as FILE.py:FUNCTION, not {target!r}.")
    if not path.is_file():
        raise InputError(f"the implementation's file {file!r} does not exist.")
    return path.resolve(), function


def load_function(path: Path, function: str) -> Any:
    """Import ``path`` as a script would see it, and take ``function`` from it."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise AttributeError(f"{path.name} has no {function!r}")
    return getattr(module, function)


def takes(implementation: Callable, *counts: int) -> bool:
    """Whether it can be called with each of these numbers of arguments, as far as its signature tells."""
    try:
        signature = inspect.signature(implementation)
        for count in counts:
            signature.bind(*range(count))
    except (TypeError, ValueError):  # it cannot, or has no signature
        return False
    return True


def callable_for(implementation: Any, protocol: str) -> Callable:
    """What the battery calls; a function that fits only the other protocol is refused in one sentence."""
    other = {"layer": "decode", "decode": "layer"}.get(protocol)
    if other and not takes(implementation, *ARGUMENTS[protocol]) and takes(implementation, *ARGUMENTS[other]):
        named = [name for name, p in inspect.signature(implementation).parameters.items()
                 if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        raise InputError(f"{getattr(implementation, '__name__', 'the function')} takes {len(named)} arguments "
                         f"({', '.join(named)}) and protocol {protocol} calls it with "
                         f"{' or '.join(map(str, ARGUMENTS[protocol]))}; did you mean --protocol {other}?")
    if protocol != "module":
        return implementation
    from .module import as_layer
    return as_layer(implementation if not hasattr(implementation, "state_dict") else lambda config: implementation)


def takes_torch(implementation: Any, protocol: str) -> bool:
    """Whether it wants tensors: its module imports torch."""
    while isinstance(implementation, partial):
        implementation = implementation.func
    home = sys.modules.get(getattr(implementation, "__module__", None) or type(implementation).__module__)
    names = {**getattr(home, "__dict__", {}), **getattr(implementation, "__globals__", {})}
    return protocol == "module" or any(getattr(x, "__name__", "").split(".")[0] == "torch" for x in names.values()
                                       if type(x).__name__ == "module")


def run_isolated(target: str, protocol: str, config: MLAConfig | None, dtype: str, arrays: str | None, fp8: bool,
                 seconds: float, cases: Sequence[Case], meanwhile: Callable[[], Any]) -> tuple[Observed, str]:
    """What the function gave within ``seconds``, and the arrays it was given; ``meanwhile`` is done at its side."""
    path, function = split_target(target)
    with tempfile.TemporaryDirectory(prefix="mla_lab_") as folder:
        task = {"path": str(path), "function": function, "protocol": protocol, "dtype": dtype, "arrays": arrays,
                "fp8": fp8, "config": config and config_dict(config), "folder": folder}
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
                "from mla_lab.diagnosis import isolate; isolate.child()")
        began = time.monotonic()
        with (open(os.path.join(folder, "stderr"), "w+", encoding="utf-8", errors="replace") as stderr,
              subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               stderr=stderr, text=True, env=environment, start_new_session=True) as process):
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(task))
                    process.stdin.close()
                meanwhile()
                process.wait(max(seconds - (time.monotonic() - began), 0.01))
                ended = None if process.returncode == 0 else f"the process ended with code {process.returncode}"
            except subprocess.TimeoutExpired:
                ended = f"no answer within {seconds:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
            stderr.seek(0)
            last = stderr.read().strip().splitlines()
        return collect(Path(folder), cases, ended, last, arrays)


def collect(folder: Path, cases: Sequence[Case], ended: str | None, last: list[str], arrays: str | None
            ) -> tuple[Observed, str]:
    """What the child left behind."""
    seen, status = Observed({}, []), {}
    if (folder / PROBLEMS).is_file():
        status = json.loads((folder / PROBLEMS).read_text(encoding="utf-8"))
        seen.problems += [Problem(**p) for p in status["problems"]]
        seen.cached, seen.notes = status["cached"], status.get("notes", [])
    for case in cases:
        if (folder / RESULT.format(case.name)).is_file():
            with np.load(folder / RESULT.format(case.name), allow_pickle=False) as stored:
                seen.outputs[case.name] = tuple(stored[f"arr_{i}"] for i in range(len(stored.files)))
    if "refused" in status:
        raise InputError(status["refused"])
    if not ended and "arrays" not in status:
        ended = "the process ended with code 0 before all cases had run"
    if ended:
        known = {*seen.outputs, *(p.case for p in seen.problems)}
        where = next((c.name for c in cases if c.name not in known), "the last")
        said = f"last line on stderr: {printable(last[-1][:300])}" if last else "nothing on stderr"
        seen.problems.append(Problem(where, "before its end", ended, said))
    return seen, status.get("arrays") or arrays or "numpy"


def child() -> None:
    """In the process of its own: run, and leave each case's outputs in the folder as soon as they are there."""
    task = json.loads(sys.stdin.read())
    folder, protocol = Path(task["folder"]), task["protocol"]

    def status(**fields: Any) -> None:
        part = folder / (PROBLEMS + ".part")
        part.write_text(json.dumps(fields), encoding="utf-8")
        os.replace(part, folder / PROBLEMS)

    def keep(name: str, outputs: tuple) -> None:
        with open(folder / "part", "wb") as file:
            np.savez(file, *outputs)
        os.replace(folder / "part", folder / RESULT.format(name))

    try:
        implementation = load_function(Path(task["path"]), task["function"])
    except BaseException as error:
        what = printable(" ".join(f"{type(error).__name__}: {error}".split())[:400])
        status(problems=[], cached=None, refused=f"{Path(task['path']).name} cannot be loaded: {what}.")
        return
    arrays = task["arrays"] or ("torch" if "torch" in sys.modules or protocol == "module" else "numpy")
    config = config_from(task["config"]) if task["config"] else None
    try:
        if not callable(implementation):
            raise InputError(f"{task['function']!r} in {task['path']} is {type(implementation).__name__}, and nothing "
                             "that can be called.")
        seen = observe(callable_for(implementation, protocol), battery(protocol, config, task["fp8"]), task["dtype"],
                       arrays, keep)
    except InputError as error:
        status(problems=[], cached=None, refused=str(error))
        return
    status(arrays=arrays, **seen.as_json())
