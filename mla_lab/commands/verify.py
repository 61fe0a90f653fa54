"""``verify``: run the checks, and the faults that each of them must catch."""
from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace

from ..errors import InputError
from ..models import Model, get_mla, verifiable
from ..read_config import read_config
from ..report import brief, columns, json_target, listed, plain, row, seen
from .options import from_zero, one_thread, which_model, whole

MOST_WEIGHTS = 2**32  # in a layer; the largest published one has a twentieth of that


def add(commands: argparse._SubParsersAction) -> None:
    verify = commands.add_parser("verify", help="run the checks and the faults they must catch", allow_abbrev=False)
    verify.add_argument("--case", type=whole, nargs="+", action="extend", metavar="N", help="only these cases")
    verify.add_argument("--backend", help="numpy, torch or torch-cuda (default: MLA_LAB_BACKEND, or numpy)")
    verify.add_argument("--dtype", default="float64", help="float64 (default), float32 or bfloat16")
    which_model(verify, "whose dimensions (DeepSeek-V3)")
    verify.add_argument("--checkpoint", metavar="DIR", help="run on weights from this folder or .safetensors file; "
                        "the dimensions are those of the config.json in it")
    verify.add_argument("--layer", type=from_zero, metavar="K", help="which layer of the checkpoint, counted from 0")
    verify.add_argument("--json", metavar="FILE", help="also write the results as JSON; - is standard output")
    verify.set_defaults(run=run)


def chosen(args: argparse.Namespace) -> Model:
    """Whose dimensions."""
    if (args.checkpoint is None) != (args.layer is None):
        raise InputError("--checkpoint DIR and --layer K go together: one says where the weights are, one which layer.")
    source = args.config
    if args.checkpoint is not None and source is None and args.model is None:
        from ..shards import Checkpoint
        source = Checkpoint(args.checkpoint).folder
    return get_mla(args.model or "DeepSeek-V3") if source is None else verifiable(read_config(source))


def run(args: argparse.Namespace) -> int:
    one_thread()
    from tqdm import tqdm

    from ..arrays import get_backend
    from ..suite import run as run_checks
    from ..suite import select, summary
    from ..verdict import Given, Setting
    from ..weights import shapes

    model, remarks = chosen(args), []
    weights = sum(map(math.prod, shapes(model.mla).values()))
    if weights > MOST_WEIGHTS:
        raise InputError(f"a layer of {model.name} has {weights:,} weights; verify takes at most {MOST_WEIGHTS:,}.")
    setting = Setting(get_backend(args.backend, args.dtype), model.mla, model.name)
    checks = select(args.case)
    if args.model is None and model.source_kind == "config_file" and model.notes:
        remarks.append(f"{model.name}: {model.notes}")
    if args.checkpoint is not None:
        from ..checkpoint import read_layer
        from ..shards import report
        state = read_layer(args.checkpoint, args.layer, model.mla, model.weight_block_size)
        setting = replace(setting, state=Given(state, f"layer {args.layer} of {args.checkpoint}"))
        remarks += [f"The weights of {setting.state.where} are those of 2.model, 5.model_layer and all of case 4 that "
                    "is neither exact nor about special sizes or bits.", *report(args.checkpoint)]
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
            for r in run_checks(setting, args.case):
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
