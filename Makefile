# Two commands do it all on a fresh machine: `make demo` and `make test`.
# PYTHON chooses the interpreter that the environments are made with (3.10 or newer).
# JOBS is the number of test processes.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
VLLM_ENVS := $(addprefix .venvs/,vllm-0.16 vllm-0.32 speculators-0.4 speculators-0.9)

.PHONY: demo test check fmt lint types contracts demo-env vllm-env matrix bench screenshots clean

demo: $(STAMP)
	@$(BIN)/eagle3-console demo

test: $(STAMP) demo-env
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(TESTS)

check: lint types contracts test

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo-env: $(STAMP)
	@$(BIN)/eagle3-console demo --prepare-only

vllm-env: $(STAMP)
	@bash tests/vllm/make_env.sh $(VLLM_ENVS)

# every model on every vLLM and engine, into docs/extraction.md; MATRIX="llama@vllm-0.32 ..." for some
matrix: $(STAMP) demo-env vllm-env
	@PYTHONPATH=tests $(BIN)/python -m support.vllm_table $(MATRIX)

bench: $(STAMP)
	$(BIN)/python -m bench

screenshots: $(STAMP)
	$(BIN)/python docs/make_screenshots.py

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "eagle3-console needs Python 3.10 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing eagle3-console and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
