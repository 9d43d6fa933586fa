# kvitals: two commands first.  make run   make test
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
DOCKER ?= docker
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# $(call locked,FILE): what the locks of the build and FILE list, each by its hash; then the project, which looks nothing up.
locked = $(PIP) --require-hashes -r requirements-build.lock -r $(1) && $(PIP) --no-deps --no-build-isolation -e .
COMPILE = $(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
TARGETS ?=
# The tests start a hundred processes. Without its compiled modules each would compile them again, which takes a second.
unexport PYTHONDONTWRITEBYTECODE
# WORKERS=0: in one process. A file stays in one worker, in which its recordings are judged once.
WORKERS ?= 2
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# What plays recordings at real speed, or waits for a browser: nothing runs beside these.
BY_THE_CLOCK := tests/browser tests/boards/test_live.py tests/alerts/test_live.py tests/alerts/test_pipeline.py tests/alerts/test_pipeline_agent.py
BENCH_SECONDS ?= 600
FUZZ_SECONDS ?= 600
PARSERS := parser families otlp kv_events log_lines promql patterns captures rules config http1_requests http1_responses history chat
SOAK_SECONDS ?= 3600
CUTS ?= 200
FAULTS ?= 0
SIEGE_SECONDS ?= 600
PIPELINE_SECONDS ?= 720
SEED ?= 4000
N ?= 1

.PHONY: help run test check generate format goldens system ship root lab live live-others live-requests live-ledger live-knee live-prove live-twin incidents live-incidents draw drawn record bench bench-growth bench-agent bench-tap bench-otlp bench-requests bench-history bench-ledger bench-whatif fleet fleet-week fuzz chaos chaos-requests power-cuts soak sbom image lock bench-rules pipeline live-gate clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'
	@echo '  Live engines instead of the recorded one: make run TARGETS="http://host:8000"'

run: $(VENV)/.run ## verdict, API and web page on a recorded incident, or on TARGETS="http://host:8000 ..."
	@$(BIN)/kvitals run $(if $(TARGETS),$(TARGETS),--demo)

test: $(VENV)/.dev ## the tests but for the slow ones, in two processes (WORKERS=2); sets up all it needs
	@$(BIN)/python -m pytest -q $(PARALLEL) -m 'not system' tests/cases tests/captures tests/unit tests/lab

check: $(VENV)/.dev ## format, lint, types, generated files, rules, floors and names
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/python -m kvitals.dashboards.generate --check
	@$(BIN)/kvitals rules lint rules
	@$(BIN)/python -m pytest -q tests/unit/test_floors.py tests/unit/test_language.py tests/unit/test_plain_words.py

generate: $(VENV)/.dev ## regenerate what is generated: boards, rules, alerts, runbooks, reference pages
	@$(BIN)/python -m kvitals.dashboards.generate

format: $(VENV)/.dev ## format the code and regenerate what is generated
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/python -m kvitals.dashboards.generate

goldens: $(VENV)/.dev ## write the goldens anew: what pages mean, documents say, commands print (GOLDENS="triage cache": those alone)
	@$(BIN)/python -m tests.goldens --write $(GOLDENS)

system: $(VENV)/.dev ## the slow tests: recordings at length, a real Prometheus, a real Chromium (Debian: prometheus prometheus-alertmanager chromium chromium-driver)
	@$(BIN)/python -m pytest -q $(BY_THE_CLOCK)
	@$(BIN)/python -m pytest -q $(PARALLEL) tests/oracle tests/oracle_api tests/boards tests/alerts tests/fleet $(BY_THE_CLOCK:%=--ignore=%)
	@$(BIN)/python -m pytest -q $(PARALLEL) -m system tests/cases tests/captures tests/unit tests/lab

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

live-prove: lab ## helpful, useless and harmful changes of a real vLLM, EACH (12) of each kind from SEED (1): what `kvitals prove` answers; 2 hours, resumable
	@$(BIN)/python -m tests.lab.prove --kill && $(BIN)/python -m tests.lab.prove --seed $(or $(filter-out 4000,$(SEED)),1) --each $(or $(EACH),12)

live-twin: lab ## N (24) changes of a real vLLM drawn from SEED (1), predicted before they are made; two minutes each, resumable
	@$(BIN)/python -m tests.lab.twin --seed $(or $(filter-out 4000,$(SEED)),1) --number $(or $(filter-out 1,$(N)),24)

live-gate: lab ## each recorded incident with request records (or RUNS=names) played against a fresh vLLM of its configuration by `kvitals gate`; half an hour, resumable
	@$(BIN)/python -m tests.lab.gate $(RUNS)

incidents: $(VENV)/.dev ## the verdict on every recorded incident beside its label, and how right they were (INCIDENTS=names)
	@$(BIN)/python -m tests.lab.incidents replay $(INCIDENTS)

live-incidents: lab ## induce ten incidents anew on a real vLLM, or INCIDENTS=names, and diagnose them while they last
	@$(BIN)/python -m tests.lab.incidents live $(INCIDENTS)

draw: lab ## draw N incidents from SEED on, play each with every fault and the first lever pulled; hours, resumable (SEED=4000 N=10)
	@$(BIN)/python -m tests.lab.draw play --seed $(SEED) --number $(N)

drawn: $(VENV)/.dev ## the verdicts on the drawn incidents that are recorded, beside their truth
	@$(BIN)/python -m tests.lab.draw score

record: lab ## record the incidents that ship, anew
	@for s in healthy heavy_tenant caching_off few_slots working_set unique_prompts; do \
	  rm -f app/demo/$$s.kvcap && $(BIN)/python -m tests.lab record $$s --phase-seconds 60 --out app/demo || exit 1; done

bench: $(VENV)/.dev ## every budget beside its peers, into the table of docs/performance.md (half an hour); BENCH="scrape tap": some
	@$(BIN)/python -m benchmarks.report $(BENCH) --write docs/performance.md

bench-growth: $(VENV)/.dev ## what load costs as it grows: engines, tenants, series, KV events
	@$(BIN)/python -m benchmarks.growth

bench-agent: $(VENV)/.dev ## the whole agent beside a Prometheus, for BENCH_SECONDS (600)
	@$(BIN)/python -m benchmarks.agent --seconds $(BENCH_SECONDS)

fuzz: $(VENV)/.dev ## mutated inputs at every parser (FUZZ="parser promql ..." or all of them), FUZZ_SECONDS (600) each
	@$(PIP) --require-hashes -r requirements-fuzz.lock || echo 'Without atheris: mutations at random.'
	@for check in $(or $(FUZZ),$(PARSERS)); do $(BIN)/python -m tests.fuzz $$check --seconds $(FUZZ_SECONDS) || exit 1; done

power-cuts: $(VENV)/.dev ## simulated power cuts and an error at each write, under all that is reported as kept (Debian: strace); CUTS=200, FAULTS=0: every one
	@$(BIN)/python -m tests.chaos.power_cuts --cuts $(CUTS) --faults $(FAULTS)

chaos: $(VENV)/.dev ## faults around real processes and hostile inputs (Debian: faketime iproute2 prometheus prometheus-alertmanager); CHAOS=NAME: one of them; CHAOS=siege: every attack at the same time for SIEGE_SECONDS (600)
	@SIEGE_SECONDS=$(SIEGE_SECONDS) SIEGE_ATTACKS="$(SIEGE_ATTACKS)" $(BIN)/python -m tests.chaos.faults $(CHAOS)

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

bench-rules: $(VENV)/.dev ## what the rules cost a real Prometheus that has 1,000 engines (Debian: prometheus), RULES="--engines 100 --only raw"
	@$(BIN)/python -m benchmarks.rules $(RULES)

pipeline: $(VENV)/.dev ## twelve recorded incidents in 60 engines through Prometheus, Alertmanager and notify, each message beside the truth, for PIPELINE_SECONDS (720); PIPELINE="--only raw"
	@$(BIN)/python -m tests.pipeline --seconds $(PIPELINE_SECONDS) $(PIPELINE)

fleet: $(VENV)/.dev ## triage of 1,000 simulated engines in a real Prometheus (Debian: prometheus), FLEET="--engines 50 --raw"
	@$(BIN)/python -m benchmarks.fleet $(FLEET)

fleet-week: $(VENV)/.dev ## the review of 40 simulated engines for 7 days in a real Prometheus; its totals against the numbers, WEEK="--engines 4 --days 2"
	@$(BIN)/python -m benchmarks.review $(WEEK)

ship: $(VENV)/.dev ## the wheel in an empty environment, the Helm chart, units and container file by their own checkers
	@$(PIP) --require-hashes -r requirements-ship.lock
	@$(BIN)/python -m pytest -q tests/ship

root: ## as root on Debian (debootstrap): make run, make test and the wheel alone in an empty Debian, as a user without rights
	@tests/ship/root.sh

sbom: $(VENV)/.dev ## the bill of materials of what is installed to run kvitals: dist/kvitals.cdx.json (CycloneDX), from requirements-ui.lock
	@$(PIP) --require-hashes -r requirements-ship.lock && mkdir -p dist
	@$(BIN)/python -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o dist/kvitals.cdx.json requirements-ui.lock

image: ## the container image, on a base that is pinned by its digest: make image BASE=python:3.12-slim-bookworm@sha256:...
	@[[ '$(BASE)' =~ @sha256:[0-9a-f]{64}$$ ]] || { \
	  echo 'make image: BASE must name a Python image with its digest: make image BASE=python:3.12-slim-bookworm@sha256:...' >&2; exit 2; }
	@$(DOCKER) build -f deploy/container/Containerfile --build-arg BASE='$(BASE)' -t kvitals .

lock: $(VENV)/.dev ## renew the pinned versions and hashes that every installation uses
	@$(PIP) uv
	@$(COMPILE) --universal --extra dev -o requirements-dev.lock pyproject.toml
	@$(COMPILE) --universal --extra ui -c requirements-dev.lock -o requirements-ui.lock pyproject.toml
	@$(COMPILE) --universal -c requirements-dev.lock -o requirements.lock pyproject.toml
	@for group in build fuzz ship; do \
	  $(COMPILE) --group $$group -c requirements-dev.lock -o requirements-$$group.lock || exit 1; done

clean: ## remove what make made
	@rm -rf $(VENV) .lab .run .fuzz .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'kvitals needs Python 3.11 or newer as `$(PYTHON)`. On Debian 12: apt-get install python3 python3-venv. Another one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo 'Python can not make virtual environments here. On Debian: apt-get install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml requirements-build.lock requirements-ui.lock
	@echo 'Setting up ...'
	@$(call locked,requirements-ui.lock) && touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml requirements-build.lock requirements-dev.lock
	@echo 'Setting up ...'
	@$(call locked,requirements-dev.lock) && touch $@ $(VENV)/.run
