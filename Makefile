# What people do with nasflow from a clone. Needs Python 3.11 or newer with venv, and make; no root.
# Every target makes .venv/ by itself when it is missing, or when pyproject.toml or constraints.txt changed.

PYTHON  ?= python3
CONFIG  ?= examples/digits.yaml
EXPORT  ?= exported
# that run tests; more than two cores keep busy, for many tests wait for programs that they start
WORKERS ?= 3
TIMES   ?= 10
ARGS    ?=

VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# the folders of tests that need no programs but Python
QUICK  := attempt checkpoint config evaluator fuzz job merge native space strategy
# those of the long tests that need the packages of the extras zoo and dlc
ZOO    := zoo hosted/test_dlc.py evaluator docs
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-compile
EMPTY  :=
COMMA  := ,

# $(call install,EXTRAS): nasflow with these extras, by constraints.txt. With LOCKED=1, as in CI, only files with a SHA-256
# that .ci/locked/ knows; but torch, and what its builds for CUDA bring along, come by their versions (.ci/lock.py says why).
ifdef LOCKED
install = $(PIP) --no-deps --require-hashes $(foreach extra,$(sort dev $(1)),-r .ci/locked/$(extra).txt) && \
	$(PIP) -c constraints.txt torch && $(PIP) --no-deps --no-build-isolation -e . && $(BIN)/python -m pip check
upgrade_pip = $(PIP) --require-hashes -r .ci/locked/pip.txt
else
install = $(PIP) -c constraints.txt -e '.[$(subst $(EMPTY) $(EMPTY),$(COMMA),$(1))]'
upgrade_pip = $(PIP) -c constraints.txt --upgrade pip
endif

# pip leaves the bytecode to the first import, which needs a tenth of the files; so let imports write it.
unexport PYTHONDONTWRITEBYTECODE

# $(call set_up,STAMP): bring the environment up to that stamp, and say how long it took.
set_up = begin=$$(date +%s); $(MAKE) --no-print-directory $(VENV)/$(1) && echo "Set-up took $$(($$(date +%s) - begin)) s."

.DEFAULT_GOAL := help
.PHONY: help search test test-quick test-long test-repeat lint types format house lock docs clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12 (of a new .venv), ARGS='...' (more arguments for search and test), CONFIG=, EXPORT=, WORKERS=, TIMES="

search: ## install nasflow, search cells on digits, print the leaderboard, export the best model
	@$(call set_up,search.stamp)
	$(BIN)/nasflow run $(CONFIG) --export-best $(EXPORT) $(ARGS)

test: ## install nasflow and its development tools, run all tests but the long ones
	@$(call set_up,dev.stamp)
	$(PYTEST) --numprocesses $(WORKERS) -m "not long" $(ARGS)

test-quick: $(VENV)/dev.stamp ## the tests that start no server, no cluster and no browser
	$(PYTEST) --numprocesses $(WORKERS) -m "not long" $(addprefix tests/,$(QUICK)) $(ARGS)

# Those of work pools by themselves: a job begins when a server of Prefect, its worker and its flow run let it.
# What the zoo needs comes last: torchmetrics imports transformers wherever it is installed, a second at each start of a worker.
test-long: $(VENV)/dev.stamp ## the long tests: faults, hosts, a team's server, the UI in a browser, Ray, models of other libraries
ifeq ($(ARGS),)
	$(PYTEST) --numprocesses $(WORKERS) -m long $(addprefix --ignore tests/,flows/pool $(ZOO))
	$(PYTEST) --numprocesses 2 -m long tests/flows/pool
endif
	@$(MAKE) --no-print-directory $(VENV)/long.stamp
	$(PYTEST) --numprocesses $(WORKERS) -m long $(if $(ARGS),$(ARGS),$(addprefix tests/,$(ZOO)))

test-repeat: $(VENV)/dev.stamp ## the tests of ARGS='...' TIMES times, while something else keeps the machine busy
	@(while :; do :; done) & busy=$$!; trap "kill $$busy" EXIT; \
	for time in $$(seq $(TIMES)); do echo "== $$time of $(TIMES)"; $(PYTEST) --numprocesses $(WORKERS) $(ARGS) || exit 1; done

lint: $(VENV)/dev.stamp ## style, format, and which room imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/dev.stamp ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/dev.stamp ## rewrite the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

house: $(VENV)/dev.stamp ## draw the rooms and their floors, from the imports, into CONTRIBUTING.md
	$(BIN)/python -m tests.house

lock: $(VENV)/dev.stamp ## write .ci/locked/ from constraints.txt: the SHA-256 of all that CI installs (Linux x86_64)
	$(BIN)/python .ci/lock.py

docs: $(VENV)/docs.stamp ## build the docs site into site/: a broken link or an undocumented public name fails
	$(BIN)/mkdocs build --strict

clean: ## remove .venv, site/ and every cache; studies and exports stay
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An empty environment. Made anew, not mended, so that nothing of an older one stays.
$(VENV)/venv.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("nasflow needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(upgrade_pip)
	@touch $@

$(VENV)/search.stamp: $(VENV)/venv.stamp
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/venv.stamp
	$(call install,dev)
	@touch $(VENV)/search.stamp $@

$(VENV)/long.stamp: $(VENV)/dev.stamp
	$(call install,zoo dlc)
	@touch $@

$(VENV)/docs.stamp: $(VENV)/venv.stamp
	$(call install,docs)
	@touch $(VENV)/search.stamp $@
