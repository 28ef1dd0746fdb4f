# Two commands for users: `make serve` and `make test`. CI runs `make check test`.
PYTHON ?= python3
PORT ?= 8000
HOST ?= 127.0.0.1
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help serve test check format demo bench-cuda clean

help:  ## Say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Triptych needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "creating the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch first and pinned: any looser requirement would choose its own, much larger build.
$(RUNTIME): $(BIN)/python pyproject.toml setup.py constraints.txt $(wildcard models/ops/native/*)
	@echo "installing Triptych"
	@$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV): $(RUNTIME)
	@echo "installing what tests and checks need"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

serve: $(RUNTIME)  ## Install if needed, then serve the demo models (PORT=8000, ARGS="name=/path ...")
	@$(BIN)/triptych serve --host $(HOST) --port $(PORT) $(ARGS)

test: $(DEV)  ## Run the tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

check: $(DEV)  ## Lint, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(DEV)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

demo: $(DEV)  ## Train the demo models from scratch (under 40 minutes on two cores)
	@$(BIN)/python -m weights.demo.train

bench-cuda: $(DEV)  ## Decode rate of a 1B LLaMA shape as a share of the bandwidth floor (needs a CUDA device)
	@$(BIN)/python -m benchmarks.decode_rate $(ARGS)

clean:  ## Remove the environment and build products
	@rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache models/ops/*.so
