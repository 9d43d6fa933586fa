# kvitals: two commands first.  make run   make test
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements.lock
PACKAGES := series kvcache rules agent diagnoser dashboards ui
TARGETS ?=
BENCH_SECONDS ?= 600
FUZZ_SECONDS ?= 600
PARSERS := parser families otlp kv_events log_lines promql patterns captures rules config history
SOAK_SECONDS ?= 3600

.PHONY: help run test check format system ship root lab live live-others live-requests live-ledger live-knee incidents live-incidents record bench bench-growth bench-agent bench-tap bench-otlp bench-requests bench-history bench-ledger bench-whatif fleet fleet-week fuzz chaos chaos-requests soak lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'
	@echo '  Live engines instead of the recorded one: make run TARGETS="http://host:8000"'

run: $(VENV)/.run ## verdict, API and web page on a recorded incident, or on TARGETS="http://host:8000 ..."
	@$(BIN)/kvitals run $(if $(TARGETS),$(TARGETS),--demo)

test: $(VENV)/.dev ## the tests; sets up all it needs
	@$(BIN)/python -m pytest -q tests/unit tests/cases tests/captures tests/lab

check: $(VENV)/.dev ## format, lint, types, generated files
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/python -m dashboards.generate --check

format: $(VENV)/.dev ## format the code and regenerate what is generated
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/python -m dashboards.generate

system: $(VENV)/.dev ## tests against a real Prometheus and a real Chromium (Debian: prometheus prometheus-alertmanager chromium chromium-driver)
	@$(BIN)/python -m pytest -q tests/oracle tests/oracle_api tests/boards tests/alerts tests/fleet tests/browser

lab: $(VENV)/.dev ## install the lab: real vLLM on the CPU, in .lab/
	@$(BIN)/python -m tests.lab install && $(BIN)/python -m tests.lab list

live: lab ## drive each situation on a real vLLM and demand the right verdict
	@$(BIN)/python -m tests.lab live $(SCENARIOS)

live-others: $(VENV)/.dev ## the same on SGLang, Dynamo and a vLLM pair over NIXL (4 GB more)
	@$(BIN)/python -m tests.lab install vllm nixl sglang dynamo
	@$(BIN)/python -m tests.lab live $(or $(SCENARIOS),--system sglang --system pd --system dynamo)

live-requests: $(VENV)/.dev ## each request's record beside its client's clock and ledger, live
	@$(BIN)/python -m tests.lab install vllm nixl sglang sglang-traces router
	@$(BIN)/python -m tests.lab requests $(PLAYS)

live-ledger: $(VENV)/.dev ## the block ledger, cascades and what-if beside what real engines did, live
	@$(BIN)/python -m tests.lab install vllm sglang sglang-traces
	@$(BIN)/python -m tests.lab ledger prove $(PROOFS)

live-knee: lab ## the knee and C_max of a real vLLM from one sweep's history, beside other sweeps (18 minutes)
	@$(BIN)/python -m tests.lab knee

incidents: $(VENV)/.dev ## the verdict on every recorded incident beside its label, and how right they were (INCIDENTS=names)
	@$(BIN)/python -m tests.lab.incidents replay $(INCIDENTS)

live-incidents: lab ## induce ten incidents anew on a real vLLM, or INCIDENTS=names, and diagnose them while they last
	@$(BIN)/python -m tests.lab.incidents live $(INCIDENTS)

record: lab ## record the incidents that ship, anew
	@for s in healthy heavy_tenant caching_off few_slots working_set unique_prompts; do \
	  rm -f ui/demo/$$s.kvcap && $(BIN)/python -m tests.lab record $$s --phase-seconds 60 --out ui/demo || exit 1; done

bench: $(VENV)/.dev ## every budget beside its peers, into the table of docs/performance.md (half an hour); BENCH="scrape tap": some
	@$(BIN)/python -m benchmarks.report $(BENCH) --write docs/performance.md

bench-growth: $(VENV)/.dev ## what load costs as it grows: engines, tenants, series, KV events
	@$(BIN)/python -m benchmarks.growth

bench-agent: $(VENV)/.dev ## the whole agent beside a Prometheus, for BENCH_SECONDS (600)
	@$(BIN)/python -m benchmarks.agent --seconds $(BENCH_SECONDS)

fuzz: $(VENV)/.dev ## mutated inputs at every parser (FUZZ="parser promql ..." or all of them), FUZZ_SECONDS (600) each
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c $(LOCK) -e '.[fuzz]' || echo 'Without atheris: mutations at random.'
	@for check in $(or $(FUZZ),$(PARSERS)); do $(BIN)/python -m tests.fuzz $$check --seconds $(FUZZ_SECONDS) || exit 1; done

chaos: $(VENV)/.dev ## faults around real processes and hostile inputs (Debian: faketime iproute2 prometheus prometheus-alertmanager); CHAOS=NAME: one of them
	@$(BIN)/python -m tests.chaos.faults $(CHAOS)

soak: $(VENV)/.dev ## the whole agent under load for SOAK_SECONDS (3600): memory that stays flat, no look missed, nothing dropped
	@$(BIN)/python -m benchmarks.soak --seconds $(SOAK_SECONDS)

bench-tap: $(VENV)/.dev ## what the tap adds to requests, beside nginx where it is installed
	@$(BIN)/python -m benchmarks.tap

bench-otlp: $(VENV)/.dev ## spans to parts of requests, directly and over gRPC and HTTP
	@$(BIN)/python -m benchmarks.otlp

bench-requests: $(VENV)/.dev ## spans to requests, from bytes to records, tenants and series
	@$(BIN)/python -m benchmarks.requests

chaos-requests: $(VENV)/.dev ## hostile clients, exporters and logs at the running agent and tap, in small; CHAOS=--full: 1 GB, 100,000 tenants
	@$(BIN)/python -m tests.chaos.requests $(CHAOS)

bench-whatif: $(VENV)/.dev ## block references replayed a second, on TRACE=file.jsonl where given
	@$(BIN)/python -m benchmarks.whatif $(TRACE)

bench-ledger: $(VENV)/.dev ## KV events from the wire through the ledger
	@$(BIN)/python -m benchmarks.ledger

bench-history: $(VENV)/.dev ## what history takes: bytes a day, CPU, queries, kills; beside Prometheus' storage
	@$(BIN)/python -m benchmarks.history

fleet: $(VENV)/.dev ## triage of 1,000 simulated engines in a real Prometheus (Debian: prometheus), FLEET="--engines 50 --raw"
	@$(BIN)/python -m benchmarks.fleet $(FLEET)

fleet-week: $(VENV)/.dev ## the review of 40 simulated engines for 7 days in a real Prometheus; its totals against the numbers, WEEK="--engines 4 --days 2"
	@$(BIN)/python -m benchmarks.review $(WEEK)

ship: $(VENV)/.dev ## the wheel in an empty environment, the Helm chart, units and container file by their own checkers
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c $(LOCK) -e '.[ship]'
	@$(BIN)/python -m pytest -q tests/ship

root: ## as root on Debian (debootstrap): make run, make test and the wheel alone in an empty Debian, as a user without rights
	@tests/ship/root.sh

lock: $(VENV)/.dev ## renew the pinned versions that CI installs
	@$(BIN)/python -m pip install -q uv && $(BIN)/uv pip compile -q --all-extras --universal --no-emit-index-url --no-header -o $(LOCK) pyproject.toml

clean: ## remove what make made
	@rm -rf $(VENV) .lab .run .fuzz .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'kvitals needs Python 3.11 or newer as `$(PYTHON)`. On Debian 12: apt-get install python3 python3-venv. Another one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo 'Python can not make virtual environments here. On Debian: apt-get install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml $(LOCK)
	@echo 'Setting up ...'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c $(LOCK) -e '.[ui]' && touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml $(LOCK)
	@echo 'Setting up ...'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c $(LOCK) -e '.[dev]' && touch $@ $(VENV)/.run
