# make book | test | test-book | lint | clean. With a driver for CUDA 13: make CUDA=cu13 book
PYTHON ?= python3
CUDA ?= cu12

VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --maxprocesses 8 --dist loadgroup
STAMP := $(VENV)/.installed-$(CUDA)

.PHONY: book test test-book lint clean
.DELETE_ON_ERROR:

book: $(STAMP)
	$(BIN)/jupyter-book build --all -W --keep-going --quiet .

test: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL)

test-book: book
	$(BIN)/python -m pytest -q $(PARALLEL) -m book

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf _build .cache .pytest_cache .ruff_cache .hypothesis $(VENV) *.egg-info

# The CUDA 12 and CUDA 13 packages do not live in one environment: changing CUDA starts it afresh.
$(STAMP): requirements.txt constraints.txt constraints-$(CUDA).txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and \
	  f"Python {v} is too old: Python 3.11 or newer is needed; name one with make PYTHON=python3.11")'
	@case " $(notdir $(wildcard $(VENV)/.installed-*)) " in \
	  *" $(notdir $@) "*|"  ") $(PYTHON) -m venv $(VENV) ;; *) $(PYTHON) -m venv --clear $(VENV) ;; esac
	sed 's/\[cu12\]/[$(CUDA)]/' requirements.txt > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet -r $(VENV)/requirements.txt -c constraints-$(CUDA).txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

-include catalog.mk gemm.mk
