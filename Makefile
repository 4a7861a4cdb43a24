# Everything a person or CI runs. `make` alone lists it. Nothing here is cleverer than the programs that it calls.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/forebay
export PATH := $(PATH):$(CACHE)/uv/bin
PY := .venv/bin/python
WARM ?= 1
CLUSTER ?= local
SEED ?= 1

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help
.venv/.stamp: pyproject.toml uv.lock
	@command -v uv >/dev/null || { \
	  echo "installing uv with pip into $(CACHE)/uv"; \
	  python3 -m venv "$(CACHE)/uv" 2>/dev/null || { \
	    echo "installing the Debian package python3-venv"; apt-get update -qq && apt-get install -y -qq python3-venv && python3 -m venv "$(CACHE)/uv"; }; \
	  "$(CACHE)/uv/bin/pip" install -q uv; }
	@echo "locked Python environment: .venv (uv sync)"
	@uv sync --frozen --all-extras -q
	@touch $@

env: .venv/.stamp ## the locked Python environment in .venv
.PHONY: env

demo: env ## build and start a Kubernetes, install Forebay, replay traffic, score (WARM=0: without the warm pool; CLUSTER=current)
	@$(PY) -m e2e.demo --cluster $(CLUSTER) --seed $(SEED) $(if $(filter 0,$(WARM)),--no-warm,--warm)
.PHONY: demo

tools: env ## Kubernetes, CoreDNS and helm, built into the cache (minutes, once)
	@$(PY) -m e2e.cluster build >/dev/null
.PHONY: tools

JUDGEMENT := tests/core tests/golden tests/properties
unit: tools ## tests that need no cluster and no engine; the judgement at 100 % branch coverage
	@$(PY) -m pytest -q $(JUDGEMENT) --cov=forebay.core --cov-branch --cov-report=term:skip-covered --cov-fail-under=100
	@$(PY) -m pytest -q -m "not cluster and not vllm" tests $(addprefix --ignore=,$(JUDGEMENT))
.PHONY: unit

explore: env ## properties with 40 times the examples, new ones at each run: a failing one becomes a test
	@$(PY) -m pytest -q --hypothesis-profile=explore --timeout 1800 tests/properties
.PHONY: explore

e2e: tools ## tests on a real Kubernetes, one shared cluster, the compressed demo included
	@$(PY) -m pytest -q -m "cluster and not vllm" tests
.PHONY: e2e

e2e-vllm: tools ## tests with a real vLLM on CPU (6.2 GB the first time), alone and in the cluster
	@$(PY) -m e2e.vllm env >/dev/null
	@$(PY) -m pytest -q -m vllm tests
.PHONY: e2e-vllm

test: env verify unit e2e e2e-vllm ## all tests, the same that .ci/run runs
.PHONY: test

test-all: test demo ## everything, the five-minute demo with and without the warm pool included
	@$(PY) -m e2e.demo --seed $(SEED) --no-warm; code=$$?; \
	  test $$code -eq 3 || { echo "without the warm pool the demo should break its rule (3), and ended with $$code"; exit 1; }
.PHONY: test-all

verify: env ## generated files current, lint, types, layers, dependencies, clean tree
	@$(PY) operator/dev/verify.py
.PHONY: verify

generate: env ## write the generated files: CRDs, chart schema, reference
	@$(PY) operator/dev/generate.py
.PHONY: generate

bench: tools ## measure: tick, metrics page, picker, promotion, simulator, scale (figures with this machine's name; nothing is asserted)
	@$(PY) operator/dev/bench.py
.PHONY: bench

clean: ## remove build/ and .venv; the cache (~/.cache/forebay) stays
	@rm -rf build .venv
.PHONY: clean
