"""The command line: ``python -m mla_lab verify | footprint | models``."""
from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from . import footprint as fp
from .errors import InputError
from .models import Model, get_mla, get_model, models
from .report import brief, columns, json_target, listed, number, plain, print_table, row

MOST = 10**18  # tokens or requests; far beyond any cache, and every unit can still be printed


class Parser(argparse.ArgumentParser):
    """Bad usage is one sentence like all other bad input."""

    def error(self, message: str):
        raise InputError(f"{message} (see: python -m {self.prog} --help)")


def whole(text: str) -> int:
    """An option's value as a whole number of at least 1."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    if 1 <= value <= MOST:
        return value
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 10^18, not {text[:40]!r}")


def parser() -> Parser:
    """The three commands and their options."""
    top = Parser(prog="mla_lab", description="Claims about Multi-Head Latent Attention, checked.", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", metavar="command")

    verify = commands.add_parser("verify", help="run the checks and the faults they must catch", allow_abbrev=False)
    verify.add_argument("--case", type=whole, nargs="+", action="extend", metavar="N", help="only these cases")
    verify.add_argument("--backend", help="numpy, torch or torch-cuda (default: MLA_LAB_BACKEND, or numpy)")
    verify.add_argument("--dtype", default="float64", help="float64 (default), float32 or bfloat16")
    verify.add_argument("--model", default="DeepSeek-V3", metavar="NAME", help="whose dimensions (DeepSeek-V3)")
    verify.add_argument("--json", metavar="FILE", help="also write the results as JSON; - is standard output")
    verify.set_defaults(run=run_verify)

    sizes = commands.add_parser("footprint", help="count what a model caches", allow_abbrev=False)
    sizes.add_argument("--model", metavar="NAME", help="default: a table of all models")
    sizes.add_argument("--tokens", type=whole, default=8192, metavar="N", help="context of a request (8192)")
    sizes.add_argument("--batch", type=whole, default=1, metavar="N", help="requests (1)")
    sizes.add_argument("--dtype", default="bf16", help=f"cache format: {', '.join(fp.CACHE_DTYPES)} (bf16)")
    sizes.add_argument("--tp", type=whole, metavar="N", help="also the share of each of N tensor-parallel GPUs")
    sizes.add_argument("--mtp", action="store_true", help="count the multi-token-prediction layer")
    sizes.add_argument("--json", action="store_true", help="JSON: an object for one model, a list for all")
    sizes.set_defaults(run=run_footprint)

    table = commands.add_parser("models", help="list the models and where they were read", allow_abbrev=False)
    table.add_argument("--json", action="store_true")
    table.set_defaults(run=run_models)
    return top


# --- verify --------------------------------------------------------------------------------------------------------

def run_verify(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from .arrays import get_backend
    from .suite import run, select, summary
    from .verdict import Setting

    model = get_mla(args.model)
    setting = Setting(get_backend(args.backend, args.dtype), model.mla, model.name)
    checks = select(args.case)
    with json_target(args.json) as target:
        out = sys.stderr if target is sys.stdout else sys.stdout
        widths = columns(max(len(c.id) for c in checks))
        print(*row(("id", "claim", "seen", "bound", "verdict", "faults caught"), widths), sep="\n", file=out)
        print("  ".join("-" * w for w in widths), file=out, flush=True)
        results = []
        with tqdm(total=len(checks), unit="check", leave=False, disable=None, file=sys.stderr) as bar:
            for r in run(setting, args.case):
                v, caught, assigned = r.verdict, len(r.caught), len(r.caught) + len(r.missed)
                cells = (r.check.id, v.claim, brief(v.saw), "exact" if v.bound is None else f"{v.bound:.2g}",
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


# --- footprint and models ------------------------------------------------------------------------------------------

def record(model: Model, args: argparse.Namespace) -> dict:
    """Everything that ``footprint`` says about a model, as numbers."""
    n, rope = model.elements_per_token_per_layer, model.mla.qk_rope_head_dim if model.mla else None
    layers = fp.cached_layers(model, args.mtp)
    found = {
        "model": model.name, "attention": model.attention, "cache_layers": layers, "dtype": args.dtype,
        "tokens": args.tokens, "batch": args.batch, "elements_per_token_per_layer": n,
        "bytes_per_token_per_layer": fp.row_bytes(args.dtype, n, rope),
        "bytes_per_token": fp.bytes_per_token(model, args.dtype, mtp=args.mtp),
        "bytes_total": fp.cache_bytes(model, args.tokens, args.batch, args.dtype, mtp=args.mtp),
        "mha_elements_per_token_per_layer": fp.mha_baseline(model),
        "saved_elements": fp.saving(n, fp.mha_baseline(model)),
    }
    if args.tp:
        share = fp.per_gpu_elements(model, args.tp)
        found |= {"tp": args.tp, "per_gpu_elements_per_token_per_layer": share,
                  "per_gpu_bytes_per_token": layers * fp.row_bytes(args.dtype, share, rope)}
    return found | {"source": model.source, "source_kind": model.source_kind}


def run_footprint(args: argparse.Namespace) -> int:
    if args.model:
        model = get_model(args.model)
        found = record(model, args)
        print(json.dumps(plain(found), indent=1) if args.json else "\n".join(explain(model, found)))
        return 0
    if args.dtype not in fp.CACHE_DTYPES or fp.CACHE_DTYPES[args.dtype].plain:
        chosen = models()
    else:
        chosen = [m for m in models() if m.mla]  # the format exists for MLA rows only
    every = [record(m, args) for m in chosen]
    if args.json:
        print(json.dumps(plain(every), indent=1))
        return 0
    print(f"Cache of {args.batch:,} x {args.tokens:,} tokens in {args.dtype} ({fp.CACHE_DTYPES[args.dtype].layout}).")
    print("Elements are per token and layer: r + p for MLA, 2 x KV heads x head width for the others. Saved: elements")
    print("against MHA of the same shape (every query head, keys as wide as values). GB is 10^9 B, GiB is 2^30 B.")
    if len(chosen) < len(models()):
        print("The format exists for MLA rows only; models without MLA are left out.")
    print()
    heading = ["model", "attention", "layers", "elements", "B/token", "total", "total", "saved"]
    lines = [[f["model"], f["attention"], str(f["cache_layers"]), brief(f["elements_per_token_per_layer"]),
              number(f["bytes_per_token"]), fp.gb(f["bytes_total"]), fp.gib(f["bytes_total"]),
              fp.percent(f["saved_elements"])] for f in every]
    if args.tp:
        heading.append(f"elements on a GPU, TP={args.tp}")
        for line, f in zip(lines, every, strict=True):
            line.append(brief(f["per_gpu_elements_per_token_per_layer"]))
    print_table(heading, lines, left=2)
    return 0


def explain(model: Model, f: dict) -> list[str]:
    """Each number with its formula, unit and baseline."""
    n, mha, m = f["elements_per_token_per_layer"], f["mha_elements_per_token_per_layer"], model.mla
    size, token, total = f["bytes_per_token_per_layer"], f["bytes_per_token"], f["bytes_total"]
    formula = (f"kv_lora_rank {m.kv_lora_rank} + qk_rope_head_dim {m.qk_rope_head_dim}" if m
               else f"2 x {model.num_key_value_heads} KV heads x {model.head_dim}")
    lines = [
        ("per token and layer", f"{formula} = {n:,} elements = {number(size)} B"),
        ("per token", f"{number(size)} B x {f['cache_layers']} layers = {number(token)} B = {fp.kib(token)}"),
        ("total", f"{number(token)} B x {f['tokens']:,} tokens x batch {f['batch']:,} = {total:,} B"),
        ("", f"= {fp.gb(total)} = {fp.gib(total)}"),
        ("MHA of this shape", f"2 x {model.num_attention_heads} heads x {m.v_head_dim if m else model.head_dim} "
                              f"= {mha:,} elements = {2 * mha:,} B at 16 bit, per token and layer"),
        ("saved against that", f"{fp.percent(f['saved_elements'])} of the elements, "
                               f"{fp.percent(fp.saving(size, 2 * mha))} of the bytes"),
    ]
    if "tp" in f:
        lines += [
            (f"per GPU, TP={f['tp']}", f"{f['per_gpu_elements_per_token_per_layer']:,} elements per token and layer, "
                                       f"{number(f['per_gpu_bytes_per_token'])} B a token"),
            ("", "the latent has no heads to deal out: every GPU keeps all of it" if m
             else "KV heads are dealt out until each GPU holds one, then copied"),
        ]
    lines.append(("read in", f"{model.source} ({model.source_kind})"))
    return [f"{model.name} ({model.attention.upper()}), cache in {f['dtype']}: {fp.CACHE_DTYPES[f['dtype']].layout}",
            *(f"  {label:<20} {text}" for label, text in lines)]


def run_models(args: argparse.Namespace) -> int:
    rows = [{"model": m.name, "attention": m.attention, "layers": m.num_hidden_layers, "cache_layers": m.cache_layers,
             "heads": m.num_attention_heads, "elements_per_token_per_layer": m.elements_per_token_per_layer,
             "source_kind": m.source_kind, "source": m.source} for m in models()]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    print_table(["model", "attention", "layers", "cached", "heads", "elements", "source"],
                [[brief(r[k]) for k in r if k != "source_kind"] for r in rows], left=2)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 (a check fails or misses a fault), 2 (bad input) or 128 + a signal."""
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
