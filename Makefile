# `make demo`, `make test` and `make docs` need nothing but Python 3.11: they make their own environments.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN    := .venv/bin
STAMP  := .venv/.complete

# On a busy machine with few cores one thread per process is several times faster than two.
export OMP_NUM_THREADS ?= 1

# What `make quick` runs, without tests marked slow: the tables of the laws, and the parts that everything stands on.
LAWS  := $(addprefix tests/laws/,operators/test_laws.py operators/test_conjugate_gradient.py terms test_losses.py test_exact_step.py test_steps.py test_solvers.py test_secants.py test_continuation.py)
QUICK := $(LAWS) tests/generators/test_latents.py tests/test_batch_and_validate.py tests/test_problem.py tests/test_random.py tests/test_tree.py

.PHONY: demo quick laws test lint types check coverage format bench docs clean

demo: $(STAMP)  ## recover digits; prints a table, writes demo/demo.html
	$(BIN)/genprior demo --out demo

quick: $(STAMP)  ## style, types, and the laws on small tables: an answer in under a minute
	$(MAKE) --no-print-directory -j 3 --output-sync=target lint types laws

test: lint types check  ## everything that must hold

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(STAMP)
	$(BIN)/mypy

laws: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow' $(QUICK)

check: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

coverage: $(STAMP)  ## the tests again, with the lines that they reach: half as long again
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-fail-under=95

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMP)
	$(BIN)/genprior bench overhead

docs: .venv-docs/.complete  ## these pages, in build/docs; warnings are errors, links inside are checked
	.venv-docs/bin/python -m sphinx -W --keep-going -q -b html docs build/docs
	.venv-docs/bin/python tools/check_docs.py build/docs

clean:
	rm -rf .venv .venv-docs build docs/gallery demo .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The environment is made anew when what it is made from changes; torch is pinned in constraints.txt (see there why).
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

.venv-docs/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@
