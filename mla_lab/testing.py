"""Hold an implementation to the battery in one's own tests.

    import pytest
    from mla_lab.testing import assert_conforms, conformance_cases
    from my_engine import layer

    @pytest.mark.parametrize("case", conformance_cases("layer"))
    def test_layer(case):
        assert_conforms(layer, case)

The protocols are those of `mla_lab.diagnosis.diagnose`. As a pytest plugin (loaded wherever mla_lab is installed) the
same is one fixture: a test that takes ``mla_layer_case`` or ``mla_decode_case`` runs once for each case, in the dtypes
given with ``--mla-dtype``.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pytest loads this module at every start, so nothing else is loaded before a case is asked for
    from .config import MLAConfig
    from .diagnosis.cases import Case

FIXTURES = {"mla_layer_case": "layer", "mla_decode_case": "decode", "mla_module_case": "module"}


@dataclass(frozen=True, eq=False)
class ConformanceCase:
    """One case of the battery in one dtype; pytest shows its `str`."""

    case: Case
    protocol: str
    dtype: str
    arrays: str | None
    config: MLAConfig | None
    fp8: bool

    def __str__(self) -> str:
        return f"{self.case.name.replace(' ', '_')}-{self.dtype}"


def conformance_cases(
    protocol: str = "layer", config: MLAConfig | None = None, dtypes: tuple[str, ...] = ("float64",),
    arrays: str | None = None, fp8: bool = False,
) -> list[Any]:
    """The cases of a protocol as parameters for ``pytest.mark.parametrize``.

    Parameters
    ----------
    protocol, config, arrays, fp8
        As for `mla_lab.diagnosis.diagnose`.
    dtypes : tuple of str
        Each case is run in each of them.

    Returns
    -------
    list of pytest.param
        Each holds a `ConformanceCase`, with a readable id.
    """
    import pytest

    from .arrays import DTYPES
    from .diagnosis.isolate import PROTOCOLS, battery
    from .errors import unknown
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
    cases = [ConformanceCase(case, protocol, dtype, arrays, config, fp8)
             for case in battery(protocol, config, fp8) for dtype in dtypes]
    return [pytest.param(case, id=str(case)) for case in cases]


def assert_conforms(implementation: Callable, case: ConformanceCase) -> None:
    """Fail, with the whole diagnosis, unless ``implementation`` gives what the right conventions give for ``case``.

    Raises
    ------
    AssertionError
        Its message names the known fault that reproduces the output, if there is one.
    """
    __tracebackhide__ = True
    from .errors import InputError
    case = getattr(case, "values", (case,))[0]  # as pytest wraps it in a parameter
    if not isinstance(case, ConformanceCase):
        raise InputError(f"case must be one of conformance_cases(...), not {case!r}.")
    from .diagnosis.distance import shares
    from .diagnosis.isolate import callable_for, takes_torch
    from .diagnosis.observe import observe
    from .diagnosis.search import BITS
    arrays = case.arrays or ("torch" if takes_torch(implementation, case.protocol) else "numpy")
    seen = observe(callable_for(implementation, case.protocol), [case.case], case.dtype, arrays)
    bits = BITS[case.dtype][: 2 if case.dtype == "float64" else 1]  # a step may well run in float32
    outputs = seen.outputs.get(case.case.name)
    if outputs is not None and any(all(s.max() <= 1 for s in shares(outputs, case.case, b) if s.size) for b in bits):
        return
    found = _diagnosed(implementation, case.protocol, case.config, case.dtype, arrays, case.fp8)
    raise AssertionError(f"case {case.case.name!r}: the implementation departs from MLA's conventions\n{found}")


@lru_cache(maxsize=8)
def _diagnosed(implementation: Callable, protocol: str, config: MLAConfig | None, dtype: str, arrays: str, fp8: bool
               ) -> str:
    """One diagnosis for all cases that fail."""
    from .diagnosis import diagnose
    return str(diagnose(implementation, protocol, config, dtype, arrays, fp8, whole=True))


# --- the pytest plugin ---

def pytest_addoption(parser: Any) -> None:
    parser.getgroup("mla_lab").addoption(
        "--mla-dtype", action="append", metavar="DTYPE",
        help="dtype of the MLA conformance cases: float64 (default), float32 or bfloat16; may be repeated")


def pytest_generate_tests(metafunc: Any) -> None:
    for fixture in FIXTURES.keys() & set(metafunc.fixturenames):
        dtypes = tuple(metafunc.config.getoption("--mla-dtype") or ("float64",))
        metafunc.parametrize(fixture, conformance_cases(FIXTURES[fixture], dtypes=dtypes))
