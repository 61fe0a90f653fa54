"""``capacity``: what fits on a number of GPUs, what binds, and how long a decode step takes at least."""
from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap

from .. import footprint as fp
from ..errors import InputError
from ..models import get_model
from ..read_config import read_config
from ..report import json_target, plain
from .options import which_model, whole


def add(commands: argparse._SubParsersAction) -> None:
    c = commands.add_parser("capacity", help="count the users and tokens that fit on GPUs", allow_abbrev=False)
    which_model(c, "whose dimensions (DeepSeek-V3)")
    c.add_argument("--gpu", required=True, metavar="NAME", help="H100, H200, H800, H20, B200, A100, L40S or MI300X")
    c.add_argument("--gpus", type=whole, default=8, metavar="N", help="how many (8)")
    c.add_argument("--parallel", default="tp", metavar="KIND", help="tp: heads dealt out; dp: whole requests (tp)")
    c.add_argument("--dcp", type=whole, default=1, metavar="N", help="decode context parallelism inside tp (1)")
    c.add_argument("--context", type=whole, default=8192, metavar="N", help="tokens cached for a user (8192)")
    c.add_argument("--kv-dtype", default="bf16", metavar="FORMAT", help=f"cache: {', '.join(fp.CACHE_DTYPES)} (bf16)")
    c.add_argument("--weight-dtype", default="fp8", metavar="FORMAT", help="bf16, fp8, int8, int4 or nvfp4 (fp8)")
    c.add_argument("--weights-gb", type=positive, metavar="GB", help="size of the weights, instead of counting them")
    c.add_argument("--memory-gb", type=positive, metavar="GB", help="memory of a GPU, instead of the data sheet's")
    c.add_argument("--utilization", type=positive, default=0.9, metavar="X", help="share of it that is used (0.9)")
    c.add_argument("--page", type=whole, default=64, metavar="N", help="tokens of a page (64)")
    c.add_argument("--users", type=whole, metavar="N", help="for the decode step: so many, instead of all that fit")
    c.add_argument("--efficiency", type=positive, default=1.0, metavar="X", help="share of the peaks reached (1)")
    c.add_argument("--link-gb", type=positive, metavar="GB", help="GB/s to other GPUs, instead of the data sheet's")
    c.add_argument("--json", metavar="FILE", help="write everything as JSON ('-': to standard output)")
    c.set_defaults(run=run)


def positive(text: str) -> float:
    """An option's value as a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf:
        return value
    raise argparse.ArgumentTypeError(f"must be a number above 0, not {text[:40]!r}")


def run(args: argparse.Namespace) -> int:
    found = record(args)
    with json_target(args.json) as target:
        out = sys.stderr if target is sys.stdout else sys.stdout
        print(*explain(found), sep="\n", file=out)
        if target:
            json.dump(plain(found), target, indent=1)
            target.write("\n")
    return 0


def record(args: argparse.Namespace) -> dict:
    """Everything that is said, as numbers."""
    from ..serving.capacity import Deployment
    from ..serving.engines import assumptions, command, sglang, vllm
    from ..serving.gpus import get_gpu
    from ..serving.parameters import parameters
    from ..serving.step import decode_step
    if args.efficiency > 1:
        raise InputError(f"--efficiency must be at most 1, not {args.efficiency:g}.")
    model = get_model(args.model or "DeepSeek-V3") if args.config is None else read_config(args.config)
    weights = None if args.weights_gb is not None else parameters(model, args.config)
    d = Deployment(model, get_gpu(args.gpu), args.gpus, args.parallel, args.context, weights, args.kv_dtype,
                   args.weight_dtype, args.utilization, args.page, args.dcp, args.memory_gb, args.weights_gb)
    users, step = d.users(), None
    if weights is not None and (args.users or users):
        s = decode_step(d, args.users or users, args.efficiency, args.link_gb)
        step = {"users": s.users, "seconds": s.seconds, "tokens_per_second": s.tokens_per_second, "longest": s.longest,
                "seconds_of": {name: getattr(s, name) for name in
                               ("weights", "products", "cache", "attention", "communication")}}
    name = (weights.repository if weights else "") or model.name
    return {
        "model": model.name, "gpu": d.gpu.name, "gpus": d.gpus, "parallel": d.parallel, "dcp": d.dcp,
        "context": d.context, "kv_dtype": d.kv_dtype, "page": d.page,
        "weight_dtype": None if args.weights_gb is not None else d.weight_dtype,
        "parameters": weights and weights.total, "active_parameters": weights and weights.active,
        "weight_bytes": d.weight_bytes(), "weight_bytes_per_gpu": d.weight_bytes_per_gpu(),
        "usable_bytes_per_gpu": d.usable_bytes_per_gpu(), "cache_room_per_gpu": d.cache_room_per_gpu(),
        "token_bytes": d.token_bytes(), "token_bytes_per_gpu": d.token_bytes_per_gpu(),
        "tokens": d.tokens(), "users": users, "pools": d.pools(), "binding": d.binding(),
        "cache_outgrows_weights_at_tokens": d.outgrown_at(), "step": step,
        "vllm": {"command": command(f"vllm serve {name}", vllm(d, users)), "documentation": dict(vllm(d, users))},
        "sglang": {"command": command(f"python -m sglang.launch_server --model-path {name}", sglang(d, users)),
                   "documentation": dict(sglang(d, users))},
        "assumptions": assumptions(d, args.efficiency, args.link_gb),
    }


def explain(f: dict) -> list[str]:
    """The record as lines: each number with its formula and unit."""
    where = f"{f['gpus']} x {f['gpu']}, {'tensor' if f['parallel'] == 'tp' else 'data'} parallel"
    where += f", decode context parallel {f['dcp']}" if f["dcp"] > 1 else ""
    room, total, token = f["cache_room_per_gpu"], f["weight_bytes"], float(f["token_bytes"])
    counted = (f"{f['parameters']:,} parameters in {f['weight_dtype']}, {f['active_parameters']:,} of them active"
               if f["parameters"] else "as given")
    lines = [
        ("weights", f"{fp.gb(total, 1)} in all: {counted}"),
        ("a GPU", f"{fp.gb(f['usable_bytes_per_gpu'], 1)} usable - {fp.gb(f['weight_bytes_per_gpu'], 1)} weights = "
                  + (f"{fp.gb(room, 1)} for the cache" if room >= 0 else f"{fp.gb(-room, 1)} too few")),
        ("a token", f"{token:,.0f} B in {f['kv_dtype']}, "
                    f"{float(f['token_bytes_per_gpu']):,.0f} B on each GPU that keeps it"),
        ("fits", f"{f['tokens']:,} tokens; {f['users']:,} users of {f['context']:,} tokens, "
                 f"in {f['pools']} pool{'s' * (f['pools'] > 1)} of pages of {f['page']}"),
        ("binds", f["binding"]),
    ]
    at = f["cache_outgrows_weights_at_tokens"]
    lines.append(("outgrown", f"the cache is larger than the weights from {at:,} tokens on ({fp.gb(total, 1)} / "
                              f"{token:,.0f} B, one copy of each): {math.ceil(at / 100):,} for each of 100 users"))
    if f["step"]:
        s = f["step"]
        lines.append(("decode step", f"at least {1e3 * s['seconds']:.2f} ms for {s['users']:,} users = "
                                     f"{s['tokens_per_second']:,.0f} tokens/s; longest term: {s['longest']}"))
        lines.append(("", ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in s["seconds_of"].items())))
    elif f["parameters"]:
        lines.append(("decode step", "not estimated, for no user fits (--users N estimates it all the same)"))
    text = [f"{f['model']} on {where}, {f['context']:,} tokens a user",
            *(f"  {label:<12} {said}" for label, said in lines), "", "Assumptions"]
    for said in f["assumptions"]:
        text += textwrap.wrap(said, 110, initial_indent="  - ", subsequent_indent="    ")
    for engine in ("vllm", "sglang"):
        text += ["", f"{'vLLM' if engine == 'vllm' else 'SGLang'} (options as documented; not run here)",
                 f"  {f[engine]['command']}"]
        text += [f"  {option:<36} {page}" for option, page in f[engine]["documentation"].items()]
    if f["kv_dtype"] not in ("bf16", "fp8", "fp8-tile"):
        text += ["", f"No option of either engine is known here for a cache in {f['kv_dtype']}."]
    return text
