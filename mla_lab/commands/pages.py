"""What the command ``pages`` prints: what each page size of a paged cache costs on a request trace."""
from __future__ import annotations

import argparse
import json

from .options import which_model, whole


def add(commands: argparse._SubParsersAction) -> None:
    pages = commands.add_parser("pages", help="what page sizes of a paged cache cost on a request trace",
                                allow_abbrev=False)
    which_model(pages, "bytes of which model (DeepSeek-V3)")
    pages.add_argument("--trace", metavar="FILE",
                       help="requests: Mooncake JSON lines, Azure or BurstGPT CSV (none: synthetic conversations)")
    pages.add_argument("--requests", type=whole, metavar="N",
                       help="the first N requests of the file, or N synthetic ones (400)")
    pages.add_argument("--page", type=whole, action="append", metavar="N",
                       help="page size in tokens; may be given several times (1, 2, 4, ... 256)")
    pages.add_argument("--json", action="store_true")
    pages.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import footprint as fp
    from ..models import get_model
    from ..read_config import read_config
    from ..report import plain, print_table
    from ..serving.page_size import PAGE_SIZES, page_cost
    from ..serving.traces import Chat, read_trace, synthetic

    model = read_config(args.config) if args.config is not None else get_model(args.model or "DeepSeek-V3")
    trace = (synthetic(Chat(requests=args.requests or Chat.requests)) if args.trace is None
             else read_trace(args.trace, args.requests))
    token, known = fp.bytes_per_token(model), trace.granularity
    costs = [page_cost(trace, size) for size in dict.fromkeys(args.page or PAGE_SIZES)]
    rows = [{"page_size": c.block_size, "pages": c.blocks, "empty_slots": c.empty_slots, "empty_share": c.empty_share,
             "empty_bytes": c.empty_slots * token, "table_bytes": c.table_bytes, "hit_tokens": c.hit_tokens,
             "hit_share": c.hit_share} for c in costs]
    tokens, prompt = costs[0].tokens, costs[0].input_tokens
    if args.json:
        print(json.dumps(plain({"trace": trace.what, "requests": len(trace.requests), "tokens": tokens,
                                "input_tokens": prompt, "granularity": known, "model": model.name,
                                "bytes_per_token": token, "page_sizes": rows}), indent=1))
        return 0
    print(f"{trace.what}.")
    print(f"{tokens:,} tokens in all, {prompt:,} of them in prompts; {model.name} in bf16: {token:,} B a token.")
    print("Empty: slots of last pages without a token, each request in a cache of its own. Tables: 4 B (int32) a page,")
    print("one table for all layers. Found: prompt tokens that an endless cache holds already, in whole pages.")
    if known is None:
        print("The trace says nothing of shared beginnings, so nothing can be said of what is found.")
    elif known > min(c.block_size for c in costs):
        print(f"It knows shared beginnings in steps of {known} tokens: with smaller pages at least so much is found.")
    print()
    lines = [[f"{c.block_size}", f"{c.blocks:,}", f"{c.empty_slots:,}", fp.percent(c.empty_share),
              fp.gb(c.empty_slots * token), f"{c.table_bytes:,} B",
              "unknown" if c.hit_share is None else fp.percent(c.hit_share)] for c in costs]
    print_table(["page size", "pages", "empty slots", "of all slots", "empty", "tables", "found"], lines, left=0)
    return 0
