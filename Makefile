# make install | book | pdf | test | test-book | lint | clean. With a driver for CUDA 13: make CUDA=cu13 book
PYTHON ?= python3
CUDA ?= cu12

VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --maxprocesses 8
# The interpreter of the environment: the one asked for; else that of the environment there is, or python3.
FROM := $(or $(if $(filter file,$(origin PYTHON)),$(wildcard $(BIN)/python)),$(PYTHON))
FOUND := $(shell $(FROM) -c 'import sys; b = getattr(sys, "_base_executable", sys.executable); \
  print("%d.%d.%d %s" % (sys.version_info[:3] + (b,)))' 2>/dev/null)
STAMP := $(VENV)/.installed-$(CUDA)-$(firstword $(FOUND))

.PHONY: install book pdf test test-book lint clean
.DELETE_ON_ERROR:

ifeq ($(wildcard constraints-$(CUDA).txt),)
$(error CUDA=$(CUDA) is none of $(patsubst constraints-%.txt,%,$(wildcard constraints-cu*.txt)): give one of them)
endif

install: $(STAMP)

book: $(STAMP)
	$(BIN)/jupyter-book build --all -W --keep-going .

test: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) --dist loadfile  # a file's fixtures are made once

test-book: book
	$(BIN)/python -m pytest -q $(PARALLEL) -m book

pdf: book
	$(BIN)/python -m labkernels.book.pdf

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf _build build dist .cache .pytest_cache .ruff_cache .hypothesis $(VENV) *.egg-info

# CUDA 12 and CUDA 13, or two Pythons, do not live in one environment: another of either starts it afresh.
$(STAMP): requirements.txt constraints.txt constraints-$(CUDA).txt pyproject.toml setup.py
	@test -n "$(FOUND)" || { echo "$(FROM) is no Python that runs; name one with make PYTHON=python3.11"; exit 1; }
	@$(FROM) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python %d.%d.%d is too old: Python 3.11 " \
	  "or newer is needed; name one with make PYTHON=python3.11" % sys.version_info[:3])'
	@test -e $@ || $(wordlist 2,9,$(FOUND)) -m venv --clear $(VENV)
	sed 's/\[cu12\]/[$(CUDA)]/' requirements.txt > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install --quiet -r $(VENV)/requirements.txt -c constraints-$(CUDA).txt
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@mkdir -p $(VENV)/etc/ipython  # kernels of notebooks would each warn that they talk over TCP on this machine
	@echo 'get_config().IPKernelApp.log_level = "ERROR"' > $(VENV)/etc/ipython/ipython_kernel_config.py
	touch $@

-include catalog.mk gemm.mk
