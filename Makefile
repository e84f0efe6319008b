# make        sets everything up in .venv and runs the main job
# make test   sets everything up and runs the tests
# make lint   ruff and the type checker
# make clean  removes .venv
# GPU=1       installs PyCUDA and cuda-bindings too: needs the CUDA toolkit and a C++ compiler

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
WORKERS ?= 2
GPU ?=
VENV := .venv
BIN := $(VENV)/bin
comma := ,
WITH_GPU := $(if $(GPU),$(comma)gpu$(comma)graphs)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint $(CONSTRAINTS)

.PHONY: run test lint clean
.NOTPARALLEL:

run: $(VENV)/installed-run$(GPU)
	$(BIN)/python -m batchchol run

test: $(VENV)/installed-test$(GPU)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(VENV)/installed-test$(GPU)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

clean:
	rm -rf $(VENV)

$(VENV)/installed-run$(GPU): $(VENV)/created pyproject.toml $(CONSTRAINTS)
	@echo "Installing batchchol and what its main job needs into $(VENV)"
	$(INSTALL) --editable '.[suite,plots,data$(WITH_GPU)]'
	@touch $@

$(VENV)/installed-test$(GPU): $(VENV)/created pyproject.toml $(CONSTRAINTS)
	@echo "Installing batchchol and what its tests need into $(VENV)"
	$(INSTALL) --editable '.[test$(WITH_GPU)]'
	@touch $@

# Debian splits the pieces into packages: say all that are missing, and how to get them, before anything is made.
$(VENV)/created:
	@missing=; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "$(PYTHON): Python 3.11 or newer is needed (make PYTHON=... chooses another)" >&2; \
	       missing="$$missing python3"; }; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON): its venv module is incomplete" >&2; missing="$$missing python3-venv"; }; \
	if [ -z "$${BATCHCHOL_CC:-$$CC}" ]; then \
	  cc=$$(command -v cc || command -v gcc || command -v clang) \
	    || { echo "no C compiler (cc, gcc or clang) on the PATH" >&2; missing="$$missing gcc libc6-dev"; }; \
	  [ -z "$$cc" ] || echo '#include <stdlib.h>' | $$cc -shared -fPIC -o /dev/null -x c - 2>/dev/null \
	    || { echo "$$cc: it cannot build against the C library" >&2; missing="$$missing libc6-dev"; }; \
	fi; \
	if [ -n "$$missing" ]; then echo "On Debian or Ubuntu: apt install$$missing" >&2; exit 1; fi
	$(PYTHON) -m venv $(VENV)
	@touch $@
