# make demo   graft the bundled fixture's head onto its Q8_0 trunk, verify it, print the report
# make test   everything the tests need, then all of them
# make lint   formatting, lints, types

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What is imported is compiled then: to do it here, for all that torch brings, takes longer.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt
DEMO := .demo
JOBS ?= 2

.PHONY: demo test lint format clean

demo: $(VENV)/.demo
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(BIN)/mtptools inspect fixtures/qwen35/gguf/trunk-Q8_0.gguf
	$(BIN)/mtptools extract fixtures/qwen35/gguf/model-BF16.gguf -o $(DEMO)/head.gguf --bare
	$(BIN)/mtptools graft fixtures/qwen35/gguf/trunk-Q8_0.gguf $(DEMO)/head.gguf -o $(DEMO)/grafted-Q8_0.gguf
	$(BIN)/mtptools verify $(DEMO)/grafted-Q8_0.gguf --parity --against fixtures/qwen35/gguf/model-BF16.gguf

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff format --check mtptools tests benchmarks fixtures
	$(BIN)/ruff check mtptools tests benchmarks fixtures
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format mtptools tests benchmarks fixtures
	$(BIN)/ruff check --fix mtptools tests benchmarks fixtures

# torch first and by itself: a later request for a range is then satisfied and brings nothing else.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[decoder]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[decoder,fast,llama,dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis
