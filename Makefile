# make train, make test, make check: each creates .venv first, if it is not there.
PYTHON ?= python3
VENV ?= .venv
# Of the tests: as many as there are cores, at least 2; each holds up to 4 GB.
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

# What repeats for more models, adapters and meshes what the others see of some: before a release.
exhaustive: $(VENV)/installed .venv-tpu/installed
	$(PYTEST) -m exhaustive
	.venv-tpu/bin/python -m pytest -m exhaustive tests/planning/test_plan_tpu.py

# What every change must pass: the tests but the exhaustive ones, and all that follows.
check:
	.ci/run

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell

# The packages that pyproject.toml names under tool.pyrefly.
types: $(VENV)/installed
	$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Every command of the README and of the pages in docs/ but make test, each once; the first model is trained for as long
# as those that follow.
readme: $(VENV)/installed
	OVERRIDES=--config.train.steps=20 $(VENV)/bin/python .ci/readme.py run README.md $$($(VENV)/bin/python docs/site/pages.py)

# With another implementation, in PyTorch; pip takes a build for the CPU where there is one.
parity: .venv-parity/installed
	.venv-parity/bin/python -m pytest tests/parity

# The offline cache, with Apache Beam.
beam: .venv-beam/installed
	.venv-beam/bin/python -m pytest -m beam tests/data/test_offline_cache.py

# Experiment trackers, with the real libraries; not part of make check.
trackers: .venv-trackers/installed
	.venv-trackers/bin/python -m pytest tests/training/test_tracking.py

# Training steps compiled for TPUs.
tpu: .venv-tpu/installed
	.venv-tpu/bin/python -m pytest -m "not exhaustive" tests/planning/test_plan_tpu.py

# The site, docs/_build/index.html: warnings are errors, and so is a link that leads nowhere; no other host is asked.
docs: .venv-docs/installed
	.venv-docs/bin/python -m sphinx --builder html --fail-on-warning --keep-going --fresh-env --write-all --quiet \
	  --conf-dir docs/site docs docs/_build

$(VENV)/installed: requirements.lock pyproject.toml
	@echo "installing 3.5 GB of packages, which says nothing for some minutes ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --no-compile --requirement requirements.lock
	$(PIP_INSTALL) --no-deps --editable .
	$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true  # on all cores; some files are templates
	touch $@

# What .venv has, with more in front of it: hardly larger than what it adds.
.venv-%/installed: tests/%-requirements.txt $(VENV)/installed
	$(VENV)/bin/python -m venv --without-pip .venv-$*
	$(VENV)/bin/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > $$(.venv-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/base.pth
	.venv-$*/bin/python -m pip install --quiet --no-compile --requirement $<
	touch $@

# The versions that are tested; needs uv.
lock:
	uv pip compile pyproject.toml --extra test --output-file requirements.lock --upgrade \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links

clean:
	rm -rf $(VENV) .venv-parity .venv-beam .venv-tpu .venv-trackers .venv-docs docs/_build runs .pytest_cache .ruff_cache
