# make train | test | check | fix | bench    (everything is set up in .venv the first time)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORDS ?=

.PHONY: train test check fix bench controls results wheel-test clean
.DEFAULT_GOAL := train

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("miles_agents needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): a few minutes the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'torch==2.13.*'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

train: $(STAMP)
	$(BIN)/python -m miles_agents.train env=python_math $(WORDS)

test: $(STAMP)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -m 'not slow' $(WORDS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(WORDS)

controls: $(STAMP)
	$(BIN)/python -m benchmarks.controls $(WORDS)

wheel-test: $(STAMP)
	$(BIN)/python -m pytest -m slow tests/test_wheel.py

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
