#!/usr/bin/env bash
# All that needs a CUDA GPU, in one call of less than 8 minutes: first the tests, then the benchmark.
#
#   benchmarks/gpu_suite.sh [FOLDER]     writes FOLDER/gpu_suite.json and FOLDER/gpu_suite.md (default: gpu_suite/)
#
# PYTHON names the interpreter (default: .venv/bin/python, or python3); it needs requirements.txt, a torch with CUDA, and
# triton. `pip install --no-deps sgl-flash-mla` adds FlashMLA's Hopper kernel as a peer. No GPU has run this script yet.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=${1:-gpu_suite}
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
unset TRITON_INTERPRET

if ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "gpu_suite: $python sees no CUDA GPU (or has no torch); nothing was run." >&2
  exit 2
fi
mkdir -p "$folder" || exit 1
rm -f "$folder"/{tests.xml,bench.json,bench.txt,gpu_suite.json,gpu_suite.md}

# A limit each, so that a hung kernel leaves the other half a result; together 460 s.
timeout -k 5 220 "$python" -m pytest -q -n 4 --dist load -k "cuda or gpu" --junitxml "$folder/tests.xml" tests
tests=$?
timeout -k 5 225 "$python" -m mla_lab bench --device cuda --json "$folder/bench.json" > "$folder/bench.txt"
bench=$?
cat "$folder/bench.txt"

PYTHONPATH=. "$python" benchmarks/gpu_table.py "$folder" "$tests" "$bench"
