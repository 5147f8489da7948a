# Needs only make and Python 3.11+ with venv; everything else goes into .venv here.
#   make demo   three servers, two leaders killed, and a Spark audit that proves what clients saw
#   make test   lint, types and all tests
#   make check  lint, types, and the tests of the engine, the log and the store: for the loop of a day
#   make coverage   branch coverage of the engine, the log and the store by their own tests; fails below the floor
#   make test-slow   what takes minutes: fuzzing at length, strangers beside honest clients; an hour
#   make bench  beside etcd and PySyncObj, half an hour; `make bench ARGS=--quick` takes minutes
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

# One stamp: a changed pyproject.toml or a half-made folder is set up again.
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

# What a change breaks first. Without servers, Spark, long searches and simulations.
CHECKED := tests/raft/core tests/raft/node tests/raft/protocol tests/conformance tests/storage/wal tests/kvstore/protocol \
	tests/kvstore/store tests/test_architecture.py tests/test_structure.py tests/test_documents.py
check: lint
	@$(BIN)/python scripts/run_tests.py -q $(CHECKED)

# By their own tests alone, in one process: what servers and simulations reach besides is not counted.
COVERED := tests/raft tests/storage tests/kvstore tests/conformance
coverage: $(READY)
	@$(BIN)/python -m coverage run -m pytest -q --timeout=600 $(COVERED)
	@$(BIN)/python -m coverage report

test: lint
	@$(BIN)/python scripts/run_tests.py

test-slow: $(READY)
	@$(BIN)/python scripts/run_slow_tests.py $(ARGS)

# A longer look than `make test` takes: `make simulate SEEDS=10000`.
SEEDS ?= 1000
simulate: $(READY)
	$(BIN)/hwm-harness simulate --seeds $(SEEDS)

# Options after ARGS: `make bench ARGS='--only put --in-flight 64'`; all of them: `make bench ARGS=--help`.
BENCH_READY := .venv/.bench-ready
$(BENCH_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $(BENCH_READY)

bench: $(BENCH_READY)
	@$(BIN)/python -m benchmarks $(ARGS)

# Ten minutes of full load, an overload, and a verdict: `make bench-endurance ARGS='--minutes 3'`.
bench-endurance: $(BENCH_READY)
	@$(BIN)/python -m benchmarks.endurance $(ARGS)

# What the audit costs, up to 10⁷ operations, half an hour: `make bench-audit ARGS=--quick` takes two minutes.
bench-audit: $(BENCH_READY)
	@$(BIN)/python -m benchmarks.audit $(ARGS)

# After a change of a command or an option of `hwm`, `hwm-harness` or `hwm-audit`.
docs-cli: $(READY)
	@$(BIN)/python docs/internals/generate_cli_reference.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
