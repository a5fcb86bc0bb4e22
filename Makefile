# make run    install into a virtual environment, then run the whole pipeline on the built-in generated log
# make test   all checks: format, lint, imports, types, tests
# make test-quick  the tests with the mark `quick`: arrays in, arrays out; about a minute on two cores
# make test-faults  kills, errors, damage, commands at once, S3 that fails, readers of raw logs: every sweep of docs/reliability.md, the longest with 50 tries on a real service: more than an hour on two cores
# make test-stack   servers, workers, schedules and faults of the service, and the services of the compose file from a dropped file to an export, as real processes
# make test-ray     clusters of Ray on this machine: equal digests, workers and drivers killed, nodes and tokens refused; two at a time, three to four minutes on two busy cores
# make test-bare    install the core, without extras, into an environment of its own and run it there; two to three minutes, not a part of CI
# make test-mutants  change one operator or constant of a module, 200 times: do its tests notice; an hour on one core
# make screenshots  the pictures of docs/ui.md except that of the report, made by the tests of the pages in Chromium
# make notebooks    run the notebooks of examples/ and store their outputs, some minutes
# make docs   build the documentation site -> site/
# make wheel  build the distribution -> dist/
# make test-versions  test the wheel in a clean environment for each Python of PYTHONS, 3 GB each
# make ui     start MLflow's pages on the runs of the local store; it prints the command that has the login
# make bench        run the benchmarks against other libraries -> benchmarks/RESULTS.md, under 25 minutes
# make bench-serving  rankings as of now beside events: latencies of `dyformer serve`
# make bench-soak   200 simulated daily retrainings: whether disk, memory and time stay bounded
# make bench-gpu    a training and vectors on a GPU, beside the CPU of the machine -> the same page, some minutes
# make bench-orchestration  what Prefect and MLflow add to a retraining, and a run without new rows -> the same page
# make bench-runs   CPU seconds of run and predict, in turn with those of the commit BEFORE -> the same page
# make bench-context  contexts of a large graph by pushed mass, in turn with the exact solve -> the same page, some minutes and 4 GB
# make bench-scale  12 million interactions, raw text to forecasts -> the same page, a quarter of an hour and 12 GB on two cores

PYTHON ?= python3
VENV ?= .venv
# Installed first, because the package index decides which build of torch it is.
TORCH ?= torch==2.13.0
# For test-versions: missing versions are reported and skipped. TESTS selects the tests.
PYTHONS ?= python3.11 python3.12 python3.13
TESTS ?= tests
DYFORMER_STORAGE ?= data
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Folders that have tests with this mark: the others need not be imported to see that they have none.
QUICK := $(addprefix tests/,graphs logs model sampling scoring streams)

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Where it is set, each process of a test compiles all modules of the project anew, which takes half a second.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run notebooks test test-quick test-ray test-stack test-bare test-faults test-mutants docs wheel test-versions install ui bench bench-context bench-gpu bench-scale bench-serving bench-soak bench-orchestration bench-runs screenshots clean

run: install
	$(BIN)/dyformer run generated

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 3 GB, some minutes"
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[server,dev,docs]"
	touch $@

# Pyright, which uses one core, runs beside the tests, with more memory for new objects: it collects garbage less often.
# Three processes test on two cores, because tests wait for programs and disks; each takes up to 2.2 GB.
# tests/conftest.py has the order of the files.
test: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	PATH="$(abspath $(BIN)):$$PATH" NODE_OPTIONS=--max-semi-space-size=64 $(BIN)/pyright & types=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 20; tests=$$?; \
	wait $$types || { echo "pyright found errors, which stand above" >&2; exit 1; }; exit $$tests

# The longest first, because two of them run at a time.
FAULTS := killed_workers kills s3 errors mixed_machines experiments damaged_runs damage s3_damage resume moved_stores forgeries machines changing_files concurrency
.PHONY: $(FAULTS:%=test-%) test-readers

test-faults: install
	OMP_NUM_THREADS=1 $(MAKE) -j 2 -k test-readers $(FAULTS:%=test-%)

test-readers:
	DYFORMER_FUZZ_EXAMPLES=3000 DYFORMER_FUZZ_ROWS=60 $(BIN)/python -m pytest -q tests/logs/test_readers_agree.py

$(FAULTS:%=test-%): test-%:
	$(BIN)/python tests/faults/$*.py

test-quick: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m quick -n 2 --dist loadfile $(QUICK)

test-stack: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m stack -n 4 --dist loadfile --no-loadscope-reorder --durations 12 tests/stack

test-ray: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray -n 2 tests/cluster

test-bare: install
	$(BIN)/python -m pytest -m bare tests/test_core_install.py

screenshots: install
	DYFORMER_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -m stack tests/stack/test_pages.py

test-mutants: install
	$(BIN)/python tests/faults/mutants.py --tries 200

notebooks: install
	$(BIN)/python tests/examples/execute_notebooks.py

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel:
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

test-versions: wheel
	for python in $(PYTHONS); do \
		if $$python --version 2>/dev/null; then \
			OMP_NUM_THREADS=1 PYTHON=$$python TORCH="$(TORCH)" .ci/test-wheel dist/*.whl $(TESTS) || exit 1; \
		else \
			echo "$$python is not installed: skipped"; \
		fi; \
	done

ui: install
	$(BIN)/dyformer --storage "$(DYFORMER_STORAGE)" ui

$(VENV)/.bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run_all.py

bench-context: $(VENV)/.bench
	$(BIN)/python benchmarks/pushed_context.py s10m

bench-scale: $(VENV)/.bench
	$(BIN)/python benchmarks/scale.py s10m

bench-gpu: $(VENV)/.bench
	$(BIN)/python benchmarks/gpu.py

bench-orchestration: $(VENV)/.bench
	$(BIN)/python benchmarks/orchestration.py

bench-runs: $(VENV)/.bench
	$(BIN)/python benchmarks/runs.py $(BEFORE)

bench-serving: $(VENV)/.bench
	$(BIN)/python benchmarks/serving.py

bench-soak: $(VENV)/.bench
	$(BIN)/python benchmarks/soak.py

clean:
	rm -rf $(VENV) .venv-wheel dist site .pytest_cache .ruff_cache .import_linter_cache
