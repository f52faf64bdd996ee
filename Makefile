# The two commands of a fresh machine: `make demo` and `make test`. Both set up first what is missing.
PYTHON ?= $(shell for each in python3.13 python3.12 python3.11 python3; do $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
BIN := .venv/bin
STAMP := .venv/.set-up

.PHONY: setup demo test check bench soak proto clean

setup: $(STAMP)

$(STAMP): pyproject.toml tools/setup.sh
	@PYTHON='$(PYTHON)' bash tools/setup.sh
	@touch $(STAMP)

demo: setup
	@$(BIN)/shardgate demo

test: check
	$(BIN)/python -m pytest $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m bench $(ARGS)

# Long runs: fuzz and faults for SOAK_SECONDS each.
SOAK_SECONDS ?= 600
soak: setup
	SHARDGATE_FUZZ_SECONDS=$(SOAK_SECONDS) SHARDGATE_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest --timeout=0 -m soak $(ARGS)

# Needs grpcio-tools 1.71, whose generated code runs with every protobuf from 5.29 on.
proto: setup
	$(BIN)/python tools/proto.py

clean:
	rm -rf .venv .cache build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
