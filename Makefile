# `make demo` shows the main job, `make check` is the one test command; both set up .venv on first use.
# `make check BIN=/some/venv/bin` uses another environment as it is, and installs nothing there.
PYTHON ?= python3
OWN := .venv/bin
BIN ?= $(OWN)
READY := $(if $(filter $(OWN),$(BIN)),$(OWN)/synth)

.PHONY: check test lint demo golden bench bench-all accuracy networks

check: lint test

test: $(READY)
	CI=1 $(BIN)/python -m pytest -q

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

demo: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

golden: $(READY)
	$(BIN)/python -m pytest -q tests/test_golden.py --update-golden

bench: $(READY)
	$(BIN)/python -m benchmarks.suite

bench-all: bench
	$(BIN)/python -m benchmarks.suite.overlap
	$(BIN)/python benchmarks/planning.py -o benchmarks/results/planning.md

accuracy: $(READY)
	$(BIN)/python -m synth.oracle.accuracy

networks: $(READY)
	$(BIN)/python benchmarks/networks.py

$(OWN)/synth: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv && $(OWN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]' && touch $@
