"""What the commands' options have in common."""
from __future__ import annotations

import argparse
import os

MOST = 10**18  # tokens or requests; far beyond any cache, and every unit can still be printed


def whole(text: str, least: int = 1) -> int:
    """An option's value as a whole number of at least 1."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if least <= value <= MOST:
        return value
    raise argparse.ArgumentTypeError(f"must be a whole number from {least} to 10^18, not {text[:40]!r}")


def from_zero(text: str) -> int:
    """An option's value as a whole number of at least 0."""
    return whole(text, 0)


def which_model(command: argparse.ArgumentParser, named: str) -> None:
    """The two ways to say which model is meant."""
    either = command.add_mutually_exclusive_group()
    either.add_argument("--model", metavar="NAME", help=named)
    either.add_argument("--config", metavar="FILE", help="read the dimensions from this config.json")


def one_thread() -> None:
    """Products of these sizes gain nothing from a second BLAS thread and lose much where another process has the core.

    To be called before NumPy is loaded; what the environment already says stays.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
