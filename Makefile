# `make demo` shows the main job, `make check` is the one test command; both set up .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: check test lint demo golden bench

check: lint test

test: $(BIN)/synth
	CI=1 $(BIN)/python -m pytest -q

lint: $(BIN)/synth
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

demo: $(BIN)/synth
	PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

golden: $(BIN)/synth
	$(BIN)/python -m pytest -q tests/test_golden.py --update-golden

bench: $(BIN)/synth
	$(BIN)/python benchmarks/planning.py

$(BIN)/synth: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]' && touch $@
