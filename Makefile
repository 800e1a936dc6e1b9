# `make demo` and `make test` need nothing but Python 3.11: they make their own environment in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN    := .venv/bin
STAMP  := .venv/.complete

# On a busy machine with few cores one thread per process is several times faster than two.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types check format bench clean

demo: $(STAMP)  ## recover digits; prints a table, writes demo/demo.html
	$(BIN)/genprior demo --out demo

test: lint types check  ## everything that must hold

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(STAMP)
	$(BIN)/mypy

check: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-fail-under=95

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMP)
	$(BIN)/genprior bench overhead

clean:
	rm -rf .venv demo .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The environment is made anew when what it is made from changes; torch is pinned in constraints.txt (see there why).
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@
