# Penstock: every command sets up what it needs. `make help` lists them.
#
# A virtual environment is made in .venv, pinned dependencies go into it, the hot modules are compiled. Stamp
# files in .venv remember what was done: a second run costs nothing, a changed pyproject.toml, requirements.lock
# or hot source redoes its own step only.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# PYTHON=/path/to/python3.12 makes .venv from another interpreter (only while .venv does not exist).
PYTHON ?=
# Test processes side by side; 0 runs everything in one, for a debugger. Two for each core: tests mostly wait for servers.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
JOBS ?= $(shell expr 2 \* $(CORES))
# Length and seed of `make soak`; without a seed, another one each time. MINUTES=0: every long variant once.
MINUTES ?= 30
SEED ?=
# How long the gate gives a slice.
SLICE_MINUTES ?= 8
# What `make quick` takes for changed: a package of penstock/, or everything since a revision (default: main).
ROOM ?=
BASE ?=
# For which Pythons `make wheel` builds; without it, for the one of .venv.
PYTHONS ?=
# More options for pytest: make test ARGS='-k recovery -x'
ARGS ?=

# Tests start hundreds of Python processes: each would compile everything anew where the environment forbids bytecode files.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
PYTEST = $(PY) -m pytest -n $(JOBS)

# The form in which the hot modules are compiled has a stamp of its own: asking for another form recompiles.
HOT_FORM := $(if $(filter-out 0,$(PENSTOCK_TRACE)),trace,$(if $(filter-out 0,$(PENSTOCK_BOUNDS)),bounds,release))
HOT_SOURCES := $(wildcard penstock/_hot/*.py penstock/_hot/*.pxd)

VENV_STAMP := $(VENV)/.stamp-venv
DEPS_STAMP := $(VENV)/.stamp-dependencies
HOT_STAMP := $(VENV)/.stamp-hot-$(HOT_FORM)
JAVA_STAMP := $(VENV)/.stamp-java
SPARK_STAMP := $(VENV)/.stamp-spark
BYTECODE_STAMP := $(VENV)/.stamp-bytecode
RELEASE_STAMP := $(VENV)/.stamp-release

MYPY_EXTRA := $(wildcard benchmarks examples)

.PHONY: help
help: ## Print this list
	@echo 'Penstock. Each command sets up what it needs (.venv, dependencies, compiled modules).'
	@echo
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: JOBS=4  ROOM=store  BASE=main  MINUTES=30  SEED=n  ARGS="-k name"  PYTHON=python3.12'

.PHONY: demo
demo: setup ## Show what Penstock does, with figures: about two minutes, everything in build/demo
	@$(PY) -m penstock.cli.main demo --dir build/demo

.PHONY: test
test: setup $(BYTECODE_STAMP) ## Run the tests, compiled; then those of the hot modules again, uncompiled
	@echo '== tests, hot modules compiled'
	@env -u PENSTOCK_PURE PENSTOCK_EXPECT=compiled $(PYTEST) tests --ignore=tests/interop $(ARGS)
	@$(MAKE) --no-print-directory test-pure
	@$(PY) -m scripts.seed_lines compiled pure

.PHONY: test-pure
test-pure: $(DEPS_STAMP) $(BYTECODE_STAMP) ## Run the tests of the hot modules, golden bytes and corpora, uncompiled
	@echo '== tests of the hot modules, uncompiled'
	@PENSTOCK_PURE=1 PENSTOCK_EXPECT=pure $(PYTEST) $$($(PY) -m scripts.uncompiled) $(ARGS)

.PHONY: quick
quick: setup $(BYTECODE_STAMP) ## Run the tests nearest to your change, in two minutes: ROOM=store, BASE=main
	@PENSTOCK_EXPECT=compiled $(PY) -m scripts.quick --jobs $(JOBS) $(if $(ROOM),--room $(ROOM)) $(if $(BASE),--base $(BASE)) $(if $(ARGS),-- $(ARGS))

.PHONY: soak
soak: setup ## Run the long variants of tests for MINUTES=n, from SEED=n: crashes, chaos, histories, fuzzing
	@PENSTOCK_EXPECT=compiled $(PY) -m scripts.soak --jobs $(JOBS) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ARGS),-- $(ARGS))

.PHONY: asan
asan: setup ## Run the tests and fuzzers of the hot modules under AddressSanitizer and UBSan, compiled beside the others
	@$(PY) -m scripts.asan --jobs $(CORES) $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES)) $(if $(ARGS),-- $(ARGS))

.PHONY: slice
slice: setup ## Run the next slice of the long variants and interop tests, and advance the counter
	@$(PY) -m scripts.slices run --jobs $(CORES)
	@$(PY) -m scripts.slices advance

# What the gate runs: within a time, and the counter stays, because a clean checkout has nobody to commit it.
.PHONY: slice-in-time
slice-in-time: setup ## Run the next slice for at most SLICE_MINUTES, and leave the counter
	@$(PY) -m scripts.slices run --jobs $(CORES) --minutes $(SLICE_MINUTES)

.PHONY: times
times: $(DEPS_STAMP) ## Write how long tests took in this clone into tests/history.json
	@$(PY) -m scripts.history

.PHONY: interop
interop: setup ## Run Apache RocketMQ's own store, broker, clients and mqadmin against Penstock (needs Java 17+, Maven, Go)
	@PENSTOCK_EXPECT=compiled scripts/with-maven $(PY) -m pytest -n $(CORES) tests/interop -rs $(ARGS)

.PHONY: interop-core
interop-core: setup ## Run the interop tests that every landing runs (tests/slices.toml)
	@$(PY) -m scripts.slices core --jobs $(CORES)

.PHONY: check
check: $(DEPS_STAMP) ## Lint, format, types and import directions
	@echo '== ruff check' && $(PY) -m ruff check
	@echo '== ruff format' && $(PY) -m ruff format --check
	@echo '== mypy' && $(PY) -m mypy $(if $(MYPY_EXTRA),penstock pyspark_penstock scripts setup.py $(MYPY_EXTRA))
	@echo '== import directions' && $(VENV)/bin/lint-imports

.PHONY: bench
bench: setup ## Measure the store against raw writes, syncs and reads of the same run
	@$(PY) -m benchmarks.store $(ARGS)

.PHONY: bench-failover
bench-failover: setup ## Kill the master of a coordinated set again and again, and time the next acknowledged send
	@$(PY) -m benchmarks.failover $(ARGS)

.PHONY: bench-delay
bench-delay: setup ## Have thousands of messages due every second, and tell how late each is
	@$(PY) -m benchmarks.delay $(ARGS)

.PHONY: bench-wire
bench-wire: setup ## Measure the broker against RocketMQ, Redis and NATS with a cheap client
	@$(PY) -m benchmarks.wire $(ARGS)

.PHONY: bench-clients
bench-clients: setup ## Measure brokers with the same Java client, and the Python client beside the Java one
	@$(PY) -m benchmarks.clients $(ARGS)

.PHONY: bench-kafka
bench-kafka: setup ## Measure Spark reading Penstock beside Spark reading Kafka (needs Java 17+, Maven)
	@$(PY) -m benchmarks.spark_kafka $(ARGS)

.PHONY: format
format: $(DEPS_STAMP) ## Rewrite the sources the way `make check` wants them
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

.PHONY: docs-config
docs-config: $(DEPS_STAMP) ## Write docs/configuration.md from the options of each room
	@$(PY) scripts/docs_config.py docs/configuration.md

.PHONY: docs-access
docs-access: $(DEPS_STAMP) ## Write the table of requests and rights into docs/operating/security.md
	@$(PY) scripts/docs_access.py docs/operating/security.md

.PHONY: compatibility
compatibility: $(DEPS_STAMP) ## Write the tables of docs/compatibility.md and docs/seeds.md from what the tests said last
	@$(PY) -m scripts.compatibility

.PHONY: screens
screens: setup ## Write what every command shows on a terminal, and its help, into the files that tests compare with
	@$(PY) -m tests.unit.cli.test_help
	@PENSTOCK_SCREENS=write PENSTOCK_LONG=1 PENSTOCK_EXPECT=compiled $(PYTEST) -q tests/unit/cli/test_screens.py
	@$(PY) -m scripts.docs_screens

.PHONY: constraints
constraints: $(DEPS_STAMP) ## Resolve all dependencies anew and rewrite constraints.txt and requirements.lock
	@$(PY) scripts/pin_constraints.py

.PHONY: wheel
wheel: $(DEPS_STAMP) $(RELEASE_STAMP) ## Build source archive and wheels of what is committed into dist/: PYTHONS="python3.12 ..."
	@$(PY) -m scripts.wheels $(PYTHONS)

.PHONY: sbom
sbom: $(DEPS_STAMP) ## Write the list of components of a release, CycloneDX, into dist/
	@$(PY) -m scripts.sbom dist/penstock-$$($(PY) -c 'import penstock; print(penstock.__version__)').cdx.json

.PHONY: hooks
hooks: $(DEPS_STAMP) ## Install the pre-commit hooks into this clone
	@$(VENV)/bin/pre-commit install

.PHONY: setup
setup: $(DEPS_STAMP) $(HOT_STAMP) $(JAVA_STAMP) $(SPARK_STAMP) ## Make .venv, install dependencies, compile the hot modules

# The first collection compiles each test file, which takes three times as long as the collection itself. Done here once,
# a share of the files for each core, and not by every test process at the same time.
$(BYTECODE_STAMP): $(DEPS_STAMP)
	@echo '== bytecode of the tests'
	@find tests -name 'test_*.py' -not -path 'tests/interop/*' | sort \
	    | xargs -P $(CORES) -n 160 $(PY) -m pytest -n 0 -p no:cacheprovider --collect-only -q > /dev/null || true
	@touch $@

.PHONY: clean
clean: ## Remove everything that make made
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -f penstock/_hot/*.so
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV_STAMP): | scripts/ensure-python
	@echo '== virtual environment in $(VENV)'
	@python=$$(PYTHON='$(PYTHON)' scripts/ensure-python); "$$python" -m venv --clear $(VENV)
	@touch $@

# Every file that is installed has a hash in requirements.lock. The build tools come first: packages that come as source
# (pyspark) are built with them, without an isolated build, which would fetch build tools that no hash vouches for.
# Then the project itself. Its hot modules are not compiled here: that is the next step, which can be repeated alone.
INSTALL = $(PY) -m pip install --quiet --disable-pip-version-check
$(DEPS_STAMP): pyproject.toml requirements.lock $(VENV_STAMP)
	@echo '== dependencies, as locked in requirements.lock'
	@sed -n '/^\(setuptools\|cython\)==/,/[^\\]$$/p' requirements.lock > $(VENV)/build-tools.lock
	@$(INSTALL) --require-hashes --no-deps --only-binary :all: -r $(VENV)/build-tools.lock
	@$(INSTALL) --require-hashes --no-deps --no-build-isolation -r requirements.lock
	@PENSTOCK_PURE=1 $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(RELEASE_STAMP): release.lock $(DEPS_STAMP)
	@echo '== tools of a release, as locked in release.lock'
	@$(INSTALL) --require-hashes --no-deps --only-binary :all: -r release.lock
	@touch $@

# Without a compiler the rest still works, so this step warns, keeps no stamp, and is tried again next time. An
# error in a hot source itself ends the run: only the compiler is optional.
$(HOT_STAMP): setup.py $(HOT_SOURCES) $(DEPS_STAMP)
	@echo '== hot modules ($(HOT_FORM))'
	@rm -f $(VENV)/.stamp-hot-*
	@scripts/ensure-compiler $(PY) || true
	@env -u PENSTOCK_PURE $(PY) setup.py --quiet build_ext --inplace
	@if env -u PENSTOCK_PURE $(PY) -c 'import sys, penstock._hot; sys.exit(penstock._hot.form() != "compiled")'; then \
	    touch $@; \
	else \
	    scripts/banner 'THE HOT MODULES ARE NOT COMPILED' \
	        'Why is said above. Everything works, slowly: make demo and make test-pure run, make test refuses.'; \
	fi

# Java serves Spark and `make interop`; everything else goes on without.
$(JAVA_STAMP): scripts/ensure-java $(VENV_STAMP)
	@echo '== Java'
	@scripts/ensure-java --warn
	@touch $@

# Spark starts in half the time with an archive of the classes that it loads, which is made once in the user's cache.
# It works without: where the archive cannot be made the reason is told and that is all.
$(SPARK_STAMP): penstock/spark/java.py $(DEPS_STAMP) $(JAVA_STAMP)
	@echo '== Spark'
	@$(PY) -m penstock.spark.java || true
	@touch $@
