"""``claims``: what two articles say about MLA, each claim settled by computing it."""
from __future__ import annotations

import argparse
import json
import sys
import textwrap

from ..report import json_target, plain
from .options import one_thread


def add(commands: argparse._SubParsersAction) -> None:
    claims = commands.add_parser("claims", help="settle what two articles say about MLA", allow_abbrev=False)
    claims.add_argument("--id", nargs="+", metavar="ID", help="only these, such as A03 B02")
    claims.add_argument("--json", metavar="FILE", help="also write the ledger as JSON ('-': to standard output)")
    claims.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    one_thread()
    from ..claims import ARTICLES, CLAIMS, select, settle, tally
    chosen = select(CLAIMS, args.id)
    with json_target(args.json) as target:
        out = sys.stderr if target is sys.stdout else sys.stdout
        for letter, article in ARTICLES.items():
            if any(claim.id.startswith(letter) for claim in chosen):
                print(f"{letter}: {article}", file=out)
        settled = []
        for claim in chosen:
            settled.append(settle(claim))
            lines = [f"\n{claim.id}  {claim.said}", f"     {settled[-1].finding.kind}: {settled[-1].finding.found}"]
            if claim.because:
                lines.append(f"     ({claim.because}; notebook {claim.notebook})")
            if not settled[-1].ok:
                lines.append(f"     NOT AS RECORDED: {claim.kind}: {claim.found}")
            for line in lines:
                print(textwrap.fill(line.strip("\n"), 118, subsequent_indent="     ", break_long_words=False), file=out)
            print(flush=True, file=out)
        print(tally(settled), file=out)
        if target:
            json.dump(plain([one.as_json() for one in settled]), target, indent=1, ensure_ascii=False)
            target.write("\n")
    return 0 if all(one.ok for one in settled) else 1
