# make train | test | check | fix | bench | bench-sandbox | bench-answers | bench-envs | sandbox-image    (everything is set up in .venv the first time)
# PYTHON=python3.12 chooses the interpreter; WORDS='steps=20 seed=1' is added to the command; TORCH_ARGS goes to pip
# when it installs PyTorch, e.g. TORCH_ARGS='--index-url https://download.pytorch.org/whl/cpu' for a build without CUDA.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
WORDS ?=
TORCH_ARGS ?=

.PHONY: train test check fix bench bench-sandbox bench-answers bench-envs controls setup sandbox-image clean
.DEFAULT_GOAL := train

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("miles_agents needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV): a few minutes the first time"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -c constraints.txt $(TORCH_ARGS) 'torch==2.13.*'
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(STAMP)

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

# Other projects' sandboxes are measured in a virtual environment of their own.
PEERS := .venv-peers
$(PEERS)/.installed: benchmarks/peers.txt
	@$(PYTHON) -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip -qq --disable-pip-version-check install -r benchmarks/peers.txt
	@touch $@

bench-sandbox: $(STAMP) $(PEERS)/.installed
	$(BIN)/python -m benchmarks.sandboxes --peers-python $(PEERS)/bin/python $(WORDS)

# Other projects' checkers of answers, and their environments, have virtual environments of their own, too.
ANSWER_PEERS := .venv-answers
$(ANSWER_PEERS)/.installed: benchmarks/answers_peers.txt
	@$(PYTHON) -m venv --clear $(ANSWER_PEERS)
	@$(ANSWER_PEERS)/bin/python -m pip -qq --disable-pip-version-check install --no-deps -r benchmarks/answers_peers.txt
	@touch $@

bench-answers: $(STAMP) $(ANSWER_PEERS)/.installed
	$(BIN)/python -m benchmarks.answers --peers-python $(ANSWER_PEERS)/bin/python $(WORDS)

bench-envs: $(STAMP)
	$(BIN)/python -m benchmarks.envs $(WORDS)

controls: $(STAMP)
	$(BIN)/python -m benchmarks.controls $(WORDS)

# What sandbox=docker runs in.
SANDBOX_IMAGE = miles-agents/sandbox:$(shell cat docker/sandbox.version)
sandbox-image:
	@command -v docker >/dev/null || { echo "no docker command here: apt-get install docker.io, or see https://docs.docker.com/engine/install/"; exit 1; }
	@docker build --build-arg VERSION=$(shell cat docker/sandbox.version) --tag $(SANDBOX_IMAGE) \
		--file docker/sandbox.Dockerfile docker \
		|| { echo "not built. Where no registry is reachable, type: sudo -E docker/build_offline.sh"; exit 1; }

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
