# Two commands work on a fresh machine: `make demo` and `make test`. Both set up the virtual environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := attack,demo,peft,ray,test,trl
GROUPS := --group docs --group lint
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# A test that takes an hour hangs: it fails with the stack of each thread, and the others continue in a new process.
AT_ONCE := --numprocesses 2 --dist worksteal -o faulthandler_timeout=3600 -o faulthandler_exit_on_timeout=true

.PHONY: browser clean demo docs faults gpu lint matrix models newest notebook oldest quantised slow test use versions

# On real questions if this machine has them, else on the messages of docs/examples.
demo: $(VENV)/installed
	HF_HUB_OFFLINE=1 $(BIN)/python docs/examples/demo.py --output_dir demo $(addprefix --data_dir ,$(wildcard ../shared/data))

# Tests that take minutes run in the targets below.
test: $(VENV)/installed
	$(PYTEST) $(AT_ONCE)

# `make test` also runs them if there is a browser: chromium with its chromedriver.
browser: $(VENV)/installed
	$(PYTEST) tests/reports/test_results_page.py tests/reports/test_report_page.py

# Whole commands with damaged files, full disks and kills; `make test` runs the shorter tests.
faults: $(VENV)/installed
	$(PYTEST) $(AT_ONCE) -m "faults or not faults" tests/faults

# Every model family with every choice; `make test` tries each with a third of the others.
matrix: $(VENV)/installed
	$(PYTEST) $(AT_ONCE) -m matrix

# Two gigabytes of TensorFlow for one test.
use: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[use]"
	$(PYTEST) -m use tests/robustness

# Not part of `make test`, because every import of peft loads bitsandbytes and torchao if they are installed.
quantised: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[quantised]"
	$(PYTEST) -m quantised tests/patching/test_quantised.py

# The site, in site/index.html: a broken link or anchor is an error. (With --quiet mkdocs counts no warning, so --strict would do nothing.)
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Runs docs/tutorial.py; GitHub and the site show the outputs of the last run.
notebook: $(VENV)/installed
	HF_HUB_OFFLINE=1 $(BIN)/python scripts/run_tutorial.py

# Measures the package on a GPU, stage by stage; a stopped run resumes. Without a GPU it prints a message and ends. Its
# options: make gpu GPU_ARGS="--minutes 9".
gpu: $(VENV)/installed
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

# Patches small models of every model type of transformers, in about an hour; a stopped run resumes. Its options:
# make models MODELS_ARGS="--types bert clip --jobs 2".
models: $(VENV)/installed
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python benchmarks/model_types.py $(MODELS_ARGS)

# Too long for CI: the commands of the documentation, one after the other, and the notebook.
slow: $(VENV)/installed notebook docs
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow -s tests/journeys

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Fresh environments with the oldest and the newest versions that pyproject.toml allows, and the resolver with other
# packages; the results are in docs/versions.md.
oldest newest: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group versions
	$(BIN)/python scripts/versions.py $@

versions: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group versions
	$(BIN)/python scripts/versions.py

clean:
	rm -rf $(VENV) demo site

# torch first, so that no other package installs another build of it. TextAttack is installed without its
# dependencies: its flair cannot be installed with transformers 5 and is not needed (see alignattn/robustness/library.py).
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'alignattn needs Python 3.11 or newer: make PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1" # which knows dependency groups
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]" $(GROUPS)
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps textattack
	touch $@
