# `make quickstart`, `make serve`, `make test`, `make lint` and `make bench` need Python 3.11 or newer and nothing else: each makes
# .venv and installs what it needs when that is missing or out of date. Another Python: make PYTHON=python3.12 test
.DEFAULT_GOAL := help
SHELL := /bin/bash
.PHONY: help quickstart serve reproduce-art reproduce-dpr reproduce-spar reproduce-ddr reproduce-typos test test-slow test-all test-gpu mutations lint format bench docs notebooks wheel matrix clean

BIN := .venv/bin
PYTHON ?= python3.11 python3.12 python3.13 python3
TESTS ?= tests
# Two workers and not one a core: XLA compiles with several threads. A file's tests share fixtures and compiled programs.
WORKERS ?= 2

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 26

quickstart: .venv/.installed ## train and evaluate a retriever from questions alone, on the embedded data
	$(BIN)/jaxretr quickstart

# The quickstart's own model where there is one. Options of `jaxretr serve`: make serve SERVE="--port 9000"
serve: .venv/.installed-serve ## the search page over the embedded passages, on http://127.0.0.1:8080
	args=$$($(BIN)/python -m jaxretr.quickstart.serving runs/serve runs/quickstart) && \
	exec $(BIN)/jaxretr serve $$args --data runs/serve/indexes $(SERVE)

# Each without JAXRETR_DATA on the data in the repository, and with it on all that docs/results names: the folder's data sets,
# and all-MiniLM-L6-v2 from its package. Fewer seeds, for instance: make reproduce-dpr DPR="--seeds 0"
DATA = $(JAXRETR_DATA)
BENCH = $(BIN)/python benchmarks

reproduce-art: .venv/.installed-dev ## ART: the quickstart with three seeds and ablations; with JAXRETR_DATA=DIR two domains and a long run; with CROSS_ENCODER=DIR or SMOLLM2=DIR a second teacher
	$(BENCH)/quickstart_seeds.py --runs runs/quickstart_seeds $(ART)
	$(BENCH)/art_encoders.py ablations --runs runs/art $(ART)
	$(if $(DATA),$(BENCH)/art_encoders.py domains --data $(DATA) --runs runs/art $(ART))
	$(if $(SMOLLM2),$(BENCH)/art_encoders.py embedded-teacher --scorer $(SMOLLM2) --runs runs/art $(ART))
	$(if $(and $(DATA),$(SMOLLM2)),$(BENCH)/art_encoders.py teacher --data $(DATA) --scorer $(SMOLLM2) --runs runs/art $(ART))
	$(if $(and $(DATA),$(SMOLLM2)),$(BENCH)/art_encoders.py whole-teacher --beds scifact medquad --data $(DATA) --scorer $(SMOLLM2) --runs runs/art $(ART))
	$(if $(DATA),$(BENCH)/art_encoders.py curve --data $(DATA) --runs runs/art $(ART))
	$(if $(CROSS_ENCODER),$(BENCH)/art_teachers.py --cross-encoder $(CROSS_ENCODER) $(if $(DATA),--data $(DATA),--embedded) --runs runs/art_teachers $(ART))

reproduce-dpr: .venv/.installed-dev ## DPR with three kinds of negatives on the embedded data; with JAXRETR_DATA=DIR on wiki_qa and MedQuAD
	$(if $(DATA),,$(BENCH)/dpr_negatives.py --runs runs/dpr_embedded $(DPR))
	$(if $(DATA),$(BENCH)/dpr_negatives.py --data $(DATA)/wiki_qa --runs runs/dpr $(DPR))
	$(if $(DATA),$(BENCH)/dpr_negatives.py --data $(DATA)/medquad --divide 5000 --runs runs/dpr_medquad $(DPR))

reproduce-spar: .venv/.installed-dev ## SPAR on the embedded data; with JAXRETR_DATA=DIR beside all-MiniLM-L6-v2, and on wiki_qa
	$(if $(DATA),,$(BENCH)/spar_wiki_qa.py --embedded --runs runs/spar_embedded --seeds 0 $(SPAR))
	$(if $(DATA),$(BENCH)/spar_minilm.py --data $(DATA) --runs runs/spar_minilm $(SPAR))
	$(if $(DATA),$(BENCH)/spar_minilm.py --data $(DATA) --runs runs/spar_layer --corpora scifact --config configs/spar_small_layer.py --untrained $(SPAR))
	$(if $(DATA),$(BENCH)/lexical_overlap.py $(DATA)/scifact --tokenizer $(DATA)/tokenizers/bert-base-uncased)
	$(if $(DATA),$(BENCH)/spar_wiki_qa.py --data $(DATA) --runs runs/spar $(SPAR))

DDR_SIZES = --targets scifact medquad --passages 2000 --curve-steps 0
DDR_NEW = --dam-settings="--optimizer.learning-rate 5e-4" --rem-settings="--optimizer.learning-rate 5e-3" --dr-settings="--optimizer.learning-rate 1e-3"
reproduce-ddr: .venv/.installed-dev ## DDR on the embedded data; with JAXRETR_DATA=DIR on four domains
	$(if $(DATA),,$(BENCH)/ddr_domains.py --embedded --runs runs/ddr_embedded --seeds 0 $(DDR))
	$(if $(DATA),$(BENCH)/ddr_domains.py --data $(DATA) --runs runs/ddr $(DDR_SIZES) --source-steps 200 --dam-steps 120 --steps 60 $(DDR))
	$(if $(DATA),$(BENCH)/ddr_domains.py --data $(DATA) --runs runs/ddr_new $(DDR_SIZES) --start new --source-steps 200 --dam-steps 600 --steps 150 $(DDR_NEW) --ablations source $(DDR))

reproduce-typos: .venv/.installed-dev ## training for typos on the embedded data; with JAXRETR_DATA=DIR on wiki_qa
	$(BENCH)/typos_wiki_qa.py $(if $(DATA),--data $(DATA) --runs runs/typos,--runs runs/typos_embedded --seeds 0) $(TYPOS)

test: .venv/.installed-dev ## all tests but the slow ones, or TESTS="tests/evaluate/test_metrics.py ..."
	JAXRETR_TEST_PROFILE=quick JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(TESTS)

test-slow: .venv/.installed-dev ## the slow tests, and all examples of the property tests; a third of them with THIRD=0, 1 or 2
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "slow or hypothesis" $(if $(THIRD),--third $(THIRD)) $(TESTS)

test-all: test test-slow ## both

# It installs nothing, for a machine whose jax is made for its cards: with .venv where there is one, or BIN=/folder/of/python.
# Ends in time for a call of ten minutes, and writes the report after each test. Not the property tests: a GPU would compile a
# program for each of their examples.
GPU_PYTHON = $(or $(wildcard $(BIN)/python),python3)
GPU_REPORT ?= gpu_tests.md
GPU_SECONDS ?= 500
GPU_WORKERS ?= 4
GPU_TESTS ?= $(shell sed '/^\#/d' tests/gpu_tests.txt)
test-gpu: ## tests/gpu_tests.txt on the cards of this machine, without .venv or network; GPU_REPORT=FILE, GPU_SECONDS=500
	export JAX_PLATFORMS=$${JAX_PLATFORMS:-cuda,cpu} XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH="$(CURDIR):$$PYTHONPATH"; \
	beside=$$($(GPU_PYTHON) -c "import xdist; print('-n $(GPU_WORKERS) --dist loadfile')" 2>/dev/null); \
	$(GPU_PYTHON) -m pytest $$beside -m "not hypothesis" --continue-on-collection-errors --report $(GPU_REPORT) --seconds $(GPU_SECONDS) $(GPU_TESTS)

# Hours for all. Those of a module: make mutations MUTATIONS="jaxretr.evaluate.metrics*"; one: $(BIN)/mutmut show NAME
mutations: .venv/.installed-dev ## make the losses, metrics and search wrong in a copy, in mutants/: which changes does no quick test notice?
	JAX_PLATFORMS=cpu JAXRETR_TEST_PROFILE=quick $(BIN)/mutmut run --max-children $(WORKERS) $(MUTATIONS)
	$(BIN)/mutmut results | sed "/not checked/d"

lint: .venv/.installed-dev ## format, lint, types, import directions, shell scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x -P tpu tpu/*.sh tpu/slurm.sbatch .ci/run

format: .venv/.installed-dev ## let ruff format the code and order the imports
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

bench: .venv/.installed-dev ## encoding, exact search and supervised training against their peers, at a small size
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/encode.py --count 64 --rounds 3
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/search.py --rows 20000 --queries 1 64 --repeats 3
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/train.py --batch-size 8 --steps 2 --rounds 2

docs: .venv/.installed-docs ## the documentation, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

# At the settings in the notebooks, minutes each; commit what it changes. Some: make notebooks NOTEBOOKS=notebooks/main_flow.ipynb
NOTEBOOKS ?= notebooks/*.ipynb
notebooks: .venv/.installed-dev ## execute the notebooks and save their outputs in them
	$(BIN)/python docs/execute.py $(NOTEBOOKS)

wheel: .venv/.installed-dev ## the wheel and the source archive, in dist/, built from the archive and checked
	rm -rf build dist
	$(BIN)/uv build --quiet
	$(BIN)/twine check --strict dist/jaxretr-*
	WHEEL=$$(echo dist/jaxretr-*.whl) $(BIN)/python -m pytest tests/test_wheel.py

# Each in an empty environment outside of the clone; uv finds a Python or downloads it. MATRIX takes paths of Pythons as well.
MATRIX ?= 3.11 3.12 3.13
matrix: | $(BIN)/uv ## install dist/'s wheel alone with each Python of MATRIX, and encode
	@uv=$(abspath $(BIN)/uv) wheel=$$(realpath dist/jaxretr-*.whl) && for python in $(MATRIX); do \
	  folder=$$(mktemp -d) && cd $$folder && $$uv venv --quiet --python $$python .venv && \
	  $$uv pip install --quiet --python .venv/bin/python $$wheel && .venv/bin/jaxretr --help >help && \
	  echo '{"_id": "1", "title": "Mars", "text": "The fourth planet."}' >corpus.jsonl && \
	  encoder=$$(.venv/bin/python -c 'import jaxretr.assets; print(jaxretr.assets.ENCODER_SMALL)') && \
	  .venv/bin/jaxretr encode $$encoder --corpus corpus.jsonl --out embeddings && \
	  .venv/bin/python -c 'import sys, jax, jaxretr; print(*sys.version.split()[:1], "jax", jax.__version__, "jaxretr", jaxretr.__version__)' && \
	  rm -rf $$folder || exit; \
	done

clean: ## remove .venv and all that was built
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .jax_cache mutants build dist *.egg-info
	rm -rf docs/_build docs/_generated docs/notebooks docs/tpu.md docs/contributing.md docs/changelog.md
	find . -name __pycache__ -prune -exec rm -rf {} +

# uv installs in a tenth of pip's time; it reads no pip.conf, so where only a mirror is reachable pip takes over.
INSTALL = install() { $(BIN)/uv pip install --quiet --python $(BIN)/python "$$@" || $(BIN)/pip install --quiet "$$@"; }; install

# A name on the path may be a broken shim or too old, hence the trial.
$(BIN)/uv:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv .venv"; \
	    "$$python" -m venv .venv && exit; \
	    echo "$$python cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)" >&2; exit 1; \
	  fi; \
	done; \
	echo "no Python 3.11 or newer on the path; install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1
	$(BIN)/pip install --quiet uv==0.13.8

.venv/.installed: pyproject.toml requirements.txt | $(BIN)/uv
	$(INSTALL) -e .
	touch $@

# torch first and with pip: from PyPI Linux gets gigabytes of CUDA, from PyTorch's own index, or from a wheel that
# pip.conf names, the CPU's build. Where that index is out of reach pip warns and goes on without it.
.venv/.installed-dev: .venv/.installed requirements-torch.txt requirements-dev.txt requirements-fastembed.txt
	$(BIN)/pip install --quiet --no-deps --timeout 15 --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu -r requirements-torch.txt
	$(INSTALL) -e '.[dev]'
	$(BIN)/pip install --quiet --no-deps -r requirements-fastembed.txt
	touch $@

.venv/.installed-serve: .venv/.installed requirements-serve.txt
	$(INSTALL) -e '.[serve]'
	touch $@

.venv/.installed-docs: .venv/.installed requirements-docs.txt
	$(INSTALL) -e '.[docs]'
	touch $@
