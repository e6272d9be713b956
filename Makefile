# Everything runs in .venv, which `make install` builds once with hashes from requirements/lock.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= hideseek-demo
STAMP := $(VENV)/.installed

.PHONY: help install demo test check bench docs lock clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## make .venv with everything that the demo and the tests need

$(STAMP): requirements/lock.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "Hide & Seek needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is %d.%d: run make PYTHON=python3.11 install" % v)'
	@echo "Setting up $(VENV) (once; TensorFlow makes this a download of about 700 MB)"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: install  ## play 2 hiders against 2 seekers on a simulated cohort; says where the report is
	$(BIN)/hideseek demo --out $(OUT)

test: install  ## run the tests
	$(BIN)/python -m pytest

check: install  ## ruff, mypy --strict, typos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/typos

bench: install  ## print every benchmark: ours, the peer and the limit side by side
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.nearest_neighbour

docs: demo  ## renew the README's picture of the report (needs Chromium)
	profile=$$(mktemp -d) && chromium --headless --no-sandbox --disable-gpu --no-first-run \
		--disable-background-networking --disable-sync --user-data-dir=$$profile --hide-scrollbars \
		--window-size=1280,1560 --screenshot=docs/report.png file://$(abspath $(OUT))/report.html 2>/dev/null

lock:  ## renew requirements/lock.txt (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade -q -o requirements/lock.txt

clean:  ## remove .venv and what runs have left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache hideseek-demo
