# `make verify` needs Python 3.11 or newer and nothing else; `make help` lists the rest.
# Everything is installed into .venv, once: a second call installs nothing until a requirement changes.

# The first of these that runs and is new enough; say which yourself with `make verify PYTHON=/path/to/python`.
PYTHON ?=
CANDIDATES = python3.11 python3 python3.12 python3.13 python3.14 python
WORKERS ?= 2
LAB_ARGS ?=
APP_ARGS ?=

PY = .venv/bin/python
PIP = $(PY) -m pip install --quiet
# What nbval compares and how long a cell may take; tests/test_harness.py proves that these very flags turn red.
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout 60
# A process for each core. The cells of a notebook need one kernel, so a file stays in one process. In order of names the
# browser comes early; by number of tests it would come last, and alone.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Warnings as errors are for the tests (pyproject.toml), not for the kernels that nbval starts.
unexport PYTHONWARNINGS

.PHONY: verify test test-unit test-notebooks-numpy test-notebooks-torch lint lab app notebooks grade figures html clean distclean help
.NOTPARALLEL:
.DELETE_ON_ERROR:

verify: .venv/.verify  ## check every claim on NumPy (installs NumPy only)
	@$(PY) -m mla_lab verify

test: lint test-unit test-notebooks-numpy test-notebooks-torch  ## everything that CI checks

test-unit: .venv/.test  ## the tests of tests/
	@$(PY) -m pytest $(PARALLEL) tests

# The stored outputs are the same on both backends and for any number of threads, so one set of them holds all to the
# same numbers.
# pytest fails where it collects nothing, so an empty folder is not green.
test-notebooks-numpy: .venv/.test  ## every stored output of the notebooks, computed again on NumPy
	@MLA_LAB_BACKEND=numpy OPENBLAS_NUM_THREADS=2 OMP_NUM_THREADS=1 $(PY) -m pytest $(PARALLEL) $(NBVAL) notebooks

test-notebooks-torch: .venv/.test  ## the same on torch
	@MLA_LAB_BACKEND=torch OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) -m pytest $(PARALLEL) $(NBVAL) notebooks

lint: .venv/.test  ## ruff
	@$(PY) -m ruff check --quiet --output-format concise .

# JupyterLab refuses to run as root unless told that this is meant, as it is in a container.
lab: .venv/.test  ## open the notebooks in JupyterLab, on this machine only
	@if [ "$$(id -u)" = 0 ]; then root=--allow-root; fi; \
	$(PY) -m jupyterlab --ServerApp.ip=127.0.0.1 --LabApp.news_url=None $$root \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --ServerApp.root_dir=notebooks \
	  --LabApp.default_url=/lab/tree/00_start_here.ipynb $(LAB_ARGS)

# Voila's own page loads an icon font from elsewhere; the template in tools/app does not.
app: .venv/.test  ## the explorer as a page of its own, on this machine only
	@JUPYTER_PATH="$(CURDIR)/tools/app" $(PY) -m voila notebooks/explorer.ipynb --template=offline \
	  --Voila.ip=127.0.0.1 $(APP_ARGS)

notebooks: .venv/.test  ## run all notebooks anew and store what they print
	@MLA_LAB_BACKEND=numpy OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) tools/nbtool.py run notebooks/*.ipynb

grade: .venv/.test  ## which exercises of the notebooks are solved, with a hint for the others
	@$(PY) -m mla_lab grade

figures: .venv/.test  ## draw the figures into figures/
	@OPENBLAS_NUM_THREADS=1 $(PY) -m mla_lab.figures figures

html: .venv/.test  ## all notebooks as a static site in build/site that loads nothing from elsewhere
	@$(PY) tools/website.py build/site

clean:  ## remove caches and build output
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +

distclean: clean  ## and the environment in .venv
	@rm -rf .venv

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-22s %s\n", $$1, $$2 }' Makefile

# --- the environment ---

# A stamp, not the interpreter, is the target: an environment whose making was interrupted is made again.
.venv/.made:
	@set -e; found=; seen=; enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
	if [ -n "$(PYTHON)" ]; then set -- "$(PYTHON)"; else set -- $(CANDIDATES); fi; \
	for p in "$$@"; do \
	  if "$$p" -c "$$enough" 2>/dev/null; then found=$$p; break; fi; \
	  if v=$$("$$p" -c 'import platform; print(platform.python_version())' 2>/dev/null); then seen="$$seen$${seen:+, }$$p is $$v"; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "mla_lab needs Python 3.11 or newer ($${seen:-no Python found});" \
	    "name one with: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$found has no venv module to make .venv with; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; fi; \
	"$$found" -m venv --clear .venv
	@touch $@

# Only what the package itself needs, at the versions of the lock.
.venv/.verify: .venv/.made requirements.txt pyproject.toml
	@echo "installing NumPy into .venv (once; seconds)"
	@$(PIP) -c requirements.txt -e .
	@touch $@

# The whole lock; the package is then built with the setuptools of the lock, and adds nothing to it. JupyterLab would ask
# everybody at the first start whether it may fetch news.
.venv/.test: .venv/.made requirements.txt requirements-linux.txt pyproject.toml tools/lab/overrides.json
	@echo "installing requirements.txt into .venv (once; minutes)"
	@$(PIP) -r requirements.txt
	@if [ "$$(uname -s)" = Linux ]; then $(PIP) -r requirements-linux.txt; fi
	@$(PIP) --no-build-isolation --no-deps -e .
	@mkdir -p .venv/share/jupyter/lab/settings
	@cp tools/lab/overrides.json .venv/share/jupyter/lab/settings/
	@touch .venv/.verify $@
