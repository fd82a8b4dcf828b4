# The same targets that CI runs. Everything sets itself up; only python3, make and git are needed beforehand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup parts demo dev-cluster image sbom test test-e2e test-fast test-newer verify screenshots record-nodes histories lint format evaluate bench docs schema names frameworks rules dashboards chart situations lock dist clean

help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*  ## ' $(MAKEFILE_LIST) | sort | awk -F ':.*  ## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "gpuwatch needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Name another: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

setup: $(STAMP)  ## Make the virtual environment with the locked dependencies

parts: $(STAMP)  ## The real servers and the browser that the tests need, where they can be had
	$(BIN)/python tests/parts/install

DEMO := $(if $(SEED),--seed $(SEED)) $(if $(GPUS),--gpus $(GPUS)) $(if $(DAYS),--days $(DAYS))
demo: $(STAMP)  ## A recorded fleet, or a new one (SEED=, GPUS=, DAYS=): what is found and what is missed, no cluster needed
	$(BIN)/python -m lab.demo $(DEMO)

# One more than cores: many tests wait for servers most of their time.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# A file's tests stay on one worker, in their order: their servers are started once, and tests/deploy adds role to role.
# Not `loadgroup`: with pytest 9.2 and pytest-xdist 3.8 it groups nothing, and says nothing (pytest-xdist #1386).
test: parts  ## All tests; gets a real Prometheus and a Kubernetes API server first where they can be had
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --ignore=tests/e2e -m "not npm and not image and not dist and not helm3 and not mutants and not versions and not thorough"
	$(E2E)

# By itself: its processes keep to the clock, and need the machine for it. Three worlds side by side, as most of it is
# waiting; one on a cluster that is there.
E2E := $(BIN)/python -m pytest $(if $(filter-out 0,$(E2E_EXISTING)),-n0,-n3 --dist loadfile) tests/e2e

test-e2e: parts  ## gpuwatch as its own process in a living cluster, or with E2E_EXISTING=1 in the one of KUBECONFIG
	$(E2E)

dev-cluster: parts  ## A living cluster with simulated GPUs and a Prometheus to play with, until Ctrl-C
	PYTHONPATH=tests $(BIN)/python tests/dev_cluster.py $(if $(FAULTS),--faults $(FAULTS)) $(if $(NODES),--nodes $(NODES))

test-fast: $(STAMP)  ## The tests that need nothing but `make setup`, in minutes
	$(BIN)/python -m pytest -n auto --ignore=tests/e2e --ignore=tests/image -m "not parts and not slow and not dist and not mutants and not versions and not thorough"

verify: $(STAMP) dist test-newer  ## What takes npm, PyPI, or root on Debian: dashboards drawn by Grafana's own components, the image, Helm 3, Kubernetes 1.37, `dist`; the guards, each taken out; the numbers of alerts, each changed; more random histories; the landing beside a scheduler on 2,000 random clusters
	$(BIN)/python tests/parts/install --image --helm3
	$(BIN)/python -m pytest -m "npm or image or helm3 or mutants or versions or thorough" tests
	HISTORIES=300 $(BIN)/python -m pytest -n auto -m "not mutants" tests/execute/test_histories.py
	SCENES=2000 $(BIN)/python -m pytest tests/cluster/test_scheduler_agrees.py
	QUIET_DAYS=7 $(BIN)/python -m pytest tests/rules/test_planted_faults.py -k quiet

test-newer: export TEST_KUBERNETES = 1.37
test-newer: $(STAMP)  ## What talks to Kubernetes, on the control plane and the Nodes of its newer version
	$(BIN)/python tests/parts/install
	$(BIN)/python -m pytest -m "cluster and not image" tests/cluster tests/kube tests/store tests/execute tests/e2e/test_real_nodes.py tests/e2e/test_partial_gangs.py

image: $(STAMP)  ## The container image on a Debian of its own: built, held to its size, run beside real servers
	$(BIN)/python tests/parts/install --image
	PYTHONPATH=tests $(BIN)/python -m parts.image
	$(BIN)/python -m pytest -m image tests/image

sbom: image  ## The bill of materials of that image, CycloneDX, into out/
	@mkdir -p out
	PYTHONPATH=tests $(BIN)/python -c 'from parts.image import built; print(built().rootfs)' | xargs $(BIN)/python -m tools.sbom > out/sbom.cdx.json

DIST_VENV := .venv-dist
DIST_STAMP := $(DIST_VENV)/.installed

$(DIST_STAMP): requirements/dist.txt
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dist.txt
	@touch $@

# The wheel is built from the sdist, with the locked setuptools, and is the same for the same commit.
dist: $(STAMP) $(DIST_STAMP)  ## Wheel and sdist into dist/, checked, then installed by pip, pipx and uv and run
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(DIST_VENV)/bin/python -m build --no-isolation --outdir dist
	$(DIST_VENV)/bin/twine check --strict dist/*
	$(DIST_VENV)/bin/check-wheel-contents dist/*.whl
	$(BIN)/python -m pytest -m dist tests/distribution

screenshots: parts  ## Pictures of the dashboards, with Grafana's own components, and of the pages, into docs/images/
	PYTHONPATH=tests:. $(BIN)/python tests/dashboards/screenshots.py docs/images

record-nodes: parts  ## What real Nodes show over time, into tests/fixtures/node-recordings: SCENES="eviction refusals"
	PYTHONPATH=tests $(BIN)/python tests/cluster/node_recorder.py $(SCENES)

# About a quarter of a second each on a core.
HISTORIES ?= 3000
histories: $(STAMP)  ## Thousands of random histories and towns, of what acts and what must act: HISTORIES=3000
	HISTORIES=$(HISTORIES) $(BIN)/python -m pytest -n auto -v tests/execute/test_histories.py tests/sentences

lint: $(STAMP)  ## ruff, mypy --strict, the rooms' import contracts, Dockerfile and workflows, and that generated files are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .import_linter_cache
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/zizmor --quiet --offline .github
	$(BIN)/gpuwatch schema | diff -u docs/analysis-v1.schema.json - \
		|| { echo "docs/analysis-v1.schema.json is out of date: make schema"; exit 1; }
	$(BIN)/python -m tools.kinds --check
	$(BIN)/python -m tools.names --check
	$(BIN)/python -m tools.frameworks --check
	$(BIN)/python -m tools.rules --check
	$(BIN)/python -m tools.dashboards --check
	$(BIN)/python -m tools.chart --check
	$(BIN)/python -m tools.situations --check

format: $(STAMP)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Measured results to hold predictions against; without them synthetic kernels alone are evaluated.
MEASURED := $(if $(wildcard ../shared/data/miso_dev.csv),--miso ../shared/data/miso_dev.csv --gavel ../shared/data/gavel) --shapes 2000

evaluate: $(STAMP)  ## Precision and recall per finding kind on fleets that no threshold was tuned on; predicted against measured speeds
	$(BIN)/python -m lab.evaluation.detectors
	$(BIN)/python -m lab.evaluation.sizing $(MEASURED)
	$(BIN)/python -m lab.evaluation.ledger

bench: $(STAMP)  ## The benchmarks: ratios measured side by side in one run
	$(BIN)/python -m lab.benchmarks.run

# In an environment of its own: no test and no user of gpuwatch needs Sphinx. -n -W: a link or an anchor that leads nowhere fails.
DOCS := out/docs-venv
$(DOCS)/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

docs: $(DOCS)/.installed  ## The documentation as a site, into out/site; fails where a link or an anchor leads nowhere
	$(DOCS)/bin/python -m sphinx -q -n -W --keep-going -d out/docs-cache -c docs . out/site
	@echo "open out/site/index.html"

schema: $(STAMP)  ## Write the published JSON Schemas of the analysis and of the weekly report
	@mkdir -p docs
	$(BIN)/gpuwatch schema > docs/analysis-v1.schema.json
	$(BIN)/python -c 'from gpuwatch.say.machine import to_json; from gpuwatch.say.weekly_machine import weekly_schema; print(to_json(weekly_schema()))' > docs/weekly-v1.schema.json

names: $(STAMP)  ## Write docs/names.md, docs/settings.md, tables of docs/rules.md and docs/rules/, the kinds of findings, and deploy/base/crds.yaml
	$(BIN)/python -m tools.kinds
	$(BIN)/python -m tools.names

frameworks: $(STAMP)  ## Write what follows from FRAMEWORKS: rules of the Roles, the admission policies, tables of docs/frameworks.md
	$(BIN)/python -m tools.frameworks

rules: $(STAMP)  ## Write rules/*.yaml for Prometheus, and the same as PrometheusRule objects in deploy/optional
	$(BIN)/python -m tools.rules

dashboards: $(STAMP)  ## Write dashboards/, the Grafana dashboards
	$(BIN)/python -m tools.dashboards

chart: $(STAMP)  ## Write what the Helm chart has from deploy/, rules/, dashboards/ and the settings: after the targets above
	$(BIN)/python -m tools.chart

situations: $(STAMP)  ## Write docs/situations.md from the rows of tests/detect/situations
	$(BIN)/python -m tools.situations

lock: $(STAMP)  ## Lock the dependencies anew (needs uv)
	uv pip compile -q --no-header --universal --generate-hashes --no-annotate --python-version 3.11 --extra dev pyproject.toml -o requirements/dev.txt
	uv pip compile -q --no-header --universal --generate-hashes --no-annotate --python-version 3.11 pyproject.toml -o requirements/runtime.txt
	uv pip compile -q --no-header --universal --generate-hashes --no-annotate --python-version 3.11 --group docs -o requirements/docs.txt
	echo 'setuptools>=77' | uv pip compile -q --no-header --universal --generate-hashes --no-annotate --python-version 3.11 - -o requirements/build.txt
	uv pip compile -q --no-header --universal --generate-hashes --no-annotate --python-version 3.11 --group dist -o requirements/dist.txt

clean:  ## Remove what the targets made
	rm -rf $(VENV) $(DIST_VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
