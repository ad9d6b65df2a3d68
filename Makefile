# make train, make test, make check: each creates .venv first, if it does not exist.
PYTHON ?= python3
VENV ?= .venv
# Test processes: the number of cores, from 2 to 8; each needs up to 4 GB.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN | awk '{print ($$1 < 2 ? 2 : ($$1 > 8 ? 8 : $$1))}')
OVERRIDES ?=

PIP_INSTALL = $(VENV)/bin/pip install --quiet
PYTEST = $(VENV)/bin/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

.PHONY: train test slow-tests exhaustive check lint types format readme parity beam tpu trackers docs lock clean

train: $(VENV)/installed
	$(VENV)/bin/t2t train --config tiny --workdir runs/tiny $(OVERRIDES)

test: $(VENV)/installed
	$(PYTEST) -m "not slow and not exhaustive"

slow-tests: $(VENV)/installed
	$(PYTEST) -m slow

# Before a release: tests that repeat others for more models, adapters and meshes.
exhaustive: $(VENV)/installed .venv-tpu/installed .venv-parity/installed
	$(PYTEST) -m exhaustive
	.venv-parity/bin/python -m pytest -m exhaustive tests/parity
	.venv-tpu/bin/python -m pytest -m exhaustive tests/planning/test_plan_tpu.py

# Required for every change: all tests except the exhaustive ones, and the checks below.
check:
	.ci/run

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell

# Checks the packages in tool.pyrefly of pyproject.toml.
types: $(VENV)/installed
	$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Runs every command of the README and of the pages in docs/ once, except make test. OVERRIDES shortens the first
# training run.
readme: $(VENV)/installed
	OVERRIDES=--config.train.steps=20 $(VENV)/bin/python .ci/readme.py run README.md $$($(VENV)/bin/python docs/site/pages.py)

# Compares with reference implementations in PyTorch; pip selects a CPU build if one exists.
parity: .venv-parity/installed
	.venv-parity/bin/python -m pytest -m "not exhaustive" tests/parity

# Tests the offline cache with Apache Beam.
beam: .venv-beam/installed
	.venv-beam/bin/python -m pytest -m beam tests/data/test_offline_cache.py

# Tests experiment trackers with the real libraries; not part of make check.
trackers: .venv-trackers/installed
	.venv-trackers/bin/python -m pytest tests/training/test_tracking.py

# Compiles training steps for TPUs.
tpu: .venv-tpu/installed
	.venv-tpu/bin/python -m pytest -m "not exhaustive" tests/planning/test_plan_tpu.py

# Builds the site, docs/_build/index.html. Warnings and broken internal links are errors; other links are unchecked.
docs: .venv-docs/installed
	.venv-docs/bin/python -m sphinx --builder html --fail-on-warning --keep-going --fresh-env --write-all --quiet \
	  --conf-dir docs/site docs docs/_build

$(VENV)/installed: requirements.lock pyproject.toml
	@echo "installing 3.5 GB of packages, without output for some minutes ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --no-compile --requirement requirements.lock
	$(PIP_INSTALL) --no-deps --editable .
	$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true  # on all cores; some files are templates
	touch $@

# An environment with additional packages on top of those in .venv.
.venv-%/installed: tests/%-requirements.txt $(VENV)/installed
	$(VENV)/bin/python -m venv --without-pip .venv-$*
	$(VENV)/bin/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > $$(.venv-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/base.pth
	.venv-$*/bin/python -m pip install --quiet --no-compile --requirement $<
	touch $@

# Updates the tested versions; needs uv.
lock:
	uv pip compile pyproject.toml --extra test --output-file requirements.lock --upgrade \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links

clean:
	rm -rf $(VENV) .venv-parity .venv-beam .venv-tpu .venv-trackers .venv-docs docs/_build runs .pytest_cache .ruff_cache
