"""``diagnose``: hold somebody's implementation to the battery and name its fault."""
from __future__ import annotations

import argparse
import json

from ..report import json_target, plain
from .options import one_thread, whole


def add(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("diagnose", help="say which fault an implementation has", allow_abbrev=False)
    command.add_argument("target", metavar="FILE.py:FUNCTION", help="the implementation; it runs in its own process")
    command.add_argument("--protocol", default="layer", help="how it is called: layer (default), decode or module")
    command.add_argument("--config", metavar="FILE", help="the conventions of this config.json, and its widths as "
                         "far as they are small (at most 5 heads, 200 hidden channels, latent 128)")
    command.add_argument("--whole", action="store_true",
                         help="keep all widths of --config (a large layer takes minutes)")
    command.add_argument("--dtype", default="float64", help="float64 (default), float32 or bfloat16")
    command.add_argument("--arrays", help="numpy or torch (default: torch if the file imports it)")
    command.add_argument("--fp8", action="store_true", help="also try weights in FP8 with block scales")
    command.add_argument("--seconds", type=whole, default=120, metavar="N", help="time limit of its process (120)")
    command.add_argument("--json", metavar="FILE", help="write the diagnosis as JSON too; - is standard output")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    one_thread()
    import sys

    from ..diagnosis import diagnose
    from ..diagnosis.words import as_json
    from ..models import verifiable
    from ..read_config import read_config
    config = None if args.config is None else verifiable(read_config(args.config)).mla
    with json_target(args.json) as target:
        found = diagnose(args.target, args.protocol, config, args.dtype, args.arrays, args.fp8, args.seconds,
                         args.whole)
        out = sys.stderr if target is sys.stdout else sys.stdout
        print(str(found).encode(out.encoding or "utf-8", "backslashreplace").decode(out.encoding or "utf-8"), file=out)
        if target:
            json.dump(plain(as_json(found)), target, indent=1, ensure_ascii=False)
            target.write("\n")
    return 0 if found.ok else 1
