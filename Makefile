# `make help` lists the targets. Only python 3.11+ (with its venv module) is needed; the real servers want Java 17+ and Maven.
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help python-found install check lint types layers protos unit proofs test stack-up stack-down stack-status stubs demo demo-cluster \
	bench-quick faults mutants outages sim sim-long spec format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

install: $(INSTALLED) ## the package and its tools into .venv, once

$(INSTALLED): pyproject.toml | python-found
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: apt-get install python3-venv (Debian, Ubuntu)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

check: lint types layers protos unit ## lint, types, unit tests (under a minute)

lint: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --check .; exit 1; }

types: install
	@$(BIN)/mypy
	@$(BIN)/mypy -p tools.stack -p bench -p spec -p tests.faults -p tests.simulation

layers: install
	@found=$$($(BIN)/lint-imports 2>&1) || { echo "$$found"; exit 1; }; echo "$$found" | tail -n 1

protos: install
	@$(BIN)/buf lint
	@$(BIN)/python tools/generate_stubs.py --check
	@$(BIN)/python tools/generate_settings.py --check

unit: install
	@$(BIN)/python -m pytest tests -q -n 2 -m "not stack and not integration and not alone and not proof"

proofs: install ## the model with each of its rules left out once, 2,000 seeds of the simulation, each of its planted bugs
	@$(BIN)/python -m pytest tests -q -n 2 --dist loadfile -m proof

STACKS ?= 2
test: check proofs ## check, proofs, then the tests against real servers, in STACKS groups side by side, each with its own; leaves nothing running
	@$(BIN)/python -m tools.stack jars
	@$(BIN)/python -m pytest tests -q -n $(STACKS) --dist loadfile -m "(stack or integration) and not alone and not proof"
	@$(BIN)/python -m pytest tests -q -m "alone and not proof"

python-found:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "needs Python 3.11 or later as $(PYTHON) (or: make PYTHON=/path/to/python3.11)"; exit 1; }

stack-up: python-found ## Cassandra, Kafka and ZooKeeper on loopback ports; prints the settings file that reaches them
	@$(PYTHON) -m tools.stack up

stack-down: python-found ## stops them; their data stays
	@$(PYTHON) -m tools.stack down

stack-status: python-found ## what runs
	@$(PYTHON) -m tools.stack status

stubs: install ## src/bucketsched/stubs from proto/, docs/configuration.md from the settings
	@$(BIN)/python tools/generate_stubs.py
	@$(BIN)/python tools/generate_settings.py

demo: install ## the embedded scheduler at work, no servers needed
	@$(BIN)/python -m bench.demo

demo-cluster: install ## a small cluster at work on real servers, killed and taken over
	@$(BIN)/python -m tools.stack run $(BIN)/python -m bench.demo_cluster

bench-quick: install ## a short measurement against real servers
	@$(BIN)/python -m tools.stack run $(BIN)/python -m bench.quick

faults: install ## SECONDS=... SEED=...: real servers and processes under load and faults, and what came of it checked
	@$(BIN)/python -m tests.faults --seconds $(or $(SECONDS),90) $(if $(SEED),--seed $(SEED))

outages: install ## ZooKeeper, Cassandra and Kafka gone for as long as the promises say, killed and paused (a quarter of an hour)
	@$(BIN)/python -m tests.outages $(if $(ONLY),--only $(ONLY)) --scale $(or $(SCALE),1)

spec: install ## the protocol's model: visits every state of it (python -m spec --drop RULE: what a rule is for)
	@$(BIN)/python -m spec

mutants: install ## whether the tests notice a guard that is removed
	@$(BIN)/python -m tools.stack run $(BIN)/python -m tests.mutants

START ?= 0
SEEDS ?= 2000
sim: install ## the deterministic simulation: seeds START, START+1, ... (SEEDS of them; TRACE=1 prints all that happens)
	@$(BIN)/python -m tests.simulation --start $(START) --seeds $(SEEDS) $(if $(TRACE),--trace --workers 1)

sim-long: install ## 100,000 seeds of it, from START on
	@$(BIN)/python -m tests.simulation --start $(START) --seeds 100000 --workers $$(nproc)

format: install ## puts the code in the house's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: stack-down ## removes what was made here: .venv, .stack, caches
	@rm -rf $(VENV) .stack .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
