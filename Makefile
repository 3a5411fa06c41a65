# Two commands set everything up on a fresh machine: `make stress` (the main job) and `make test`.
#
# TORCH_INDEX: an index with CPU wheels of torch, where the default one would give a CUDA build of several GB:
#     make stress TORCH_INDEX=<address of an index with CPU wheels>

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: stress test unit lint types bench clean

stress: $(READY)
	$(BIN)/handoff stress $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -m "not stress and not release" $(PYTEST_ARGS)

unit: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/handoffs.py $(ARGS)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
