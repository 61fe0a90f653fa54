"""The command line: ``python -m mla_lab verify | footprint | models | ...``."""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .commands import COMMANDS
from .errors import InputError
from .report import spare_inputs


class Parser(argparse.ArgumentParser):
    """Bad usage is one sentence like all other bad input."""

    def error(self, message: str):
        raise InputError(f"{message} (see: python -m {self.prog} --help)")


def parser() -> Parser:
    """All commands and their options."""
    top = Parser(prog="mla_lab", description="Claims about Multi-Head Latent Attention, checked.", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", metavar="command")
    for command in COMMANDS:
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 (a check fails or misses a fault), 2 (bad input) or 128 + a signal."""
    for name in ("stdout", "stderr"):  # closed by the shell, as in `>&-`
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        top = parser()
        args = top.parse_args(argv)
        if args.command is None:
            top.print_help()
            return 2
        spare_inputs(getattr(args, "json", None), {name: value for name, value in vars(args).items() if name != "json"})
        code = args.run(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"mla_lab: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        hint = "; leave out case 5 (--case 1 2 3 4)" if args.command == "verify" else ""
        print(f"mla_lab: there is not enough memory for arrays of these dimensions{hint}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mla_lab: interrupted.", file=sys.stderr)
        return 130
    except OSError as error:
        # Standard output has gone (`... | head`) or is full. Python would complain once more when it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"mla_lab: {error}.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
