"""One fixture runs a test on every backend; the GPU member skips itself where there is none."""
import os

# The workers of pytest-xdist share the cores; libraries that each take all of them spin on each other's locks.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import pytest  # noqa: E402

from mla_lab.arrays import get_backend, strict_backend  # noqa: E402
from mla_lab.errors import InputError  # noqa: E402

MEMBERS = ("numpy", "torch", "array-api-strict", "torch-cuda")


def make(member: str, dtype: str = "float64"):
    if member == "array-api-strict":
        return strict_backend(dtype)
    try:
        return get_backend(member, dtype)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(params=MEMBERS)
def backend(request):
    """Every backend in float64."""
    return make(request.param)


@pytest.fixture(params=[(m, d) for m in MEMBERS for d in ("float64", "float32", "bfloat16")
                        if (m, d) != ("array-api-strict", "bfloat16")], ids=lambda x: "-".join(x))
def backend_and_dtype(request):
    """Every backend in every dtype that it has."""
    return make(*request.param)
