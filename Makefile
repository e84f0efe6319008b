# make        sets everything up in .venv and runs the main job
# make test   sets everything up and runs the tests
# make lint   ruff, the type checker and the order of imports
# make docs   makes the documentation site, build/docs/index.html
# make gate   sets everything up and tells whether HEAD is slower than the commit measured last: see docs/gate.md
# make fuzz   attacks: see docs/testing.md
# make clean  removes .venv
# GPU=1       installs PyCUDA and cuda-bindings too: needs the CUDA toolkit and a C++ compiler

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
# Three for two cores: some tests wait for processes and clocks.
WORKERS ?= 3
GPU ?=
VENV := .venv
BIN := $(VENV)/bin
comma := ,
WITH_GPU := $(filter-out 0 no,$(GPU))
GPU_EXTRAS := $(if $(WITH_GPU),$(comma)gpu$(comma)graphs)
GPU_SUFFIX := $(if $(WITH_GPU),-gpu)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile --constraint $(CONSTRAINTS)

.PHONY: run test lint docs gate fuzz clean
.NOTPARALLEL:

run: $(VENV)/installed-run$(GPU_SUFFIX)
	@echo "Running the main job: about 2 minutes on two cores"
	$(BIN)/python -m batchchol run

test: $(VENV)/installed-test$(GPU_SUFFIX)
	@echo "Testing: 5 to 10 minutes on two cores (WORKERS=$(WORKERS))"
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(VENV)/installed-test$(GPU_SUFFIX)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo --no-cache

docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --builder html docs build/docs
	$(BIN)/python -m tests.site build/docs
	@echo "The site: build/docs/index.html"

gate: $(VENV)/installed-test$(GPU_SUFFIX)
	PYTHON=$(BIN)/python BACKEND=$(if $(WITH_GPU),cuda,cpu) .ci/gate

fuzz: $(VENV)/installed-test$(GPU_SUFFIX)
	@echo "Fuzzing: 15 to 30 minutes on two cores"
	$(BIN)/python -m tests.fuzz.differential --matrices 1000000
	$(BIN)/python -m tests.fuzz.solves --matrices 1000000
	$(BIN)/python -m tests.fuzz.general --matrices 1000000
	$(BIN)/python -m tests.fuzz.orthogonal --matrices 1000000
	$(BIN)/python -m tests.fuzz.larger --matrices 10000
	$(BIN)/python -m tests.fuzz.cache_kills --kills 50 --processes 16
	$(BIN)/python -m tests.fuzz.interrupts --interrupts 500 --threads 4
	$(BIN)/python -m tests.fuzz.interrupts --interrupts 500 --threads 64

clean:
	rm -rf $(VENV)

# What the tests need includes what the main job needs, and what was installed for a GPU also does without one.
$(VENV)/installed-run$(GPU_SUFFIX): $(VENV)/created pyproject.toml $(CONSTRAINTS)
	@$(call install,.[suite$(comma)plots$(comma)data$(GPU_EXTRAS)],batchchol and what its main job needs)
	@touch $(VENV)/installed-run $@

$(VENV)/installed-test$(GPU_SUFFIX): $(VENV)/created pyproject.toml $(CONSTRAINTS)
	@$(call install,.[test$(GPU_EXTRAS)],batchchol and what its tests need)
	@touch $(VENV)/installed-run $(VENV)/installed-run$(GPU_SUFFIX) $(VENV)/installed-test $@

$(VENV)/installed-docs: $(VENV)/created pyproject.toml $(CONSTRAINTS)
	@$(call install,.[docs],batchchol and what its site needs)
	@touch $@

# Byte code by all cores, where pip uses one, but not of other packages' tests, a third of all; some packages come with files
# that are not Python's.
define install
	toolkit=$$(.ci/prerequisites "$(PYTHON)" $(if $(WITH_GPU),gpu)) || exit 1; \
	$(if $(WITH_GPU),$(check_pycuda)) \
	echo "Installing $(2) into $(VENV): 1 to 3 minutes$(if $(WITH_GPU),$(comma) and about 10 where PyCUDA is compiled)"; \
	PATH="$${toolkit:+$$toolkit/bin:}$$PATH" $(INSTALL) --editable '$(1)' || exit 1; \
	$(BIN)/python -m compileall -qq -j 0 -x '/site-packages/.*/tests/' $(VENV)/lib batchchol kernelgen benchmarks || true
endef

# PyCUDA takes the toolkit of the first nvcc on the PATH, even if that is a script which starts another one.
define check_pycuda
	echo "The CUDA toolkit is $$toolkit (CUDA_ROOT=... chooses another)"; \
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
	    --constraint $(CONSTRAINTS) --dest $(VENV)/wheels pycuda 2>/dev/null \
	  || .ci/prerequisites $(BIN)/python pycuda "$$toolkit" || exit 1;
endef

$(VENV)/created:
	@.ci/prerequisites "$(PYTHON)" $(if $(WITH_GPU),gpu) >/dev/null
	$(PYTHON) -m venv $(VENV)
	@touch $@
