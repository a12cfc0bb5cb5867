# Each target does all of its own set-up: in a fresh clone `make demo` or `make test` is enough.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

BIN := .venv/bin
STAMP := .venv/.installed
PACKAGES := schemas backends repository streams consumers deploy
# Test processes side by side; each that meets a Kafka test starts one broker of its own. Mostly they wait for brokers,
# sessions and kills: on two cores a third one halves the time.
JOBS ?= 3
# What `make chaos` plays: one of its faults, how often, in which delivery mode; nothing plays all.
FAULT ?=
TIMES ?=
MODE ?=
# Calls that `make fuzz` makes.
CASES ?= 100000
# Storms that `make simulate` plays of each kind.
SEEDS ?= 10000

# Interpreters come from the machine, never from the network.
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
# What is imported is compiled once, not by each of a hundred test processes, whatever the machine says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-speech demo-topics test compat simulate chaos fuzz check lint format bench wheel requirements clean

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: $(STAMP) ## Make .venv with everything that is pinned (PYTHON=/path chooses the interpreter).

$(STAMP): pyproject.toml requirements/dev.txt requirements/uv.txt scripts/find_python.sh
	@python="$$(scripts/find_python.sh)" || exit 1; \
	if ! PYTHON=$(BIN)/python scripts/find_python.sh >/dev/null 2>&1; then \
	    echo "Making .venv with $$python"; \
	    rm -rf .venv && "$$python" -m venv .venv; \
	fi
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/uv pip install -q --require-hashes -r requirements/dev.txt
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Serve a real model, ask it about a thousand real files through Kafka's protocol, compare.
	@$(BIN)/python -m headrace.deploy.demo

demo-speech: $(STAMP) ## Listen to 64 streams of real speech, kill the worker in the middle, compare every step.
	@$(BIN)/python -m headrace.deploy.demo_speech $(ARGS)

demo-topics: $(STAMP) ## Put a model on a topic of Avro records by one mapping file, from Java, while the schema evolves.
	@$(BIN)/python -m headrace.deploy.demo_topics $(ARGS)

test: $(STAMP) ## Run every test, those on a real Apache Kafka too (Java 17 and Maven).
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

compat: $(STAMP) ## Ask Headrace, and Triton where HEADRACE_PEERS has it, the same; writes docs/COMPATIBILITY.md.
	$(BIN)/python -m pytest -q -p no:randomly tests/compat --compat-page docs/COMPATIBILITY.md $(ARGS)

simulate: $(STAMP) ## Play storms of crashes, zombies and rebalances on virtual time (SEEDS=100000).
	HEADRACE_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n $(JOBS) tests/simulation $(ARGS)

chaos: $(STAMP) ## Break brokers, workers, networks and a disk under load on three brokers (FAULT, TIMES, MODE).
	@PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python -m chaos.run \
	    $(if $(FAULT),--fault $(FAULT)) $(if $(TIMES),--times $(TIMES)) $(if $(MODE),--mode $(MODE))

fuzz: $(STAMP) ## Call the gateway over HTTP and gRPC in every wrong way there is (CASES=100000).
	HEADRACE_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -q -s tests/fuzz $(ARGS)

check: lint ## Format, lint, types, layers, unit and property tests: before each commit.
	$(BIN)/python -m pytest -q -n $(JOBS) tests/unit tests/properties

lint: $(STAMP) links ## Format, lint, types and layers, without tests.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Let ruff format the tree and mend what it can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Static tools cannot follow the editable install's import hook, so they read the packages through links.
.PHONY: links
links:
	@mkdir -p .typing/headrace
	@for package in $(PACKAGES); do ln -sfn ../../$$package .typing/headrace/$$package; done

bench: $(STAMP) ## Measure against the bars, one JSON line per figure (ONLY=name for one benchmark).
	@$(BIN)/python benchmarks/run.py $(if $(ONLY),--only $(ONLY))

wheel: $(STAMP) ## Build the sdist, and the wheel from it, into dist/.
	@rm -rf build dist
	$(BIN)/python -m build --no-isolation

requirements: $(STAMP) ## Compile the pins again, keeping those that still fit (UPGRADE=1 takes the newest).
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    $(if $(UPGRADE),--upgrade) pyproject.toml --extra demo --extra s3 --extra faust --extra librdkafka --group dev -o requirements/dev.txt

clean: ## Remove what the other targets made, .venv included.
	rm -rf .venv .typing build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
