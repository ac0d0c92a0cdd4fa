# The door to everything. Each target sets up what it needs in $(VENV), from nothing if need be.
# Choose an interpreter with PY=/path/to/python3, do without uv with NO_UV=1.

VENV ?= .venv
DOCS_VENV ?= .venv-docs
# The folders of tests of what pyproject.toml measures.
COVERED = tests/bare tests/block_manager
PYTHON = "$(VENV)/bin/python"
SETUP = @VENV="$(VENV)" PY="$(PY)" NO_UV="$(NO_UV)" sh tools/setup.sh

.DEFAULT_GOAL := help
.PHONY: help demo test slow soak check coverage bench smoke docs venv clean setup-run setup-dev

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

demo: setup-run ## start nodes, push and pull real data, kill one, prove that nothing was lost, ask Spark
	@VENV="$(VENV)" PY="$(PY)" NO_UV="$(NO_UV)" sh tools/spark.sh --optional
	@$(PYTHON) -m stream_node demo

test: setup-dev ## run the tests, on all cores; more options: make test ARGS='-x -k wal'
	@$(PYTHON) -m pytest -q -n auto --dist loadfile $(ARGS)

slow: setup-dev ## run the tests that take seconds each, on all cores
	@$(PYTHON) -m pytest -q -n auto --dist loadfile -m "slow and not soak" $(ARGS)

soak: setup-dev ## run the tests that take minutes
	@$(PYTHON) -m pytest -q -m soak $(ARGS)

check: setup-dev ## formatting, lint, types and locks: what CI runs beside the tests
	@VENV="$(VENV)" ./check

coverage: setup-dev ## print how many branches of two packages their tests reach; fails below today's figure
	@HYPOTHESIS_PROFILE=ci $(PYTHON) -m coverage run -m pytest -q -n 0 $(COVERED)
	@$(PYTHON) -m coverage report

bench: setup-dev ## measure a node on this machine, beside its peers, for docs/performance.md
	@$(PYTHON) -m bench all --peer all --compiled --output bench/results/bench.json $(ARGS)
	@$(PYTHON) -m bench.draw_plots bench/results/bench.json docs/plots
	@$(PYTHON) -m bench.write_tables bench/results/bench.json docs/performance.md

smoke: setup-run ## a bench of half a minute, to see that it runs
	@$(PYTHON) -m bench all --quick --peer all

docs: ## build the documentation site into build/site
	@VENV="$(DOCS_VENV)" PY="$(PY)" NO_UV="$(NO_UV)" sh tools/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 "$(DOCS_VENV)/bin/python" -m mkdocs build --strict --config-file tools/mkdocs.yml
	@echo "open build/site/index.html"

venv: setup-dev ## only set up

clean: ## remove caches and builds; the environment stays
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

setup-run:
	$(SETUP) run

setup-dev:
	$(SETUP) dev
