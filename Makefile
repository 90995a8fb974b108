# Every target does all of its own set-up: python3 (3.11 or newer), python3-venv and make are enough.
#
#   PYTHON=python3.12       another interpreter
#   WHEELHOUSE=wheelhouse   install from a folder of wheels, without a network (make demo, make install)
#   DESTDIR=/a/folder       stage what is installed there, for a package (make install)
#   PREFIX=/usr             where unit, command and manual go; else /usr/local (make install)
#   FOR='3.13 aarch64'      Python and processor of the machine that it is for, if not this one's (make wheelhouse)
#   ARCH=arm64              likewise, amd64 or arm64 (make packages)
#   EXTRAS=apprise          more optional parts of gpuagent: apprise, otlp, plot (make install; top is always there)
#   PURGE=1                 configuration and state, too (make uninstall)
#   SAMPLE=5f4c2da          a part of the rest, another for each commit, as CI does (make test)
#   OUT=a/folder            where the results go; else gpu-report (make test-gpu)
#   ROUNDS=1000             how often (make leak-gate)
#   RELEASE=a/folder        where the release goes; else dist (make release, make packages)
#   GPU_PYTHON=3.12         the Python of the machine with the GPU (make gpu-wheels)

.DEFAULT_GOAL := help
.PHONY: help release packages demo install uninstall test test-fast test-all test-failed test-python test-gpu lint bench wheelhouse gpu-wheels clean demo-venv dev-venv apps-venv leakbench leakbench-load leak-gate docs torture audit

VENV := .venv
BIN := $(VENV)/bin
# Installed from wheels, the working tree is not what runs: that environment is kept apart.
DEMO_VENV := $(if $(WHEELHOUSE),.venv-wheelhouse,$(VENV))
PYTEST := $(BIN)/python -m pytest
# One file's tests stay together: they share what they have started. Long files first: tests/conftest.py orders them.
ON_ALL_CORES := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# Those that take their counts from tests/torture/__init__.py.
TORTURE := tests/torture tests/attack tests/alerts/remedies/test_pidfd.py \
	$(addprefix tests/alerts/,states/test_differential.py promql/test_differential.py notify/outbox/test_chaos.py)
# Event loops, forks, signals, the collector, SQL. Arithmetic is the same everywhere.
OF_PYTHON := tests/agent/service/test_schedule.py $(addprefix tests/agent/,clients procfs runtime) \
	$(addprefix tests/alerts/,notify/outbox notify/receivers/test_exec.py remedies/test_pidfd.py store) \
	$(addprefix tests/client/,blame/test_fork.py test_client.py test_apps.py serving) \
	$(addprefix tests/exporters/,test_connections.py test_server.py test_unix_socket.py)
# Fetched by scripts/services where the machine has none.
export PATH := $(PATH):$(CURDIR)/.tools/usr/bin
export PYTHON PREFIX EXTRAS ARCH
# The tests start hundreds of processes: what they import is compiled once, not in each of them.
unexport PYTHONDONTWRITEBYTECODE
GPU_PYTHON = 3.12

help: ## What there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 18

demo: demo-venv ## A leak found, told of and ended on a simulated GPU, with real processes, in a minute
	@$(DEMO_VENV)/bin/gpuagent demo

install: ## As a service of this machine, started now and at boot: /opt/gpuagent, unit, user, command, manual
	@scripts/install "$(DESTDIR)" "$(WHEELHOUSE)"

uninstall: ## Take the service away; its configuration and state stay unless PURGE=1
	@scripts/uninstall $(PURGE)

test: dev-venv apps-venv ## The tests, those with real services too, in some 8 minutes on two cores
	@scripts/services
	$(PYTEST) $(if $(SAMPLE),--sample $(SAMPLE),-m "not exhaustive and not extended") $(ON_ALL_CORES)

test-fast: dev-venv ## The tests that need nothing but Python
	$(PYTEST) -m "not slow and not exhaustive and not extended" $(ON_ALL_CORES)

test-all: dev-venv apps-venv ## Every test: all cases, statistics, long searches, matrices and benchmarks too
	@scripts/services
	$(PYTEST) $(ON_ALL_CORES)

test-failed: dev-venv ## What failed last, once more: alone and one at a time
	$(PYTEST) --last-failed --last-failed-no-failures none -n 0

test-python: dev-venv ## What depends on Python itself: make test-python VENV=.venv-other PYTHON=python3.14
	$(PYTEST) -m "not slow and not exhaustive" $(ON_ALL_CORES) $(OF_PYTHON)

# With the Python that has torch, and no environment of its own: see docs/hardware.md.
test-gpu: ## What only a GPU can prove, as a table, in under 8 minutes: a machine with torch, no network needed
	@$(or $(PYTHON),python3) -m tests.gpu $(if $(WHEELHOUSE),--wheelhouse "$(WHEELHOUSE)") $(if $(OUT),--out "$(OUT)")

lint: dev-venv ## Style, spelling, types, who imports whom, what is in the wheels, links of the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/typos --format brief
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q tests/packaging/test_house_style.py
	scripts/check-wheels $(BIN)
	$(BIN)/python scripts/docs

docs: dev-venv ## The documentation as a site, in site/: any broken link or anchor is an error
	$(BIN)/python scripts/docs

torture: dev-venv ## Every fault, alone and in pairs, against a running agent; every attack five times; 500 kills, 10^6 frames
	@scripts/services
	GPUAGENT_TORTURE=1 $(PYTEST) $(ON_ALL_CORES) $(TORTURE)

audit: ## Known vulnerabilities of what the agent depends on (needs a network)
	scripts/audit

bench: dev-venv ## What the agent costs, beside nvitop-exporter and Prometheus where those are at hand
	$(BIN)/python scripts/bench

leakbench: dev-venv ## Leaks told from caches, beside what people use today: the tables and plots of docs/leaks.md
	$(BIN)/python -m benchmarks.leak

leakbench-load: dev-venv ## Leaks of services under recorded load (ARRIVALS=FILE.npz), or made-up load, beside what people use
	$(BIN)/python -m benchmarks.leak.load $(if $(ARRIVALS),--arrivals $(ARRIVALS)) --unseen --peers --workers 2

leak-gate: apps-venv ## Healthy functions through the leak gate for tests, ROUNDS=1000 times: none may be called leaky
	.venv-apps/bin/python -W ignore tests/client/leak_gate/apps/rounds.py $(or $(ROUNDS),1000)

wheelhouse: demo-venv ## All wheels for an offline install on machines like this one, in wheelhouse/
	scripts/wheelhouse $(BIN)/python wheelhouse $(FOR)

release: ## Sdists, wheels, SBOMs and sums of the checked-out commit, in dist/, and what is left to do by hand
	scripts/release build "$(or $(RELEASE),dist)"

packages: ## .deb and .rpm for this processor and the distribution's Python, in dist/
	scripts/packages "$(or $(RELEASE),dist)" "$(WHEELHOUSE)"

gpu-wheels: demo-venv ## Wheels that `make test-gpu` needs on a machine without a network, in wheelhouse-gpu/
	scripts/gpu-wheels $(BIN)/python wheelhouse-gpu $(GPU_PYTHON)

clean: ## Remove what these targets made
	rm -rf .venv .venv-apps .venv-bench .venv-release .venv-wheelhouse .tools .site site dist wheelhouse wheelhouse-gpu gpu-report .mypy_cache .pytest_cache .ruff_cache .hypothesis

demo-venv:
	@scripts/venv $(DEMO_VENV) demo "$(WHEELHOUSE)"

dev-venv:
	@scripts/venv $(VENV) dev

# For the tests of the embedded client: apps with torch, which the agent never has.
apps-venv: dev-venv
	@scripts/apps-venv $(BIN)/python
