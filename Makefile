# Frog: `make demo` shows it at work, `make test` and `make test-all` prove it. All make the environment first, and reuse it after.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Byte code is made after it, by all cores: pip makes it file by file.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Some packages hold files for later Pythons, which do not compile.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true

# Tests that run side by side: one more than two cores, since those of worlds and clusters wait much.
WORKERS ?= 3

# Containers tell Python to keep no byte code: each of a thousand starts would then compile Frog anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup system demo session-a session-b session-c slides docs notebooks test test-all test-torch check clean

help:
	@echo "make demo    train a tiny transformer on four local ranks and write its report"
	@echo "make session-a, session-b, session-c  play the demonstrations of a session on real runs"
	@echo "make slides  build the decks of tools/slides/, for learners and instructors; needs Node.js and Chromium"
	@echo "make docs    build the documentation's site to build/docs/site; frog docs serves it"
	@echo "make notebooks  write notebooks/*.py, labs 0 to 2 as text, as .ipynb too"
	@echo "make test    run the tests of every room, with one real world of each kind (minutes)"
	@echo "make test-all  those and every other test"
	@echo "make test-torch TORCH=2.9.1  run the tests that depend on torch with another version of it, in an environment of its own"
	@echo "make check   ruff and mypy"
	@echo "make setup   make .venv with what a learner needs; tests, checks and the site add theirs to it"
	@echo "make system  Slurm, Open MPI, MPICH, Chromium and npm from Debian's packages, where apt and root are: for the real ones in tests"
	@echo "make clean   remove what the others made (runs/ and data/ too)"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "Frog needs Python 3.11 to 3.13; this is %d.%d. Try: make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .
	@$(COMPILE)
	@touch $@

# What tests, checks, the site and notebooks need besides.
$(VENV)/.dev: $(VENV)/.ready
	$(INSTALL) -e '.[dev]'
	@$(COMPILE)
	@touch $@

# Without these, what needs them says so in the tests' summary, and job files run under the emulator.
SYSTEM_PACKAGES := slurm-wlm munge openmpi-bin mpich iproute2 shellcheck
# For the slides, unless they are there from elsewhere; Ubuntu's packages have no Chromium.
PAGE_PACKAGES := $(if $(shell command -v chromium || command -v google-chrome),,chromium) $(if $(shell command -v npm),,npm)

system:
	@if ! command -v apt-get >/dev/null; then echo "make system: no apt-get here: nothing installed"; \
	elif dpkg -s $(SYSTEM_PACKAGES) $(PAGE_PACKAGES) >/dev/null 2>&1; then echo "make system: $(SYSTEM_PACKAGES) are installed"; \
	elif [ "$$(id -u)" != 0 ]; then echo "make system: not root; try: sudo apt-get install $(SYSTEM_PACKAGES) $(PAGE_PACKAGES)"; \
	else export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES) || exit 1; \
	for package in $(PAGE_PACKAGES); do apt-get install -y -qq --no-install-recommends $$package \
	|| echo "make system: no $$package here: nothing tests how the slides' pages look"; done; fi

demo: setup
	$(BIN)/frog data prepare
	$(BIN)/frog run --nproc 4 -- train config/demo.toml
	$(BIN)/frog report latest

# A session's demonstrations, step by step; AUTO=--auto waits for nobody.
session-a session-b session-c: setup
	$(BIN)/frog demo $(subst session-,,$@) $(AUTO)

slides: $(VENV)/.dev
	$(BIN)/python tools/slides/build.py

# EXAMPLES=--examples first makes the real runs that the site shows.
docs: $(VENV)/.dev
	$(BIN)/frog docs --build $(EXAMPLES)

notebooks: $(VENV)/.dev
	$(BIN)/jupytext --update --to ipynb notebooks/lab*.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

# One run: slow and quick tests of a file share its worlds. Those marked alone compare two clusters by the second: last.
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not alone"
	$(BIN)/python -m pytest -m alone

# Another torch than the pinned one: TORCH=2.9.1, and PYTHON=python3.12 for another Python. CUDA builds take 5 to 7 GB.
TORCH_VENV = .venv-torch-$(TORCH)
TORCH_BIN = $(TORCH_VENV)/bin
TORCH_INSTALL = $(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(TORCH_VENV)/constraints.txt
TORCH_TESTS := $(addprefix tests/,model comm parallel checkpoint train launch worlds prove) $(wildcard tests/optim)

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
