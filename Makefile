PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
INSTALLED := $(VENV)/installed

.PHONY: help install demo test test-slow test-all check format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/' | expand -t 12

install: $(INSTALLED) ## Install the package and its tools into .venv

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED) ## Render a small TartanAir tree, pack it, verify it, stream it, draw a clip
	$(BIN)/python -m benchmarks.tartanair.demo $(DEMO)

test: $(INSTALLED) ## Run the fast tests
	$(BIN)/python -m pytest

test-slow: $(INSTALLED) ## Run the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-all: $(INSTALLED) ## Run every test
	$(BIN)/python -m pytest -m ''

check: $(INSTALLED) ## Lint, check the format and the types, as CI does
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## Put the code into its format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove what make has made
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
