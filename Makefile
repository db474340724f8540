SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := sb3_pois tests examples benchmarks

.PHONY: demo test slow paper lint types format clean

# Train on a real task, save the model and its learning curve, reload and evaluate it
demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Everything that has to hold before a change lands
test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Learning runs that take minutes
slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -v

# The paper's tasks with the shipped hyperparameters, in paper/: hours
paper: $(STAMP)
	$(BIN)/python benchmarks/zoo.py --folder paper --jobs 2 --eval-timesteps 25000 --envs POIS/Cartpole-v0 POIS/Acrobot-v0 \
		POIS/MountainCar-v0 POIS/InvertedPendulum-v0 POIS/InvertedDoublePendulum-v0 POIS/Swimmer-v0

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/black --check -q $(SOURCES)

types: $(STAMP)
	$(BIN)/mypy sb3_pois tests

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/black -q $(SOURCES)

$(STAMP): requirements.txt setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet -e ".[envs,plots,tests]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
