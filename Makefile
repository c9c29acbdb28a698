# Everything a newcomer needs is `make demo`, `make quick` and `make test`; they set themselves up.
PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
RUN := $(BIN)/python
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests kill processes and never unplug the machine, so memory is disk enough for them, if there is plenty.
IN_MEMORY := $(shell [ -w /dev/shm ] && [ $$(df -k /dev/shm | awk 'END {print $$4}') -gt 4000000 ] \
	&& echo TMPDIR=/dev/shm)

# Tests start many interpreters: each would compile us again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo quick quick-tests test tests coverage check format lowest bench torture constraints clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/pip:
	@echo "Setting up $(VENV) (once)..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pylash needs Python 3.11 or later; run make PYTHON=python3.12 (or another)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/pip
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing the tools for checks and tests (once)..."
	@$(INSTALL) --no-compile --editable '.[dev]'
	@$(RUN) -m compileall -q -j 0 $(VENV)/lib > /dev/null || true  # as pip does, on every core
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing the peers to compare with (once)..."
	@$(INSTALL) --editable '.[bench]'
	@touch $@

$(VENV)/.models: $(VENV)/.core
	@echo "Installing the libraries of model providers (once)..."
	@$(INSTALL) --editable '.[models]'
	@touch $@

demo: $(VENV)/$(if $(MODEL),.models,.core)  ## kill an agent in the middle of a sentence, and watch it go on (MODEL=name asks a real one)
	@MODEL="$(MODEL)" $(RUN) examples/shop_agent.py

quick: $(VENV)/.dev  ## run every check, and the tests that need no PostgreSQL, other process or wait
	@$(MAKE) --no-print-directory --jobs=2 check quick-tests

quick-tests: $(VENV)/.dev
	@$(IN_MEMORY) $(RUN) -m pytest -n 4 --dist worksteal -q -m "not slow and not torture"

test: $(VENV)/.dev  ## run every check and test
	@$(MAKE) --no-print-directory --jobs=2 check tests

tests: $(VENV)/.dev
	@$(IN_MEMORY) $(RUN) -m pytest -n 4 --dist worksteal -m "not torture"

coverage: check  ## the same, and which lines they reach
	@$(IN_MEMORY) $(RUN) -m pytest -n 3 --dist worksteal --cov --cov-report=term:skip-covered -m "not torture"

check: $(VENV)/.dev  ## format, lint, strict types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Everything else stays at the versions of constraints.txt, so that a failure is about a lower bound.
$(LOWEST)/.dev: pyproject.toml constraints.txt constraints-lowest.txt
	@echo "Installing the oldest libraries that are allowed into $(LOWEST) (once)..."
	@$(PYTHON) -m venv $(LOWEST)
	@awk -F== 'NR == FNR {low[tolower($$1)]; print; next} !(tolower($$1) in low)' \
		constraints-lowest.txt constraints.txt > $(LOWEST)/constraints.txt
	@$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --no-compile \
		--constraint $(LOWEST)/constraints.txt --editable '.[dev]'
	@touch $@

lowest: $(LOWEST)/.dev  ## test models and integrations with the oldest libraries that are allowed
	@$(IN_MEMORY) $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not torture" \
		tests/models tests/integrations tests/values tests/cli/test_look.py tests/stores/test_postgres.py tests/restate

bench: $(VENV)/.bench  ## measure beside the raw databases and the peers
	@$(RUN) -m benchmarks

torture: $(VENV)/.dev  ## long crash, chaos and fuzz runs; SEED=n repeats one
	@$(RUN) -m pytest -m torture --timeout=1200 -s

constraints: $(VENV)/.bench  ## write the versions in use to constraints.txt
	@$(BIN)/pip install --quiet --upgrade --editable '.[all,dev,bench]'
	@{ echo "# Exact versions of everything we install; no index addresses. Renew with: make constraints"; \
		$(BIN)/pip freeze --exclude-editable; } > constraints.txt

clean:  ## remove everything that was set up
	rm -rf $(VENV) $(LOWEST) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
