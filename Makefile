# make train, make test: each creates .venv first, if it is not there.
PYTHON ?= python3
VENV ?= .venv

.PHONY: train test lint format lock clean

train: $(VENV)/installed
	$(VENV)/bin/t2t train --config tiny --workdir runs/tiny

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --requirement requirements.lock
	$(VENV)/bin/pip install --quiet --no-deps --editable .
	touch $@

# The versions that are tested; needs uv.
lock:
	uv pip compile pyproject.toml --extra test --output-file requirements.lock --upgrade \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache
