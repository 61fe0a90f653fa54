"""What the commands ``footprint`` and ``models`` print: each number with its formula, unit and baseline."""
from __future__ import annotations

import argparse
import json
import shutil
import textwrap

from .. import footprint as fp
from ..models import SOURCE_KINDS, Model, get_model, models, refused
from ..read_config import read_config
from ..report import brief, number, plain, print_table, row
from .options import which_model, whole

LEGEND = """\
What a model keeps in its cache for every token of a request.
  layers          how many layers its cache has. "7 of 27": 27 layers, of which only 7 keep something for every token;
                  the others keep a state or a window whose size does not grow with the request
  heads           query heads
  elements        numbers kept for one token in one layer
  elements/token  numbers kept for one token in all of these layers: elements x layers
  B/token         bytes of them in bf16, 2 B a number
  besides         what is kept as well and is not in these numbers
"""
SOURCES = """\
Where each was read. Config copy: of the released config.json. Class default: what a class assumes, from which the
released config.json may differ. Test config, reference code: what somebody's test or code assumes.
"""


def add(commands: argparse._SubParsersAction) -> None:
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


def record(model: Model, args: argparse.Namespace) -> dict:
    """Everything that ``footprint`` says about a model, as numbers."""
    n, rope = model.elements_per_token_per_layer, model.mla.qk_rope_head_dim if model.mla else None
    layers, how = fp.cached_layers(model, args.mtp), {"mtp": args.mtp, "index_keys": args.index_keys}
    index = fp.index_bytes(model, args.index_keys, args.mtp) if args.index_keys else 0
    found = {
        "model": model.name, "attention": model.attention, "cache_layers": layers, "dtype": args.dtype,
        "num_hidden_layers": model.num_hidden_layers, "tokens": args.tokens, "batch": args.batch,
        "elements_per_token_per_layer": n, "bytes_per_token_per_layer": fp.row_bytes(args.dtype, n, rope),
        "index_bytes_per_token": index, "bytes_per_token": fp.bytes_per_token(model, args.dtype, **how),
        "bytes_total": fp.cache_bytes(model, args.tokens, args.batch, args.dtype, **how),
        "mha_elements_per_token_per_layer": fp.mha_baseline(model),
        "saved_elements": fp.saving(n, fp.mha_baseline(model)), "not_counted": left_out(model, args),
    }
    if args.tp:
        share = fp.per_gpu_elements(model, args.tp)
        found |= {"tp": args.tp, "per_gpu_elements_per_token_per_layer": share,
                  "per_gpu_bytes_per_token": layers * fp.row_bytes(args.dtype, share, rope) + index}
    return found | {"source": model.source, "source_kind": model.source_kind, "notes": model.notes}


def left_out(model: Model, args: argparse.Namespace) -> dict[str, int]:
    """What the model caches besides and was not asked for, in layers."""
    left = {"multi-token-prediction layers": 0 if args.mtp else model.num_nextn_predict_layers or 0,
            "index keys of layers": 0 if args.index_keys else model.index_layers or 0}
    return {name: layers for name, layers in left.items() if layers}


def besides(model: Model, mtp: bool = True, index_keys: bool = True) -> str:
    """What the model caches beside its main layers, as a table cell."""
    mtp_layers, index = model.num_nextn_predict_layers if mtp else 0, model.index_layers if index_keys else 0
    return ", ".join([f"{mtp_layers} MTP layer"] * bool(mtp_layers) + [f"index keys in {index}"] * bool(index))


def layers_of(model: Model) -> str:
    """``61``, or ``7 of 27`` where the cache of the others does not grow."""
    same = model.cache_layers == model.num_hidden_layers
    return str(model.cache_layers) if same else f"{model.cache_layers} of {model.num_hidden_layers}"


def run_footprint(args: argparse.Namespace) -> int:
    if args.model is not None or args.config is not None:
        model = get_model(args.model) if args.config is None else read_config(args.config)
        found = record(model, args)
        print(json.dumps(plain(found), indent=1) if args.json else "\n".join(explain(model, found, args)))
        return 0
    if args.dtype not in fp.CACHE_DTYPES or fp.CACHE_DTYPES[args.dtype].plain:
        chosen = models()
    else:
        chosen = [m for m in models() if m.mla]  # the format exists for MLA rows only
    own = [argparse.Namespace(**vars(args) | {"mtp": args.mtp and bool(m.num_nextn_predict_layers),
                                              "index_keys": args.index_keys if m.index_layers else None})
           for m in chosen]
    if args.index_keys:
        fp.index_bytes(next(m for m in models() if m.index_layers), args.index_keys)  # refuses an unknown format
    every = [record(m, a) for m, a in zip(chosen, own, strict=True)]
    if args.json:
        print(json.dumps(plain(every), indent=1))
        return 0
    print(f"Cache of {args.batch:,} x {args.tokens:,} tokens in {args.dtype} ({fp.CACHE_DTYPES[args.dtype].layout}).")
    print("Elements are per token and layer: r + p for MLA, 2 x KV heads x head width for the others. Saved: elements")
    print("against MHA of the same shape (every query head, keys as wide as values). GB is 10^9 B, GiB is 2^30 B.")
    print("Only layers whose cache grows are counted (7 of 27: the others keep a state or a window). Besides: what is")
    print("cached as well and not counted here, unless --mtp and --index-keys ask for it.")
    if len(chosen) < len(models()):
        print("The format exists for MLA rows only; models without MLA are left out.")
    print()
    heading = ["model", "attention", "layers", "elements", "B/token", "total", "total", "saved"]
    lines = [[f["model"], f["attention"], layers_of(m) + f" + {m.num_nextn_predict_layers}" * a.mtp,
              brief(f["elements_per_token_per_layer"]), number(f["bytes_per_token"]), fp.gb(f["bytes_total"]),
              fp.gib(f["bytes_total"]), fp.percent(f["saved_elements"])]
             for m, a, f in zip(chosen, own, every, strict=True)]
    if args.tp:
        heading.append(f"elements on a GPU, TP={args.tp}")
        for line, f in zip(lines, every, strict=True):
            line.append(brief(f["per_gpu_elements_per_token_per_layer"]))
    heading.append("besides")
    for line, m, a in zip(lines, chosen, own, strict=True):
        line.append(besides(m, not a.mtp, not a.index_keys))
    print_table(heading, lines, left=2)
    return 0


def explain(model: Model, f: dict, args: argparse.Namespace) -> list[str]:
    """Each number with its formula, unit and baseline."""
    n, mha, m = f["elements_per_token_per_layer"], f["mha_elements_per_token_per_layer"], model.mla
    size, token, total, index = (f[key] for key in (
        "bytes_per_token_per_layer", "bytes_per_token", "bytes_total", "index_bytes_per_token"))
    formula = (f"kv_lora_rank {m.kv_lora_rank} + qk_rope_head_dim {m.qk_rope_head_dim}" if m
               else f"2 x {model.num_key_value_heads} KV heads x {model.head_dim}")
    lines = [("per token and layer", f"{formula} = {n:,} elements = {number(size)} B")]
    if model.cache_layers < model.num_hidden_layers:
        lines.append(("layers", f"{layers_of(model)}; the cache of the others does not grow with the context"))
    if index:
        one = fp.INDEX_KEYS[args.index_keys](model.index_head_dim)
        lines.append(("index keys", f"{model.index_head_dim} elements in {args.index_keys} = {one} B x {index // one} "
                                    f"layers = {index:,} B a token"))
    lines += [
        ("per token", f"{number(size)} B x {f['cache_layers']} layers{f' + {index:,} B' if index else ''} "
                      f"= {number(token)} B = {fp.kib(token)}"),
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
    if model.num_nextn_predict_layers and not args.mtp:
        extra = model.num_nextn_predict_layers
        lines.append(("not counted", f"{extra} multi-token-prediction layer{'s' * (extra > 1)}, cached while it runs: "
                                     f"{number(extra * size)} B a token (--mtp)"))
    if model.index_layers and not args.index_keys:
        both = [f"{fp.index_bytes(model, kind, args.mtp):,} B a token in {kind}" for kind in fp.INDEX_KEYS]
        lines.append(("not counted", f"index keys of sparse attention: {' or '.join(both)} (--index-keys)"))
    lines.append(("read in", f"{model.source} ({SOURCE_KINDS.get(model.source_kind, model.source_kind)})"))
    if model.quantization:
        lines.append(("weights", model.quantization))
    if model.notes:
        lines.append(("note", model.notes))
    return [f"{model.name} ({model.attention.upper()}), cache in {f['dtype']}: {fp.CACHE_DTYPES[f['dtype']].layout}",
            *(f"  {label:<20} {text}" for label, text in lines)]


def run_models(args: argparse.Namespace) -> int:
    rows = [{"model": m.name, "attention": m.attention, "layers": m.num_hidden_layers, "cache_layers": m.cache_layers,
             "heads": m.num_attention_heads, "elements_per_token_per_layer": m.elements_per_token_per_layer,
             "elements_per_token": m.cache_layers * m.elements_per_token_per_layer,
             "bytes_per_token": fp.bytes_per_token(m), "mtp_layers": m.num_nextn_predict_layers,
             "index_layers": m.index_layers, "notes": m.notes, "unsupported": m.unsupported,
             "source_kind": m.source_kind, "source": m.source} for m in models()]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(120, shutil.get_terminal_size((120, 24)).columns)
    heading = ["model", "attention", "layers", "heads", "elements", "elements/token", "B/token", "besides"]
    print(LEGEND)
    print_table(heading, [[m.name, m.attention, layers_of(m), brief(m.num_attention_heads),
                           brief(m.elements_per_token_per_layer), brief(r["elements_per_token"]),
                           brief(r["bytes_per_token"]), besides(m)]
                          for m, r in zip(models(), rows, strict=True)], left=2)
    print(f"\n{SOURCES}")
    first, second = max(len(m.name) for m in models()), max(map(len, SOURCE_KINDS.values()))
    for m in models():
        cells, widths = (m.name, SOURCE_KINDS[m.source_kind], m.source), (first, second, width - first - second - 4)
        print(*row(cells, widths), sep="\n")
    print()
    for name, why in refused().items():
        print(textwrap.fill(f"Not counted: {name}: {why}.", width, subsequent_indent="  "))
    return 0
