"""The command line: ``python -m mla_lab verify | footprint | models``."""
from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from . import footprint as fp
from .errors import InputError
from .models import Model, get_mla, verifiable
from .read_config import read_config
from .report import brief, columns, json_target, listed, plain, row, seen
from .tables import run_footprint, run_models

MOST = 10**18  # tokens or requests; far beyond any cache, and every unit can still be printed
MOST_WEIGHTS = 2**32  # in a layer; the largest published one has a twentieth of that


class Parser(argparse.ArgumentParser):
    """Bad usage is one sentence like all other bad input."""

    def error(self, message: str):
        raise InputError(f"{message} (see: python -m {self.prog} --help)")


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


def parser() -> Parser:
    """The three commands and their options."""
    top = Parser(prog="mla_lab", description="Claims about Multi-Head Latent Attention, checked.", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", metavar="command")

    verify = commands.add_parser("verify", help="run the checks and the faults they must catch", allow_abbrev=False)
    verify.add_argument("--case", type=whole, nargs="+", action="extend", metavar="N", help="only these cases")
    verify.add_argument("--backend", help="numpy, torch or torch-cuda (default: MLA_LAB_BACKEND, or numpy)")
    verify.add_argument("--dtype", default="float64", help="float64 (default), float32 or bfloat16")
    which_model(verify, "whose dimensions (DeepSeek-V3)")
    verify.add_argument("--checkpoint", metavar="DIR", help="run on weights from this folder or .safetensors file; "
                        "the dimensions are those of the config.json in it")
    verify.add_argument("--layer", type=from_zero, metavar="K", help="which layer of the checkpoint, counted from 0")
    verify.add_argument("--json", metavar="FILE", help="also write the results as JSON; - is standard output")
    verify.set_defaults(run=run_verify)

    sizes = commands.add_parser("footprint", help="count what a model caches", allow_abbrev=False)
    which_model(sizes, "default: a table of all models")
    sizes.add_argument("--tokens", type=whole, default=8192, metavar="N", help="context of a request (8192)")
    sizes.add_argument("--batch", type=whole, default=1, metavar="N", help="requests (1)")
    sizes.add_argument("--dtype", default="bf16", help=f"cache format: {', '.join(fp.CACHE_DTYPES)} (bf16)")
    sizes.add_argument("--tp", type=whole, metavar="N", help="also the share of each of N tensor-parallel GPUs")
    sizes.add_argument("--mtp", action="store_true", help="count the multi-token-prediction layer")
    sizes.add_argument("--index-keys", nargs="?", const="fp8", metavar="FORMAT",
                       help=f"count the index keys of sparse attention (DSA): {', '.join(fp.INDEX_KEYS)} (fp8)")
    sizes.add_argument("--json", action="store_true", help="JSON: an object for one model, a list for all")
    sizes.set_defaults(run=run_footprint)

    table = commands.add_parser("models", help="list the models and where they were read", allow_abbrev=False)
    table.add_argument("--json", action="store_true")
    table.set_defaults(run=run_models)
    return top


# --- verify --------------------------------------------------------------------------------------------------------

def chosen(args: argparse.Namespace) -> Model:
    """Whose dimensions."""
    if (args.checkpoint is None) != (args.layer is None):
        raise InputError("--checkpoint DIR and --layer K go together: one says where the weights are, one which layer.")
    source = args.config
    if args.checkpoint is not None and source is None and args.model is None:
        from .shards import Checkpoint
        source = Checkpoint(args.checkpoint).folder
    return get_mla(args.model or "DeepSeek-V3") if source is None else verifiable(read_config(source))


def run_verify(args: argparse.Namespace) -> int:
    # Products of these sizes gain nothing from a second thread and lose much where another process has the core.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    from tqdm import tqdm

    from .arrays import get_backend
    from .suite import run, select, summary
    from .verdict import Given, Setting
    from .weights import shapes

    model, remarks = chosen(args), []
    weights = sum(map(math.prod, shapes(model.mla).values()))
    if weights > MOST_WEIGHTS:
        raise InputError(f"a layer of {model.name} has {weights:,} weights; verify takes at most {MOST_WEIGHTS:,}.")
    setting = Setting(get_backend(args.backend, args.dtype), model.mla, model.name)
    checks = select(args.case)
    if args.model is None and model.source_kind == "config_file" and model.notes:
        remarks.append(f"{model.name}: {model.notes}")
    if args.checkpoint is not None:
        from .checkpoint import read_layer
        from .shards import report
        state = read_layer(args.checkpoint, args.layer, model.mla, model.weight_block_size)
        setting = replace(setting, state=Given(state, f"layer {args.layer} of {args.checkpoint}"))
        remarks += [f"The weights of {setting.state.where} are those of 2.model, 5.model_layer and all of case 4 that "
                    "is not exact.", *report(args.checkpoint)]
    with json_target(args.json) as target:
        out = sys.stderr if target is sys.stdout else sys.stdout
        for remark in remarks:
            print(remark, file=out)
        widths = columns(max(len(c.id) for c in checks))
        print("seen: the largest distance from the oracle, or what it says; bound: the most that rounding explains",
              file=out)
        print(*row(("id", "claim", "seen", "bound", "verdict", "faults caught"), widths), sep="\n", file=out)
        print("  ".join("-" * w for w in widths), file=out, flush=True)
        results = []
        with tqdm(total=len(checks), unit="check", leave=False, disable=None, file=sys.stderr) as bar:
            for r in run(setting, args.case):
                v, caught, assigned = r.verdict, len(r.caught), len(r.caught) + len(r.missed)
                bound = "exact" if v.bound is None else f"{v.bound:.2g}"
                cells = (r.check.id, v.claim, seen(v.saw, v.expected, v.bound), bound,
                         "holds" if v.ok else "FAILS", f"{caught} of {assigned}")
                bar.write("\n".join([*row(cells, widths), *listed("caught", r.caught, widths)]), file=out)
                bar.update()
                results.append(r)
        for r in results:
            if not r.verdict.ok:
                print(f"check {r.check.id} FAILS: expected {brief(r.verdict.expected)}; {r.verdict.note}", file=out)
            if r.missed:
                print(f"check {r.check.id} misses the faults {', '.join(r.missed)}", file=out)
        if target:
            json.dump([plain(r.as_json(setting)) for r in results], target, indent=1, ensure_ascii=False)
            target.write("\n")
    line, ok = summary(results)
    print(line, file=out)
    return 0 if ok else 1


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
        code = args.run(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"mla_lab: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("mla_lab: there is not enough memory for a layer of these dimensions; leave out case 5 (--case 1 2 3 4).",
              file=sys.stderr)
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
