# Two commands do everything on a machine with Python 3.11 or newer and a package registry: `make demo`, `make test`.
# Set-up writes to standard error; what a command itself prints is the only thing on standard output.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TREE := build/tree
PYTEST_ARGS ?=
MUTATION_ARGS ?=

.PHONY: help demo test setup lint format types layers tree spec-check docs-spec tests verify-quick verify check-deep bench mutation clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP) ## Move real models' caches over real NIXL; the last line is one JSON object
	@timeout 600 $(BIN)/kvrooms demo

test: $(STAMP) lint types layers spec-check tests verify-quick ## Everything that must hold for a change: what CI runs

setup: $(STAMP) ## Make .venv and install the locked versions

$(STAMP): requirements.lock pyproject.toml
	@{ \
	if [ ! -x $(BIN)/python ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		python=; \
		for candidate in python3.11 python3; do \
			if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then echo "kvrooms needs Python 3.11 or newer; neither python3.11 nor python3 is one"; exit 1; fi; \
		rm -rf $(VENV); \
		$$python -m venv $(VENV) || { echo "no virtual environment could be made; on Debian: apt-get install python3-venv"; exit 1; }; \
	fi; \
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.lock; \
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .; \
	touch $@; \
	} >&2

lint: $(STAMP) ## Style and common mistakes
	timeout 60 $(BIN)/ruff check .
	timeout 60 $(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }

format: $(STAMP) ## Format the code and repair what can be repaired
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# protocol/, statemachine/ and transport/ are folders of their own, mapped into the package at install. Static tools read
# files, not import hooks: they get a tree of links that looks like the installed package, and run inside it, because
# from the root the folder kvrooms/ alone would hide it.
tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)
	@cp -rs $(CURDIR)/kvrooms $(TREE)/kvrooms
	@cp -rs $(CURDIR)/protocol $(CURDIR)/statemachine $(CURDIR)/transport $(TREE)/kvrooms/

types: $(STAMP) tree ## mypy --strict
	cd $(TREE) && timeout 300 $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p kvrooms

layers: $(STAMP) tree ## Import contracts between the layers
	cd $(TREE) && timeout 120 $(CURDIR)/$(BIN)/lint-imports --cache-dir $(CURDIR)/.import_linter_cache $(CURDIR)/pyproject.toml

spec-check: $(STAMP) ## docs/spec.md is what the running tables say
	@timeout 60 $(BIN)/kvrooms spec | diff -u docs/spec.md - >&2 || { echo "docs/spec.md is stale; run: make docs-spec"; exit 1; }

docs-spec: $(STAMP) ## Write docs/spec.md from the running tables, docs/settings.md from the settings
	@mkdir -p build docs
	@timeout 60 $(BIN)/kvrooms spec > build/spec.md.new && mv build/spec.md.new docs/spec.md
	@timeout 60 $(BIN)/python -P -m kvrooms.cli.settings_doc > build/settings.md.new && mv build/settings.md.new docs/settings.md

tests: $(STAMP) ## Tests; every branch of protocol/ and statemachine/ must be reached
	timeout 1800 $(BIN)/pytest -n 2 --dist loadfile --cov --cov-report=term --cov-fail-under=100 $(PYTEST_ARGS)

verify-quick: $(STAMP) ## The properties of the rooms, in about a minute
	timeout 400 $(BIN)/kvrooms verify --quick

verify: $(STAMP) ## The properties of the rooms, in about ten minutes
	timeout 1800 $(BIN)/kvrooms verify

check-deep: $(STAMP) ## The long versions of the tests
	timeout 3600 $(BIN)/pytest -m "deep or not deep" --hypothesis-profile=kvrooms-deep --timeout=900 $(PYTEST_ARGS)

bench: $(STAMP) ## Throughput and latency beside a floor without any protocol
	@timeout 1800 $(BIN)/kvrooms bench

mutation: $(STAMP) ## Change protocol/ and statemachine/ a little, everywhere: which changes does no test notice?
	@nice -n 15 $(BIN)/python benchmarks/mutation.py $(MUTATION_ARGS)

clean: ## Remove what was built, the environment too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
