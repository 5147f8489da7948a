# Needs only make and Python 3.11+ with venv. Everything else is installed into .venv in this folder.
#   make demo   three servers, two leaders killed, and a Spark audit that proves what clients saw
#   make test   lint, types and all tests
#   make check  lint, types, and the tests of the engine, the log and the store: for daily work
#   make coverage   branch coverage of the engine, the log and the store by their own tests; fails below the floor
#   make test-slow   the tests that take minutes each: long fuzzing, strangers beside honest clients; an hour in all
#   make bench  compare with etcd and PySyncObj, half an hour; `make bench ARGS=--quick` takes minutes
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo check coverage test test-slow lint format simulate bench bench-endurance bench-audit docs-cli clean

# The tests start hundreds of processes: without bytecode on disk, each of them would compile every module it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell scripts/find-python)
BIN := .venv/bin
READY := .venv/.ready

help:
	@sed -n '2,8s/^# *//p' Makefile

# The stamp is made last, so .venv is set up again if pyproject.toml has changed or an earlier setup has failed.
$(READY): pyproject.toml scripts/find-python
	@test -n "$(PYTHON)" || { scripts/find-python >/dev/null; exit 1; }
	@echo "setting up .venv with $(PYTHON) (a few minutes the first time)" >&2
	@rm -f $(READY)
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)

setup: $(READY)

demo: $(READY)
	@$(BIN)/hwm-harness demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tests that a change breaks first. They need no servers, no Spark, no long searches and no simulations.
CHECKED := tests/raft/core tests/raft/node tests/raft/protocol tests/conformance tests/storage/wal tests/kvstore/protocol \
	tests/kvstore/store tests/test_architecture.py tests/test_structure.py tests/test_documents.py
check: lint
	@$(BIN)/python scripts/run_tests.py -q $(CHECKED)

# The coverage of each package by its own tests, in one process. Code that only servers or simulations reach counts as
# not covered.
COVERED := tests/raft tests/storage tests/kvstore tests/conformance
coverage: $(READY)
	@$(BIN)/python -m coverage run -m pytest -q --timeout=600 $(COVERED)
	@$(BIN)/python -m coverage report

test: lint
	@$(BIN)/python scripts/run_tests.py

test-slow: $(READY)
	@$(BIN)/python scripts/run_slow_tests.py $(ARGS)

# A longer simulation than in `make test`: `make simulate SEEDS=10000`.
SEEDS ?= 1000
simulate: $(READY)
	$(BIN)/hwm-harness simulate --seeds $(SEEDS)

# Options go into ARGS: `make bench ARGS='--only put --in-flight 64'`. `make bench ARGS=--help` lists all options.
BENCH_READY := .venv/.bench-ready
$(BENCH_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $(BENCH_READY)

bench: $(BENCH_READY)
	@$(BIN)/python -m benchmarks $(ARGS)

# Ten minutes of full load, an overload, and a verdict: `make bench-endurance ARGS='--minutes 3'`.
bench-endurance: $(BENCH_READY)
	@$(BIN)/python -m benchmarks.endurance $(ARGS)

# The speed of the audit, up to 10⁷ operations, in half an hour. `make bench-audit ARGS=--quick` takes two minutes.
bench-audit: $(BENCH_READY)
	@$(BIN)/python -m benchmarks.audit $(ARGS)

# Run this after a change of a command or an option of `hwm`, `hwm-harness` or `hwm-audit`.
docs-cli: $(READY)
	@$(BIN)/python docs/internals/generate_cli_reference.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
