# Frog: `make demo` trains a model; `make test` and `make test-all` run the tests. All create the environment once and reuse it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# pip compiles byte code file by file; COMPILE does it afterwards on all cores.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Some packages contain files for later Python versions, which do not compile.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true

# Tests that run at the same time: one more than two cores, since tests of worlds and clusters often wait.
WORKERS ?= 3

# Many containers forbid Python to write byte code; each of a thousand starts would then compile Frog again.
unexport PYTHONDONTWRITEBYTECODE

# Rooms of Frog: `make test-plan` runs the fast tests of tests/plan.
ROOMS := $(filter-out __pycache__,$(notdir $(patsubst %/,%,$(wildcard src/frog/*/))))
ROOM_TESTS := $(addprefix test-,$(ROOMS))

.PHONY: help setup system demo session-a session-b session-c session-d session-e slides docs notebooks \
	test test-all test-affected test-torch $(ROOM_TESTS) affected ci verified check clean

help:
	@echo "make demo    train a tiny transformer on four local ranks and write its report"
	@echo "make session-a, session-b, session-c, session-d, session-e  play a session's demonstrations on real runs"
	@echo "make slides  build the decks of tools/slides/, for learners and instructors; needs Node.js and Chromium"
	@echo "make docs    build the documentation's site to build/docs/site; frog docs serves it"
	@echo "make notebooks  also write notebooks/*.py (the labs as text) as .ipynb"
	@echo "make test    run the fast tests of every package, with one real world of each kind (minutes)"
	@echo "make test-all  run all tests"
	@echo "make test-plan, ...  run the fast tests of one folder of src/frog"
	@echo "make affected  print which tests the changes since the last verified commit reach; BASE=HEAD~1: since another"
	@echo "make test-affected  run those tests, fast and slow"
	@echo "make ci      run what CI runs: all fast tests, the slow ones of make affected, and a tenth of the others"
	@echo "make verified  after make test-all, write its commit and counts to .ci/verified"
	@echo "make test-torch TORCH=2.9.1  run the tests that depend on torch with another version of it, in a separate environment"
	@echo "make check   ruff and mypy"
	@echo "make setup   create .venv with what a learner needs; tests, checks and the site install more into it"
	@echo "make system  install Slurm, Open MPI, MPICH, Chromium and npm from Debian's packages, for tests with the real ones; needs apt and root"
	@echo "make clean   remove everything that these targets created, including runs/ and data/"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "Frog needs Python 3.11 to 3.13; this is %d.%d. Try: make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .
	@$(COMPILE)
	@touch $@

# Packages for tests, checks, the site and notebooks.
$(VENV)/.dev: $(VENV)/.ready
	$(INSTALL) -e '.[dev]'
	@$(COMPILE)
	@touch $@

# Without these, tests that need them are skipped and say so, and job files run under the emulator.
SYSTEM_PACKAGES := slurm-wlm munge openmpi-bin mpich iproute2 shellcheck
# For the slides, unless installed otherwise; Ubuntu's packages have no Chromium.
PAGE_PACKAGES := $(if $(shell command -v chromium || command -v google-chrome),,chromium) $(if $(shell command -v npm),,npm)

system:
	@if ! command -v apt-get >/dev/null; then echo "make system: no apt-get here: nothing installed"; \
	elif dpkg -s $(SYSTEM_PACKAGES) $(PAGE_PACKAGES) >/dev/null 2>&1; then echo "make system: $(SYSTEM_PACKAGES) are installed"; \
	elif [ "$$(id -u)" != 0 ]; then echo "make system: not root; try: sudo apt-get install $(SYSTEM_PACKAGES) $(PAGE_PACKAGES)"; \
	else export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES) || exit 1; \
	for package in $(PAGE_PACKAGES); do apt-get install -y -qq --no-install-recommends $$package \
	|| echo "make system: $$package cannot be installed: no test looks at the slides' pages"; done; fi

# Fewer steps than config/demo.toml has, so that the report is there within a minute: DEMO_STEPS=600 takes all of them.
# OPEN=1 opens the report in the browser.
DEMO_STEPS ?= 240
demo: setup
	$(BIN)/frog data prepare
	$(BIN)/frog run --nproc 4 -- train config/demo.toml --set train.steps=$(DEMO_STEPS) --set eval.every=60
	$(BIN)/frog report latest $(if $(OPEN),--open)

# A session's demonstrations, step by step; AUTO=--auto does not wait for Enter.
session-a session-b session-c session-d session-e: setup
	$(BIN)/frog demo $(subst session-,,$@) $(AUTO)

slides: $(VENV)/.dev
	$(BIN)/python tools/slides/build.py

# EXAMPLES=--examples first creates the real runs that the site shows.
docs: $(VENV)/.dev
	$(BIN)/frog docs --build $(EXAMPLES)

notebooks: $(VENV)/.dev
	$(BIN)/jupytext --update --to ipynb notebooks/lab*.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

$(ROOM_TESTS): test-%: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" tests/$*

# Two sessions of pytest, the second for tests marked alone; failed tests of processes run once more at the end.
test-all: $(VENV)/.dev
	$(BIN)/python -m tools.ci.run_tests -n $(WORKERS)

# What changed since BASE, by default the commit in .ci/verified: docs/development/ci.md
AFFECTED = $(BIN)/python -m tools.affected $(if $(BASE),--base $(BASE))
SELECTION := build/affected/selection.json

affected: $(VENV)/.dev
	@$(AFFECTED)

test-affected: $(VENV)/.dev
	$(AFFECTED) --write $(SELECTION)
	$(BIN)/python -m tools.ci.run_tests -n $(WORKERS) --affected $(SELECTION)

ci: $(VENV)/.dev
	$(AFFECTED) --ci --write $(SELECTION)
	$(BIN)/python -m tools.ci.run_tests -n $(WORKERS) --affected $(SELECTION)

verified: $(VENV)/.dev
	$(BIN)/python -m tools.ci.verified

# A torch other than the pinned one: TORCH=2.9.1, and PYTHON=python3.12 for another Python. CUDA builds take 5 to 7 GB.
TORCH_VENV = .venv-torch-$(TORCH)
TORCH_BIN = $(TORCH_VENV)/bin
TORCH_INSTALL = $(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(TORCH_VENV)/constraints.txt
TORCH_TESTS := $(addprefix tests/,train launch worlds)

test-torch:
	@test -n "$(TORCH)" || { echo "make test-torch: which version of torch? Try: make test-torch TORCH=2.9.1" >&2; exit 2; }
	test -x $(TORCH_BIN)/python || $(PYTHON) -m venv $(TORCH_VENV)
	grep -v '^torch==' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_INSTALL) 'torch==$(TORCH)'
	$(TORCH_INSTALL) -e '.[test]'
	@$(TORCH_BIN)/python -m compileall -qq -j 0 $(TORCH_VENV)/lib || true
	@$(TORCH_BIN)/python -W ignore -c 'import platform, numpy, torch; print("Python", platform.python_version(), "torch", torch.__version__, "numpy", numpy.__version__)'
	$(TORCH_BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" $(TORCH_TESTS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-torch-* runs data logs build src/frog.egg-info .pytest_cache .mypy_cache .ruff_cache
