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

.PHONY: stress test unit lint types bench wheels compose-test clean

stress: $(READY)
	$(BIN)/handoff stress $(ARGS)

# What starts no processes runs two at a time; what does, one by one, since it loads the machine by itself.
# Exit code 5: what PYTEST_ARGS selects is in the other half.
TESTS := $(BIN)/python -m pytest --integration $(PYTEST_ARGS)
HALF := $(if $(PYTEST_ARGS),|| [ $$? = 5 ])

test: $(READY)
	$(TESTS) -n 2 -m "not integration and not stress and not release" $(HALF)
	$(TESTS) -m "integration and not stress and not release" $(HALF)

unit: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/hadolint Dockerfile

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/handoffs.py $(ARGS)

# Everything the image needs, for a build without a network or where the default index has no CPU build of torch.
wheels: $(READY)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest wheels --only-binary :all: --python-version 3.11 \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --constraint constraints.txt "$$(grep '^torch==' constraints.txt)" "setuptools>=77" \
		$$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'])")

# Says SKIPPED, and make fails, where no Docker engine can be had.
compose-test:
	bash .ci/engine.sh $(PYTHON) tests/compose/run.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
