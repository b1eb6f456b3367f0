# Frog: `make demo` shows it at work, `make test` and `make test-all` prove it. All make the environment first, and reuse it after.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Byte code is made after it, by all cores: pip makes it file by file.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Tests that run side by side: one more than two cores, since those of worlds and clusters wait much.
WORKERS ?= 3

# Containers tell Python to keep no byte code: each of a thousand starts would then compile Frog anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup system demo session-a session-b session-c slides docs notebooks test test-all check clean

help:
	@echo "make demo    train a tiny transformer on four local ranks and write its report"
	@echo "make session-a, session-b, session-c  play the demonstrations of a session on real runs"
	@echo "make slides  build the decks of slides/ to HTML and PDF; needs Node.js and Chromium"
	@echo "make docs    build the documentation's site to build/docs/site; frog docs serves it"
	@echo "make notebooks  write notebooks/*.py, labs 0 to 2 as text, as .ipynb too"
	@echo "make test    run the tests of every room, with one real world of each kind (minutes)"
	@echo "make test-all  those, and then every other test"
	@echo "make check   ruff and mypy"
	@echo "make setup   make .venv alone"
	@echo "make system  Slurm, Open MPI, MPICH, Chromium and npm from Debian's packages, where apt and root are: for the real ones in tests"
	@echo "make clean   remove what the others made (runs/ and data/ too)"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Frog needs Python 3.11 or later; this is %d.%d. Try: make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true  # some packages hold files for later Pythons
	@touch $(VENV)/.ready

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

slides: setup
	$(BIN)/python slides/build.py

# EXAMPLES=--examples first makes the real runs that the site shows.
docs: setup
	$(BIN)/frog docs --build $(EXAMPLES)

notebooks: setup
	$(BIN)/jupytext --update --to ipynb notebooks/lab*.py

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

# What compares two clusters by the second runs by itself, last.
test-all: test
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not alone"
	$(BIN)/python -m pytest -m "slow and alone"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs data logs build src/frog.egg-info .pytest_cache .mypy_cache .ruff_cache
