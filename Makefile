# Two commands are enough: `make serve` runs Bursar, `make test` checks it.
# They need Python 3.11 or newer (with venv) and make; everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only wheels whose hash is in the lock are installed; nothing is built but Bursar itself.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := --require-hashes --only-binary :all: --no-deps

# The stock packages pin other versions of what we use, and of each other.
STOCK := .venv-stock
# Locked with uv into locks/stock-*.txt, and with npm in their own folders.
STOCK_PYTHON := x402 pay-kit openapi frameworks
STOCK_NODE := $(addprefix tests/stock/,node mcp openapi runtimes) clients/typescript examples/typescript

# Tools that look at us and are no part of what runs; fetched when asked for.
BANDIT := 1.9.4
PIP_AUDIT := 2.10.1

# Without what Python compiled once, every process that the tests start compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install serve test test-stock quick check lint types quick-tests bench prove fuzz security audit-deps screenshots format reference lock clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.server ## Install the service into .venv

serve: $(VENV)/.server ## Run the service on embedded PostgreSQL and an embedded Solana
	@exec $(BIN)/bursar serve $(ARGS)

test: check ## Everything CI runs: format, lint, types, tests with coverage, and the slowest of them
	$(BIN)/python -m tests.run $(ARGS)

test-stock: $(VENV)/.dev ## The TypeScript client, and the published packages of others, each in its own environment
	@$(MAKE) --no-print-directory --jobs=4 $(STOCK)/.ready
	$(BIN)/python -m tests.run --stock $(ARGS)

quick: lint ## While you work, under 90 s: lint, types, and the tests that need no running service
	@$(MAKE) --no-print-directory --jobs=2 types quick-tests

check: lint types ## Format, lint and types only

lint: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(VENV)/.dev
	$(BIN)/basedpyright --warnings

quick-tests: $(VENV)/.dev
	$(BIN)/python -m tests.run --quick

format: $(VENV)/.dev ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

bench: $(VENV)/.dev ## Measure every promised figure; about 10 minutes (BENCH_SECONDS, BENCH_ROUNDS for more)
	$(BIN)/python -m bench

screenshots: $(VENV)/.dev ## Draw docs/img/console-*.png again; needs Chromium
	$(BIN)/python -m tests.browser.screenshots

prove: $(VENV)/.dev ## Break everything for an hour under load, and audit it (PROVE_MINUTES, PROVE_RATE, PROVE_SEED, PROVE_REPORT)
	PYTHONPATH=. $(BIN)/python -m tests.prove

fuzz: $(VENV)/.dev ## Hostile input for long: parsers, headers, every endpoint (FUZZ_EXAMPLES, FUZZ_SCHEMATHESIS)
	FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-20000} FUZZ_SCHEMATHESIS=$${FUZZ_SCHEMATHESIS:-500} \
		$(BIN)/python -m pytest -p no:cacheprovider --timeout 7200 \
		tests/fuzz tests/unit tests/integration/test_schemathesis.py tests/malformed

security: $(VENV)/.dev ## Static security checks of the source (bandit's rules, by ruff and by bandit itself)
	$(BIN)/ruff check --select S --ignore S101 src
	$(BIN)/uv tool run --quiet bandit@$(BANDIT) --quiet --recursive --severity-level high src

audit-deps: $(VENV)/.dev ## Ask the vulnerability database about every locked dependency (needs the internet)
	$(BIN)/uv tool run --quiet pip-audit@$(PIP_AUDIT) --strict --disable-pip \
		--requirement locks/server.txt --requirement locks/dev.txt

reference: $(VENV)/.dev ## Write docs/api.md, its samples and the TypeScript client's types again after a change of the routes
	$(BIN)/python -m tests.documents.reference
	$(BIN)/python -m tests.documents.samples
	$(BIN)/python -m tests.documents.typescript

lock: $(VENV)/.dev ## Resolve the dependencies again and write locks/
	$(BIN)/uv pip compile pyproject.toml --extra server --group build --universal --upgrade \
		--generate-hashes --no-header --no-annotate --quiet -o locks/server.txt
	$(BIN)/uv pip compile pyproject.toml --extra server --group dev --universal --upgrade \
		--generate-hashes --no-header --no-annotate --quiet -o locks/dev.txt
	@for name in $(STOCK_PYTHON); do \
		$(BIN)/uv pip compile locks/stock-$$name.in $$(test -f locks/stock-$$name.override \
			&& echo --override locks/stock-$$name.override) \
			--universal --upgrade --python-version 3.11 --only-binary :all: \
			--generate-hashes --no-header --no-annotate --quiet -o locks/stock-$$name.txt || exit 1; done

clean: ## Remove the environment and caches (the data folder stays)
	rm -rf $(VENV) $(STOCK) $(STOCK_NODE:%=%/node_modules) $(STOCK_NODE:%=%/build) clients/*/dist \
		.pytest_cache .ruff_cache .hypothesis .coverage .coverage.* build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Bursar needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "Python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.server: $(VENV)/bin/python locks/server.txt pyproject.toml
	@echo "Installing Bursar into $(VENV) (about a minute, once) ..."
	@$(PIP_INSTALL) $(LOCKED) -r locks/server.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.server locks/dev.txt
	@echo "Installing what the tests need ..."
	@$(PIP_INSTALL) $(LOCKED) -r locks/dev.txt
	@touch $@

$(STOCK)/.ready: $(STOCK_PYTHON:%=$(STOCK)/%/.ready) $(STOCK_NODE:%=%/node_modules/.ready)
	@touch $@

# Node comes as a wheel too: what the packages need is newer than some systems have.
%/node_modules/.ready: %/package-lock.json $(STOCK)/x402/.ready
	@echo "Installing the packages of $* ..."
	@cd $* && PATH="$(abspath $(STOCK))/x402/bin:$$PATH" \
		npm ci --loglevel=error --no-audit --no-fund --ignore-scripts >/dev/null
	@touch $@

$(STOCK)/%/.ready: locks/stock-%.txt | $(VENV)/bin/python
	@echo "Installing the stock package $* into $(STOCK) ..."
	@$(PYTHON) -m venv $(STOCK)/$*
	@$(STOCK)/$*/bin/python -m pip install --quiet --disable-pip-version-check $(LOCKED) -r $<
	@touch $@
