# The two commands for a fresh machine: `make demo` and `make test`. Each sets up what it needs first.
PYTHON ?= $(shell for each in python3.13 python3.12 python3.11 python3; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
BIN := .venv/bin

.PHONY: demo test check setup bench soak proto clean

demo: .venv/.demo
	@$(BIN)/shardgate demo

test: check
	$(BIN)/python -m pytest $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

setup: .venv/.test

.venv/.demo: pyproject.toml tools/setup.sh
	@PYTHON='$(PYTHON)' tools/setup.sh demo
	@touch $@

.venv/.test: pyproject.toml tools/setup.sh
	@PYTHON='$(PYTHON)' tools/setup.sh test
	@touch .venv/.demo $@

bench: setup
	$(BIN)/python -m bench $(ARGS)

# Hostile bytes, faults and churn for SOAK_SECONDS each, beside a well-behaved client.
SOAK_SECONDS ?= 600
soak: setup
	SHARDGATE_FUZZ_SECONDS=$(SOAK_SECONDS) SHARDGATE_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest --timeout=0 -m soak $(ARGS)

proto: setup
	$(BIN)/python tools/proto.py

clean:
	rm -rf .venv .cache build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
