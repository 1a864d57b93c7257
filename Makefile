# Two targets are all a newcomer needs: `make demo` and `make test`. Each sets up .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
PAGE := .venv/page/node_modules
JOBS ?= 2
# Tests as pytest rewrites them are kept, also where a machine says otherwise: rewriting takes most of a collection.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch check corpus format lint types page bench fuzz mutants lab matrix long scoreboard release site docs clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/pip.stamp:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/user.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	@touch $@

.venv/dev.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ .venv/user.stamp

# 2.13.0 comes as a CPU build from the package index; other versions bring gigabytes of CUDA libraries.
.venv/torch.stamp: .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[torch]' torch==2.13.0
	@touch $@

# The trainers whose meshes tests/step/test_trainer_meshes.py builds; ortools 9.15 wants an older protobuf than they do.
.venv/trainers.stamp: .venv/torch.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torchtitan==0.3.0 megatron-core==0.16.1 triton einops 'protobuf<6.34'
	@touch $@

demo: .venv/user.stamp ## advise on a real config.json: terminal tables and out/pythia-2.8b.html
	@mkdir -p out
	$(BIN)/sartor advise examples/pythia-2.8b/config.json --gpu a100 --html out/pythia-2.8b.html
	@echo "open out/pythia-2.8b.html"

test: .venv/dev.stamp ## run the tests (with ALL=1, as in CI: also those that take more than two seconds)
	@$(BIN)/python -m compileall -q src tests # hundreds of tests start a process
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(if $(ALL),,-m 'not slow')

long: .venv/dev.stamp ## every test with its many cases (the whole zoo in a browser, 50 kills a command): about an hour
	SARTOR_LONG=1 $(BIN)/python -m pytest -n $(JOBS)

test-torch: .venv/trainers.stamp ## install the torch extra and run the tests that want it
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m torch $$(grep -rl 'mark\.torch' tests --include='test_*.py')

format: .venv/dev.stamp ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	@test ! -x $(PAGE)/.bin/biome || $(PAGE)/.bin/biome check --write --config-path=tools/page src/sartor/web/static

check: ALL = 1
check: lint types page test ## format, lint, types, the page's code and every test: what CI runs

corpus: .venv/dev.stamp ## read every launch of tests/corpus: read, partly, refused or wrong by dialect
	$(BIN)/python tools/corpus.py

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/house.py --check

types: .venv/dev.stamp
	$(BIN)/mypy

# What checks the page's code comes from npm; nothing of it is in the wheel.
.venv/page.stamp: .venv/pip.stamp tools/page/package.json
	mkdir -p .venv/page && cp tools/page/package.json .venv/page/
	npm install --prefix .venv/page --no-package-lock --no-audit --no-fund --silent
	@touch $@

page: ## format, lint and types of the page's JavaScript and CSS (biome, tsc); needs npm
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory .venv/page.stamp; \
	else echo "npm is not on this machine, so the page's code is NOT checked (Debian: apt-get install npm)"; test -z "$$CI"; fi
	@test ! -x $(PAGE)/.bin/biome || $(PAGE)/.bin/biome check --error-on-warnings --config-path=tools/page src/sartor/web/static
	@test ! -x $(PAGE)/.bin/tsc || $(PAGE)/.bin/tsc -p tools/page

matrix: ## the fast tests on the lowest and newest dependencies, Python 3.11 to 3.13 (or: make matrix ON="3.11 lowest")
	.ci/matrix $(ON)

bench: .venv/dev.stamp ## speed as ratios against the naive way, in one run
	@for f in benchmarks/bench_*.py; do echo "== $$f"; $(BIN)/python $$f || exit 1; done

N ?= 1000
SEED ?= 0
fuzz: .venv/dev.stamp ## mutated files through every reader; N=1000 SEED=0 READERS=config,gpu
	$(BIN)/python tests/fuzz/contract.py --number $(N) --seed $(SEED) $(if $(READERS),--readers $(READERS))

mutants: .venv/dev.stamp ## one operator of a checker, price or threshold changed at a time: which change do the tests miss? (ARGS="--every 4")
	$(BIN)/python tools/mutants.py $(ARGS)

lab: .venv/dev.stamp ## check that the fits of lab/ load; FIT=fit_gemm ARGS=h200_sxm.fp8 runs one on ../shared/data
	@$(BIN)/python lab/run.py $(FIT) $(ARGS)

.venv/peers.stamp: .venv/dev.stamp
	$(PYTHON) -m venv .venv/peers
	.venv/peers/bin/python -m pip install --quiet --disable-pip-version-check -e '.[data,heuristics]' llm-analysis
	@touch $@

scoreboard: .venv/peers.stamp ## other predictors beside ours: docs/scoreboard.md (ARGS="--calculon CHECKOUT --simumax ...")
	.venv/peers/bin/python lab/scoreboard.py $(ARGS)

.venv/site.stamp: .venv/pip.stamp pyproject.toml
	$(PYTHON) -m venv .venv/site
	.venv/site/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

URL ?= $(shell sed -n 's/^Repository = "\(.*\)"/\1/p' pyproject.toml)
site: .venv/site.stamp ## build the documentation into out/site, every link checked and every notebook run
	URL=$(URL) .venv/site/bin/mkdocs build --strict --quiet

.venv/sbom.stamp: .venv/pip.stamp
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7'
	@touch $@

release: .venv/dev.stamp .venv/sbom.stamp ## build sdist, wheel and SBOM into dist/ and check them: contents, sizes, licences, a fresh install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	rm -rf dist && $(BIN)/python -m build --outdir dist . >/dev/null
	$(BIN)/python tools/release.py dist .venv/sbom/bin/cyclonedx-py

docs: .venv/dev.stamp ## regenerate the generated pages of docs/
	@for f in tools/*_docs.py; do $(BIN)/python $$f || exit 1; done

clean: ## remove what the targets made
	rm -rf .venv out build dist
