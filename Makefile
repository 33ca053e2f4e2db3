# `make run` trains and reports; `make test` checks everything. Both make their own environment the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: run test campaign conformance lint bench controller baselines convergence resume machines clean install
.DEFAULT_GOAL := run

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed, $$($(PYTHON) --version) was found: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)

run: $(STAMP)
	$(BIN)/python -m bench model=resnet_graph mode=nccl_cadence $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What runs in virtual time takes both cores; what starts processes of its own is timed by them and wants them to itself.
VIRTUAL := tests/core tests/sim tests/data
test: lint
ifeq ($(ARGS),)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(VIRTUAL)
	$(BIN)/python -m pytest $(addprefix --ignore ,$(VIRTUAL)) tests
else
	$(BIN)/python -m pytest $(ARGS)
endif

# Schedules never drawn before, against the same laws; a failure prints how to play it again.
campaign: $(STAMP)
	SCHEDULES=new $(BIN)/python -m pytest -n 2 --dist worksteal tests/sim $(ARGS)

# Every synchronous engine x ranks x optimizers x models against the oracle; `make test` has a part of it. Some minutes.
conformance: $(STAMP)
	CONFORMANCE=all $(BIN)/python -m pytest tests/conformance $(ARGS)

# Speed and memory; never part of the tests.
bench: $(STAMP)
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only --timeout 600 $(ARGS)

# The tables of docs/controller.md, in virtual time.
controller: $(STAMP)
	$(BIN)/python -m benchmarks.controller --write

# Five solo seeds of every model, and the baseline from them.
baselines: $(STAMP)
	$(BIN)/python -m bench -m model=mlp,lenet,resnet_graph mode=solo seed=0,1,2,3,4 output=runs/baselines force=true validate=false
	$(BIN)/python -m bench baseline runs/baselines

# Accuracy of the six modes against solo on MNIST, two models, five seeds; about an hour or more. Finished runs are kept.
DATA ?= data
convergence: $(STAMP)
	$(BIN)/python -m bench experiment=convergence data.dir='$(DATA)' $(ARGS)
	$(BIN)/python -m benchmarks.convergence runs/convergence

# Runs killed and gone on with against uninterrupted ones, five seeds: the table of docs/checkpoints.md.
resume: $(STAMP)
	$(BIN)/python -m benchmarks.resume --write $(ARGS)

# Runs over two hosts made of namespaces, and links that are cut: the tables of docs/machines.md. Needs root on Linux.
machines: $(STAMP)
	MACHINES=all $(BIN)/python -m pytest tests/runtime/test_remote_run.py
	$(BIN)/python -m benchmarks.machines --write $(ARGS)

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
