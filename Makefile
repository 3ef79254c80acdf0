# make demo   set-up where missing, then the whole workflow on a CPU
# make test   set-up where missing, then all tests
PYTHON ?= python3
CORES ?= 1
PLANS = tests/integration/test_plans.py tests/integration/test_profiles.py
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: setup demo test format lint dry-run unit integration page engine bench lock clean

setup: .venv/installed

# Hashes are checked; --no-deps because the lock is complete. Compiled on all cores; the templates
# of some packages cannot be.
.venv/installed: requirements/lock.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@echo "Installing the locked packages into .venv: some minutes, 7 GB of disk"
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -qq --no-compile --no-deps --require-hashes -r requirements/lock.txt
	.venv/bin/python -m compileall -qq -j 0 .venv/lib || true
	touch $@

demo: setup
	snakemake --cores $(CORES) all
	@echo "Open results/demo/report/index.html"

# What fails soonest comes first. The engines' tests, which ask also whether a second run has nothing
# to do and goes on after a kill, take longest, and half of it on one core, while something starts:
# the last others run in the time that they leave; with `nice`, as an engine takes all cores.
test: setup format lint
	$(MAKE) -j2 --output-sync=target dry-run page
	$(MAKE) -j3 --output-sync=target unit integration engine

format: setup
	ruff format --check .
	snakefmt --check Snakefile workflow

lint: format
	ruff check .
	snakemake --lint
	snakemake --lint --configfile config/published.yaml

dry-run: setup
	python -m pytest -q $(PLANS)

unit: setup
	nice -n 19 python -m pytest tests/unit

page: setup
	python -m pytest tests/page

integration: setup
	nice -n 19 python -m pytest tests/integration -m "not engine" $(PLANS:%=--ignore=%)

engine: setup
	python -m pytest tests/integration -m engine --durations 10

bench: setup
	python tests/bench/analysis_speed.py
	python tests/bench/planning_speed.py
	python tests/bench/grading_speed.py
	python tests/bench/bench.py
	python tests/bench/linear_rows.py

lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --override requirements/overrides.txt requirements/requirements.in \
	  -o requirements/lock.txt

clean:
	rm -rf .venv .snakemake results/* resources
