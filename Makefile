# `make run` trains and reports; `make test` checks everything. Both make their own environment the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: run test suite slow campaign million faults conformance golden lint bench controller calibration prediction bugs clean-runs baselines discrimination convergence resume machines gpu slurm ray clouds site screenshots clean install
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

# File by file, four at a time on two cores: while some wait for the processes that they started, others compute. The checks
# of `make lint` run beside them: both begin with what takes one core alone.
BY_FILE := -n 4 --dist loadfile --no-loadscope-reorder --durations 20
ifeq ($(ARGS),)
test: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 lint suite
else
test: lint
	$(BIN)/python -m pytest $(ARGS)
endif

suite: $(STAMP)
	$(BIN)/python -m pytest $(BY_FILE) -m "not slow" tests

# What `make test` leaves out: further combinations of what real processes show dearly, and experiments (tests/slow.py). Minutes.
slow: $(STAMP)
	$(BIN)/python -m pytest $(BY_FILE) -m slow tests $(ARGS)

# Schedules never drawn before, against the same laws; a failure prints how to play it again.
campaign: $(STAMP)
	SCHEDULES=new $(BIN)/python -m pytest -n 2 --dist worksteal tests/sim $(ARGS)

# A million of them, in batches that are counted in reports/faults/schedules.jsonl: some hours, which can be interrupted.
million: $(STAMP)
	$(BIN)/python -m benchmarks.schedules $(ARGS)

# Every fault in every phase on every choice of ranks: in virtual time minutes, in processes up to three hours, which can be
# interrupted: what was played is kept, and the page says what is left. Table and heat map in reports/faults.
faults: $(STAMP)
	$(BIN)/python -m bench faults --matrix --world all --jobs 2 --report reports/faults $(ARGS)

# Every synchronous engine x ranks x optimizers x models against the oracle, and what else `make test` tries a part of the
# combinations of (tests/spread.py). Some minutes.
conformance: $(STAMP)
	CONFORMANCE=all $(BIN)/python -m pytest tests/conformance $$(grep -rl "tests.spread import" tests) $(ARGS)

# What a change of the code's shape must leave as it is: hashes, replays, reports and bits. Three minutes. ARGS: see --help.
golden: $(STAMP)
	$(BIN)/python -m benchmarks.golden $(ARGS)

# Speed and memory; never part of the tests.
bench: $(STAMP)
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only --timeout 600 $(ARGS)

# The tables of docs/explanation/controller.md, in virtual time.
controller: $(STAMP)
	$(BIN)/python -m benchmarks.controller --write
	$(BIN)/python -m benchmarks.choices --write

# What verdicts promise, over simulated sweeps: the table of docs/explanation/validation.md. A minute.
calibration: $(STAMP)
	$(BIN)/python -m benchmarks.calibration --write $(ARGS)

# Predictions against real runs: a small grid in minutes, printed; ARGS=--full: up to eight ranks, hours, and ARGS=--own: steps
# as they come, both into reports/prediction.
prediction: $(STAMP)
	$(BIN)/python -m benchmarks.prediction --write $(ARGS)

# What verdicts tell apart, by the seeds of the committed baselines: a table of docs/explanation/validation.md. Seconds.
discrimination: $(STAMP)
	$(BIN)/python -m benchmarks.discrimination --write $(ARGS)

# Defects put into the engine, each with the check that must catch it: the table of docs/explanation/validation.md. One cell for each;
# ARGS=--lots: those of people who had not seen the checks; --all-cells: every cell that it touches, hours, which can be
# interrupted. `clean-runs`: the cells of `ci` without bugs.
bugs: $(STAMP)
	$(BIN)/python -m benchmarks.bugs --write $(ARGS)

RERUNS ?= 20
clean-runs: $(STAMP)
	$(BIN)/python -m benchmarks.bugs --clean $(RERUNS) --write $(ARGS)

# Baselines: twenty solo seeds of every model (SEEDS=0,1,2,3,4 for provisional ones), proposed; `bench baseline accept` puts
# them into place. Wants a committed tree and, best, an idle machine; finished runs are kept, so it can be interrupted.
SEEDS ?= 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19
MODELS ?= glob(*)
TIMING ?= off
baselines: $(STAMP)
	$(BIN)/python -m bench -m 'model=$(MODELS)' mode=solo seed=$(SEEDS) timing=$(TIMING) output=runs/baselines validate=false report=false
	$(BIN)/python -m bench baseline propose runs/baselines --mode solo $(ARGS)

# Accuracy of the six modes against solo on MNIST, two models, five seeds; about an hour or more. Finished runs are kept.
DATA ?= data
convergence: $(STAMP)
	$(BIN)/python -m bench experiment=convergence data.dir='$(DATA)' $(ARGS)
	$(BIN)/python -m benchmarks.convergence runs/convergence

# Runs killed and gone on with against uninterrupted ones, five seeds: the table of docs/explanation/recovery.md.
resume: $(STAMP)
	$(BIN)/python -m benchmarks.resume --write $(ARGS)

# Runs over two hosts made of namespaces, and links that are cut: the tables of docs/explanation/recovery.md. Needs root on Linux.
machines: $(STAMP)
	MACHINES=all $(BIN)/python -m pytest tests/runtime/remote/test_remote_run.py
	$(BIN)/python -m benchmarks.machines --write $(ARGS)

# Speed and memory of ways of training on one CUDA device: reports/gpu. Minutes.
gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu $(ARGS)
	$(BIN)/python -m benchmarks.gpu --write $(ARGS)

# Runs and sweeps on a SLURM of two nodes on this host, of unpacked Debian packages; skipped with a reason where they cannot be
# had. Needs root on Debian. Some minutes.
slurm: $(STAMP)
	SLURM=all $(BIN)/python -m pytest -n 0 -rs tests/slurm $(ARGS)

# The same on a cluster of Ray's with two raylets on this host; skipped with a reason where Ray cannot be had: it is no part of
# `dev`, as it takes 240 MB. Some minutes.
ray: $(STAMP)
	-@$(BIN)/python -c 'import ray' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	RAY=all $(BIN)/python -m pytest -n 0 -rs tests/ray $(ARGS)

# The manifests for Kubernetes and SkyPilot by the schemas of their packages, which want other versions than ours.
clouds:
	$(PYTHON) -m venv .venv-clouds
	.venv-clouds/bin/python -m pip install --quiet --disable-pip-version-check \
		kubeflow-trainer-api skypilot pyyaml psutil pytest pytest-timeout
	.venv-clouds/bin/python -m pytest -rs --confcutdir tests/clouds -o addopts= -o filterwarnings=default tests/clouds $(ARGS)

# The documents as a site in site/, with search, the reference of the public names and the example reports; no network but for
# the generator, once.
site: $(STAMP)
	@$(BIN)/python -c 'import mkdocs, mkdocstrings' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m benchmarks.site $(ARGS)

# The pages at 1400 and 400 pixels, light and dark, in docs/images/screens; Chromium is needed. A test compares them.
screenshots: $(STAMP)
	@$(BIN)/python -c 'import mkdocs, mkdocstrings' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m benchmarks.screenshots $(ARGS)

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
