"""What `gpu_suite.sh` found, as one JSON file and one Markdown table: ``python benchmarks/gpu_table.py FOLDER T B``.

T and B are the exit codes of the tests and of the benchmark; 124 and 137 mean that the time was over. The exit code is
1 where a test failed or something did not run to its end; a ratio that was not reached is no failure.
"""
from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ENDED = {0: "ended", 124: "stopped: out of time", 137: "stopped: out of time"}


def read_tests(path: Path) -> dict:
    """Counts, and the names of what failed, from pytest's JUnit file."""
    if not path.exists():
        return {"passed": 0, "skipped": 0, "failed": []}
    cases = list(ET.parse(path).getroot().iter("testcase"))
    bad = [f"{c.get('classname')}::{c.get('name')}" for c in cases
           if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    return {"passed": len(cases) - len(bad) - skipped, "skipped": skipped, "failed": bad}


def collect(folder: Path, tests: int, bench: int) -> dict:
    """Everything in one object."""
    file = folder / "bench.json"
    return {"tests": read_tests(folder / "tests.xml") | {"exit": tests, "how": ENDED.get(tests, f"exit code {tests}")},
            "bench": json.loads(file.read_text("utf-8")) if file.exists() else None,
            "bench_exit": bench, "bench_how": ENDED.get(bench, f"exit code {bench}")}


def markdown(found: dict) -> str:
    """The same for a person."""
    t, bench = found["tests"], found["bench"]
    lines = ["# GPU suite", "",
             f"Tests: {t['passed']} passed, {len(t['failed'])} failed, {t['skipped']} skipped ({t['how']}).", ""]
    lines += [f"* failed: `{name}`" for name in t["failed"]] + [""] * bool(t["failed"])
    lines += [f"Benchmark: {found['bench_how']}."]
    if bench is None:
        return "\n".join(lines) + "\n"
    lines += ["", ", ".join(f"{name} {value}" for name, value in bench["machine"].items()) + ".", "",
              "| size | what | ms | quartiles | TFLOP/s | TB/s | of limit | error |",
              "|---|---|---:|---:|---:|---:|---|---:|"]
    for size in bench["sizes"]:
        where = f"{size['heads']} heads, {size['tokens']:,} tokens, batch {size['batch']}"
        for row in size["rows"]:
            low, high = (1e3 * x for x in row["quartiles"])
            error = "" if row["error"] is None else f"{row['error']:.0e}"
            lines.append(f"| {where} | {row['name']} | {1e3 * row['seconds']:.3f} | [{low:.3f}, {high:.3f}] "
                         f"| {row['flops_per_second'] / 1e12:.1f} | {row['bytes_per_second'] / 1e12:.2f} "
                         f"| {row['fraction_of_limit']:.2f} {row['nearer_limit']} | {error} |")
    lines += ["", "| size | ratio | value | demanded | met |", "|---|---|---:|---:|---|"]
    for size in bench["sizes"]:
        where = f"{size['heads']} heads, {size['tokens']:,} tokens, batch {size['batch']}"
        for target in size["targets"]:
            side = "at most" if target["at_most"] else "at least"
            lines.append(f"| {where} | {target['claim']} | {target['value']:.3g}{target['unit']} "
                         f"| {side} {target['wanted']:g}{target['unit']} | {'yes' if target['met'] else 'NO'} |")
    lines += ["", *dict.fromkeys(f"* {line}" for size in bench["sizes"] for line in size["left_out"])]
    return "\n".join(lines).rstrip() + "\n"


def main(folder: str, tests: str, bench: str) -> int:
    found = collect(Path(folder), int(tests), int(bench))
    for name, text in (("gpu_suite.json", json.dumps(found, indent=1) + "\n"), ("gpu_suite.md", markdown(found))):
        part = Path(folder, name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(Path(folder, name))
    print(f"written: {folder}/gpu_suite.json and {folder}/gpu_suite.md")
    return int(bool(found["tests"]["failed"] or tests != "0" or bench != "0"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
