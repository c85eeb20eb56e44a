# Everything that these targets make stays inside this folder.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
OUT ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
export MPLCONFIGDIR := $(CURDIR)/.fedface/matplotlib
export FLWR_HOME := $(CURDIR)/.fedface/flwr
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1

.PHONY: demo test lint format install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --no-cache-dir --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/fedface-compare --out $(OUT) experiment=demo strategy=fedface,fedavg,central

test: install
	mkdir -p .fedface
	$(BIN)/python -m pytest --basetemp=.fedface/pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .fedface runs multirun build dist *.egg-info
