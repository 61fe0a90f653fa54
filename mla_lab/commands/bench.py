"""``bench``: decode kernels beside what a user would call today, on this machine, in one run."""
from __future__ import annotations

import argparse
import contextlib
import json
import sys

from ..report import json_target, plain, print_table
from .options import from_zero, whole


def add(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser("bench", help="time the decode kernels on this machine", allow_abbrev=False)
    bench.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu (default) or cuda")
    bench.add_argument("--heads", type=whole, nargs="+", metavar="H", help="query heads (cpu: 128 16)")
    bench.add_argument("--tokens", type=whole, nargs="+", metavar="S", help="cached tokens (cpu: 4096 16384)")
    bench.add_argument("--batch", type=whole, metavar="B", help="requests (cpu: 1)")
    bench.add_argument("--rounds", type=whole, default=9, metavar="N", help="rounds; each times everything once (9)")
    bench.add_argument("--patience", type=from_zero, default=0, metavar="S",
                       help="wait up to S seconds in all for moments in which nothing else runs (0; cpu only)")
    bench.add_argument("--json", metavar="FILE", help="also write everything as JSON; - is standard output")
    bench.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 however the ratios come out: a time is a measurement, not a verdict."""
    from tqdm import tqdm

    from ..kernels import bench, machine
    from ..kernels.timing import CPUClock, CUDAClock, measure
    from ..models import get_mla

    config = get_mla("DeepSeek-V3").mla
    sizes = bench.SIZES[args.device]
    if args.heads or args.tokens or args.batch:
        sizes = [bench.Size(h, s, args.batch or 1) for h in args.heads or (128, 16) for s in args.tokens or (4096,)]
    with json_target(args.json) as target, contextlib.redirect_stdout(sys.stderr if args.json == "-" else sys.stdout):
        facts = dict(machine.facts(args.device, bench.libraries(args.device)[0]))
        dtype = "bfloat16" if args.device == "cuda" else "float32"
        print(f"One decode step at DeepSeek-V3's widths in {dtype}: median and quartiles of {args.rounds} interleaved "
              "rounds.")
        print(", ".join(f"{name} {value}" for name, value in facts.items()))
        if any(name in facts for name in machine.THREAD_VARIABLES):
            print("(A thread count that the environment sets was kept; where none is set, every core is used.)")
        print("Of limit: the time that FLOPs or bytes alone would take at this machine's rates, whichever is longer, "
              "over the time it took.")
        print("Error: distance from float64, relative, Euclidean. *: has FLOPs and bytes of its own; the others share "
              "theirs.", flush=True)
        said, record = set(), {"device": args.device, "machine": facts, "rounds": args.rounds, "sizes": []}
        clock = CUDAClock() if args.device == "cuda" else CPUClock(args.patience)
        for size in sizes:
            group = bench.group(config, size, args.device)
            for line in [line for line in group.left_out if line not in said]:
                said.add(line)
                print(line)
            total = len(group.contenders) * args.rounds
            with tqdm(total=total, desc=str(size), leave=False, disable=None, file=sys.stderr) as bar:
                for _ in measure(group.contenders, args.rounds, clock):
                    bar.update()
            record["sizes"].append(show(group, args.device))
            sys.stdout.flush()
            del group  # its arrays make room for the next size
        if target:
            json.dump(plain(record), target, indent=1, ensure_ascii=False)
            target.write("\n")
    return 0


def show(group, device: str) -> dict:
    """Print one size and return it as numbers."""
    from ..kernels.targets import targets
    roof, rows, lines = group.roof, [], []
    for c in group.contenders:
        (low, high), error = c.spread, group.error(c)
        flops, speed, share = c.work.flops / c.median, c.work.bytes / c.median, roof.seconds(c.work) / c.median
        side = roof.bound(c.work.intensity)
        rows.append({
            "name": c.name, "package": c.package, "kind": c.kind, "seconds": c.median, "quartiles": [low, high],
            "measurements": len(c.measured), "flops": c.work.flops, "bytes": c.work.bytes, "flops_per_second": flops,
            "bytes_per_second": speed, "nearer_limit": side, "fraction_of_limit": share, "error": error,
            "same_inputs": c.same_inputs, "disturbed": c.disturbed})
        lines.append([c.label + "*" * (not c.same_inputs), f"{1e3 * c.median:,.2f}",
                      f"[{1e3 * low:,.2f}, {1e3 * high:,.2f}]", f"{flops / 1e9:,.1f}", f"{speed / 1e9:,.2f}",
                      f"{share:.2f} {side}", "" if error is None else f"{error:.0e}"])
    print(f"\n{group.size}; this machine: {roof.flops / 1e9:,.1f} GFLOP/s, {roof.bandwidth / 1e9:,.1f} GB/s, ridge "
          f"{roof.ridge:.1f} FLOP/B")
    print_table(["what", "ms", "quartiles", "GFLOP/s", "GB/s", "of limit", "error"], lines, left=1)
    disturbed, count = (sum(values) for values in zip(*((c.disturbed, len(c.measured)) for c in group.contenders),
                                                      strict=True))
    print(f"  in {disturbed} of {count} measurements something had to wait for a core" + (
        "; on a busy machine these numbers say little (--patience)" if disturbed > count / 10 else ""))
    found = targets(group, device)
    print(*(f"  {target}" for target in found), sep="\n")
    return {"heads": group.size.heads, "tokens": group.size.tokens, "batch": group.size.batch,
            "roof_flops": roof.flops, "roof_bandwidth": roof.bandwidth, "left_out": group.left_out,
            "tiled_peak_bytes": group.peak, "rows": rows,
            "targets": [{"claim": t.claim, "value": t.value, "quartiles": t.spread, "wanted": t.wanted,
                         "at_most": t.at_most, "unit": t.unit, "met": t.met} for t in found]}
