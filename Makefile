# Every target makes its own virtual environment in .venv; PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo serve test test-full lint explore interop clean

demo: $(VENV)/.demo
	$(BIN)/trio-duplex demo --out demo_out

serve: $(VENV)/.demo
	$(BIN)/trio-duplex serve --deploy deploy/demo.yaml

# One short line of dots and the summary; the slow suites live in test-full. Many tests wait for most of their time, so
# three workers share the cores; a file stays with one worker, because models are loaded once a file. What promises to
# be quick, or answers a person in time, runs after that and alone: its bounds are of wall-clock time.
PYTEST = $(BIN)/python -m pytest -q
SHARED = -n 3 --dist loadfile

test: $(VENV)/.dev lint
	$(PYTEST) $(SHARED) -m "not slow and not realtime"
	$(PYTEST) -m "realtime and not slow"
	scripts/oracle_tests.sh $(BIN)/python -k "mimi_codes or whole_frames"

# The second line compares PersonaPlex with the reference package, which it installs beside the environment (.oracle);
# a part of that is in `test`, too.
test-full: $(VENV)/.dev
	$(PYTEST) $(SHARED) -m "slow"
	scripts/oracle_tests.sh $(BIN)/python

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) -e '.[dev]'
	touch $@

# Random cancellation of random scenarios, as long as asked: make explore MINUTES=30
explore: $(VENV)/.dev
	$(BIN)/python -m trio_duplex.testing.explore --minutes $(or $(MINUTES),5)

# Stock clients in environments of their own (pip, and npm with Node 20 or newer): about seven minutes once installed.
interop: $(VENV)/.demo
	$(BIN)/python interop/run.py

clean:
	rm -rf interop/.venv interop/node_modules interop/out .oracle $(VENV) demo_out build dist .pytest_cache .mypy_cache .ruff_cache
