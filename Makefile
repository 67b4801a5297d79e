# Everything a contributor runs. The CI runs `make test` and nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Tools that scripts/setup.sh builds at pinned versions come before those of the machine.
export PATH := $(CURDIR)/.tools/bin:$(PATH)

BPFOF := $(or $(CARGO_TARGET_DIR),target)/release/bpfof
BPFOF_DEBUG := $(or $(CARGO_TARGET_DIR),target)/debug

# How long `make fuzz` runs each target, in seconds, and which targets.
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?= $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))

# The checks of cargo-deny, without advisories, which would download a database.
DENY_CHECKS := bans licenses sources

# `make interop`: how long fio runs, in seconds, and how often the target is killed.
FIO_SECONDS ?= 20
KILLS ?= 3

# `make test` as root skips nothing: a test that would skip something fails. MAY_SKIP lists the exceptions, as words,
# because they cannot be installed: ktls, TLS in the kernel; fuse; ipv6; core, dumps of memory; users, if other users
# may not run the programs built here; guest, which is made of Debian's packages.
MAY_SKIP ?= ktls
STRICTLY = $(if $(filter 0,$(shell id -u)),BPFOF_NO_SKIP=1 BPFOF_MAY_SKIP='$(MAY_SKIP)')

# How long `make race` runs on each file system, in seconds.
RACE_SECONDS ?= 600

# How many chains the hostile client of `make grants` runs.
GRANT_CHAINS ?= 1000000

# How long each part of `make soak` takes, in seconds.
SOAK_SECONDS ?= 3600

# `make soak-rocksdb` runs for this number of Gets instead of a time, if it is given.
READS ?=

# `make soak-paths`: how many rounds of losses, and how many seconds they take at least.
PATH_ROUNDS ?= 10
PATH_SECONDS ?= 90

# How many functions `make loads` loads and unloads.
LOADS ?= 100000

# `make install` and `make uninstall`: the folders of installation, and a prefix for them. BUILD_DIR has the programs
# and the libraries; without it they are built first.
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
BUILD_DIR ?=
INSTALL = PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' scripts/install.sh

# `make rocksdb-versions`: the versions of RocksDB, besides this machine's.
ROCKSDB_VERSIONS ?= debian13 newest

# `make bench-rocksdb`: the version of RocksDB.
ROCKSDB_VERSION ?= machine

# `make rocksdb-tables`: the number of tables.
TABLES ?= 20000

.PHONY: help setup test python-and-guest guest lint doc fuzz-check release demo bench bench-rocksdb \
	bench-wiredtiger go-ycsb interop interop-fast interop-module interop-dkms bench-xrp screenshots wheel race grants soak soak-simulation soak-rocksdb \
	soak-rocksdb-versions soak-wiredtiger wiredtiger-11 soak-paths rocksdb-versions rocksdb-rust rocksdb-tables instructions \
	loads test-aarch64 fuzz \
	install uninstall deb deb-test pictures clean

help: ## list the targets (the default)
	@awk -F ': .*## ' '/^[a-z0-9-]+:.*## / { printf "make %-22s%s\n", $$1, $$2 }' Makefile

setup: ## install what building and testing need and this machine lacks
	@scripts/setup.sh cargo-deny

test: setup ## everything that must pass before a commit; the CI runs it
	@scripts/setup.sh rocksdb wiredtiger tls prometheus chromium
	@# Downloads, for the most part, while checks compile.
	@$(MAKE) --no-print-directory python-and-guest & others=$$!; \
		$(MAKE) --no-print-directory lint doc fuzz-check || { kill $$others; exit 1; }; \
		wait $$others || { echo "test: Python packages or the guest of interop-fast are missing" >&2; exit 1; }
	$(STRICTLY) cargo test --workspace --locked
	@if command -v apt-get >/dev/null; then \
		$(STRICTLY) $(MAKE) --no-print-directory interop-fast; \
	else \
		echo "interop-fast: SKIPPED, apt fetches what its guest is made of"; \
		[ -z "$(STRICTLY)" ] || [ -n "$(filter guest,$(MAY_SKIP))" ] || \
			{ echo "test: it must not be left out; MAY_SKIP='$(MAY_SKIP) guest' allows it" >&2; exit 1; }; \
	fi

# Things that the tests need, but not their compilation.
python-and-guest:
	@scripts/setup.sh python
	@$(MAKE) --no-print-directory guest

guest: setup ## get the parts of the guest of interop-fast
	@if command -v apt-get >/dev/null; then \
		scripts/setup.sh qemu tshark && interop/image.sh .interop && interop/module.sh .interop; \
	fi

lint: setup ## formatting, clippy, import cycles, and the dependencies' versions, licences and sources
	cargo fmt --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo fmt --check --manifest-path integrations/rocksdb/rust/Cargo.toml
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo update --workspace --locked --quiet --manifest-path integrations/rocksdb/rust/Cargo.toml
	python3 scripts/import_cycles.py
	cargo deny check --hide-inclusion-graph $(DENY_CHECKS)
	cargo deny --manifest-path fuzz/Cargo.toml check --hide-inclusion-graph $(DENY_CHECKS)

# Libraries only: the command line's doc comments are its help, which is not Markdown.
doc: setup ## the documentation of all libraries; warnings are errors
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --lib --no-deps --locked

# Nothing is linked here, so libFuzzer is not needed, and need not be compiled.
fuzz-check: setup ## compile the fuzz targets without the sanitizer
	CUSTOM_LIBFUZZER_PATH=/none/libFuzzer.a cargo check --manifest-path fuzz/Cargo.toml --locked \
		--target-dir $(or $(CARGO_TARGET_DIR),target)

# Builds everything that is installed, so that the installation compiles nothing again.
release:
	@scripts/setup.sh
	cargo build --release -p bpfof-cli -p bpfof-query-command -p bpfof-capi --locked
	$(MAKE) --no-print-directory -C functions

demo: release ## build and run the demonstration
	$(BPFOF) demo

bench: release ## benchmarks: pushdown and plain reads, reads and TCP; local chains; hops, maps, functions
	@scripts/setup.sh perf
	$(BPFOF) bench kv --levels 6 --json bench-kv.json
	perf=$$(perf record -q -C 0 -o /dev/null -- true 2> /dev/null && echo --perf || true); \
		$(BPFOF) bench net $$perf --json bench-net.json --plots bench-net
	$(BPFOF) bench kv --executor local --json bench-local.json
	cargo bench -p bpfof-device --locked
	cargo bench -p bpfof-chain --locked
	cargo bench -p bpfof-cli --bench files --locked
	cargo bench -p bpfof-function --locked
	$(BPFOF) bench function --json bench-function.json --plot bench-function.png

# Root is needed to mount an image; bench-rocksdb.json ends with a summary.
ROCKSDB_BUILD := $(or $(CARGO_TARGET_DIR),target)/rocksdb
ROCKSDB_BENCH_BUILD := $(ROCKSDB_BUILD)$(if $(filter-out machine,$(ROCKSDB_VERSION)),-$(ROCKSDB_VERSION))
bench-rocksdb: ## RocksDB over the network: plain reads against pushdown (half an hour; root); ROCKSDB_VERSION=newest
	@scripts/setup.sh rocksdb
	cargo build --release -p bpfof-cli -p bpfof-capi --locked
	arguments=$$(integrations/rocksdb/versions.sh .rocksdb cmake $(ROCKSDB_VERSION)); \
		printf '%s' "$$arguments" | tr '\n' '\0' | \
		xargs -0 cmake -S integrations/rocksdb -B $(ROCKSDB_BENCH_BUILD) \
		-DBPFOF_LIBRARY_DIR=$(abspath $(dir $(BPFOF))) -DBPFOF_TESTS=ON
	cmake --build $(ROCKSDB_BENCH_BUILD) --parallel 2 --target bpfof-rocksdb-bench
	$(BPFOF) bench rocksdb --driver $(ROCKSDB_BENCH_BUILD)/bpfof-rocksdb-bench --json bench-rocksdb.json \
		--plots bench-rocksdb

# With the machine's WiredTiger, or one that was compiled: WIREDTIGER_DIR=.wiredtiger/wiredtiger-11.3.1.
WIREDTIGER_BUILD := $(or $(CARGO_TARGET_DIR),target)/wiredtiger$(if $(WIREDTIGER_DIR),-other)
bench-wiredtiger: ## WiredTiger over the network: plain reads against pushdown (a quarter of an hour; root)
	@scripts/setup.sh wiredtiger
	cargo build --release -p bpfof-cli -p bpfof-capi --locked
	cmake -S integrations/wiredtiger -B $(WIREDTIGER_BUILD) -DBPFOF_LIBRARY_DIR=$(abspath $(dir $(BPFOF))) \
		-DWIREDTIGER_DIR=$(abspath $(WIREDTIGER_DIR)) -DBPFOF_TESTS=ON
	cmake --build $(WIREDTIGER_BUILD) --parallel 2 --target bpfof_wiredtiger bpfof-wiredtiger-bench
	$(BPFOF) bench wiredtiger --driver $(WIREDTIGER_BUILD)/bpfof-wiredtiger-bench --json bench-wiredtiger.json

# Only this goal needs Go and the modules that it downloads. Go does not notice changed libraries and links only a
# missing program: so the old program is removed first.
GO_YCSB := $(abspath $(ROCKSDB_BUILD))
go-ycsb: ## go-ycsb over the RocksDB integration, an independent driver: target/rocksdb/go-ycsb
	@scripts/setup.sh rocksdb go
	cargo build --release -p bpfof-cli -p bpfof-capi --locked
	cmake -S integrations/rocksdb -B $(ROCKSDB_BUILD) -DBPFOF_LIBRARY_DIR=$(abspath $(dir $(BPFOF)))
	cmake --build $(ROCKSDB_BUILD) --parallel 2 --target bpfof-rocksdb
	rm -f $(GO_YCSB)/go-ycsb
	cd integrations/rocksdb/go-ycsb && \
		CGO_CXXFLAGS="-std=c++17 -O2 -Wall -Wextra -Werror -I$(CURDIR)/integrations/rocksdb/include" \
		CGO_LDFLAGS="-L$(GO_YCSB) -lbpfof-rocksdb -l:libbpfof.so.0 -Wl,-rpath,$(GO_YCSB) \
			-lrocksdb -lsnappy -llz4 -lzstd" \
		PATH="$$PATH:/usr/local/go/bin" go build -buildvcs=false -o $(GO_YCSB)/go-ycsb .

interop: release ## a stock Linux kernel in QEMU as host and target, running our target, and chains on NVMe drives
	@scripts/setup.sh qemu tshark rocksdb
	cargo build -p bpfof-cli --example tour --locked
	interop/tshark.py --tour $(BPFOF_DEBUG)/examples/tour
	interop/image.sh .interop
	cargo build --release -p bpfof-cli --example verify --example endure --example packets --locked
	interop/run.py --target $(BPFOF) --query $(BPFOF)-query --verify $(dir $(BPFOF))examples/verify \
		--endure $(dir $(BPFOF))examples/endure --packets $(dir $(BPFOF))examples/packets \
		--fio-seconds $(FIO_SECONDS) --kills $(KILLS)
	interop/run.py --parts rdma_commands --target $(BPFOF)
	interop/passthrough.py
	$(MAKE) --no-print-directory interop-module

# Each of these boots a machine. CHAINS is the number of chains of each test that counts them, CHAINS_BESIDE_FIO that of
# the test beside fio. KERNEL may be cloud-amd64 or debian12 (6.12 for Debian 12). The guest is Debian 13's.
CHAINS ?= 10000
CHAINS_BESIDE_FIO ?= $(CHAINS)
KERNEL ?=
GUEST = .interop$(if $(KERNEL),/$(KERNEL))
interop-module: setup ## chains in the kernel of a guest, with the module of kernel/; KERNEL= chooses its kernel
	@scripts/setup.sh qemu
	interop/image.sh $(GUEST) $(KERNEL)
	interop/module.sh $(GUEST) $(KERNEL)
	for machine in "--processors 1" "--processors 2" "--processors 4 --queues 1" \
		"--append nvme.use_threaded_interrupts=1" "--append nvme.poll_queues=1" \
		"--append BPFOF_HAND_OVER=1"; do \
		echo "== $$machine"; \
		interop/passthrough.py --module --kernel "$(KERNEL)" --chains $(CHAINS) \
			--chains-beside-fio $(CHAINS_BESIDE_FIO) $$machine; \
	done

# Counts instructions, because times on an emulated drive mean nothing. On a machine with a real drive: bpfof bench xrp
# DRIVE FOLDER.
bench-xrp: release ## instructions of chains in the interrupt and of other ways, in a guest: bench-xrp.json
	@scripts/setup.sh qemu
	interop/image.sh .interop
	interop/module.sh .interop
	interop/xrp.py --bpfof $(BPFOF) --json bench-xrp.json

interop-dkms: deb ## build the guest's module by DKMS from the package, and run chains with it; needs root
	@scripts/setup.sh qemu
	interop/image.sh .interop
	interop/dkms.sh .interop $(DEBS)/bpfof-dkms_*.deb
	interop/passthrough.py --module --chains 500

# Uses the debug build of `cargo test`, because there is no time for a release build. The whole workspace is built:
# otherwise features would differ, and much would be compiled again.
interop-fast: guest ## the quick part of interop, with the debug build
	cargo build --workspace --bin bpfof --bin bpfof-query --example tour --locked
	interop/fast.sh $(BPFOF_DEBUG)

race: setup ## lookups in files that other processes change, for RACE_SECONDS (600); needs root
	RACE_SECONDS=$(RACE_SECONDS) cargo test -p bpfof-cli --test race --locked -- --nocapture

grants: setup ## a hostile client of the grant daemon runs GRANT_CHAINS (1000000); cost of grants; needs root
	GRANT_CHAINS=$(GRANT_CHAINS) cargo test --release -p bpfof-cli --test grants --locked -- \
		--nocapture --test-threads 1
	cargo test --release -p bpfof-cli --test grants --locked -- \
		--ignored --exact speed::grants_cost_little --nocapture

soak: soak-simulation soak-rocksdb ## soak-simulation, then soak-rocksdb

soak-simulation: setup ## the simulation on fresh seeds for SOAK_SECONDS (3600)
	SOAK_SECONDS=$(SOAK_SECONDS) cargo test --release -p bpfof-controller --lib --locked -- \
		--ignored --exact tests::simulation::soak --nocapture

soak-rocksdb: setup ## RocksDB while everything changes, disks fill and targets die, for SOAK_SECONDS; needs root
	@scripts/setup.sh rocksdb
	SOAK_SECONDS=$(SOAK_SECONDS) READS=$(READS) cargo test --release -p bpfof-cli --test rocksdb \
		--locked -- --ignored --exact soak --nocapture

soak-wiredtiger: setup ## WiredTiger while everything changes, SOAK_SECONDS (1800), WIREDTIGER_DIR; needs root
	@scripts/setup.sh wiredtiger
	SOAK_SECONDS=$(if $(filter command line environment,$(origin SOAK_SECONDS)),$(SOAK_SECONDS),1800) \
		WIREDTIGER_DIR=$(abspath $(WIREDTIGER_DIR)) \
		cargo test --release -p bpfof-cli --test wiredtiger --locked -- --ignored --exact soak --nocapture

# 11.3.1 stays in .wiredtiger, for WIREDTIGER_DIR.
WIREDTIGER_11 := $(CURDIR)/.wiredtiger
wiredtiger-11: setup ## compile WiredTiger 11.3.1, and test the integration with it; needs root
	@scripts/setup.sh wiredtiger
	integrations/wiredtiger/newest.sh $(WIREDTIGER_11)
	WIREDTIGER_DIR=$(WIREDTIGER_11)/wiredtiger-11.3.1 WIREDTIGER_PYTHON=$(WIREDTIGER_11)/python/bin/python \
		cargo test -p bpfof-cli --test wiredtiger --locked -- --nocapture --include-ignored --skip soak

soak-paths: setup ## one of two targets is drained, replaced, killed, cut off, PATH_ROUNDS (10) times; needs root
	@scripts/setup.sh rocksdb
	PATH_ROUNDS=$(PATH_ROUNDS) PATH_SECONDS=$(PATH_SECONDS) cargo test -p bpfof-cli --test failover \
		--locked -- --ignored --exact rounds::soak --nocapture

rocksdb-versions: setup ## compile the newest RocksDB, and test the integration with ROCKSDB_VERSIONS; needs root
	@scripts/setup.sh rocksdb
	integrations/rocksdb/versions.sh .rocksdb $(ROCKSDB_VERSIONS)

soak-rocksdb-versions: setup ## soak-rocksdb with the machine's and ROCKSDB_VERSIONS, READS Gets each; needs root
	@scripts/setup.sh rocksdb
	SOAK_SECONDS=$(SOAK_SECONDS) READS=$(or $(READS),1000000) \
		integrations/rocksdb/versions.sh .rocksdb soak machine $(ROCKSDB_VERSIONS)

rocksdb-tables: setup ## open a database of TABLES tables, and read it at the target; needs root
	@scripts/setup.sh rocksdb
	TABLES=$(TABLES) cargo test -p bpfof-cli --test rocksdb --locked a_database_of_many_tables -- --ignored --nocapture

rocksdb-rust: setup ## compile the newest RocksDB; a Rust program with the crate rocksdb, pushed down; needs root
	@scripts/setup.sh rocksdb
	integrations/rocksdb/versions.sh .rocksdb rust

instructions: setup ## count instructions of a command on both sides with Valgrind, and check their limits
	@scripts/setup.sh valgrind
	cargo test --release -p bpfof-controller --lib --locked -- --ignored --exact --nocapture \
		tests::instructions::no_command_takes_more_instructions_than_it_may

screenshots: setup ## take the pictures of the live page in docs/images, with Chromium
	@scripts/setup.sh chromium
	mkdir -p docs/images
	SCREENSHOTS=$(CURDIR)/docs/images cargo test -p bpfof-cli --test page --locked -- --nocapture

loads: setup ## load and unload a function LOADS (100000) times, and check for leaks
	LOADS=$(LOADS) cargo test -p bpfof-controller --test loads --locked -- --nocapture

# A target directory of its own, because the compiler is another one. No doc tests: rustdoc is the machine's.
AARCH64 := aarch64-unknown-linux-gnu
test-aarch64: ## storage functions on aarch64: their tests and the conformance corpus, in qemu-user
	@scripts/setup.sh aarch64
	RUSTC=$(CURDIR)/.tools/aarch64/rustc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
		cargo test -p bpfof-function --lib --tests --locked --target $(AARCH64) \
		--target-dir $(or $(CARGO_TARGET_DIR),target)/aarch64

# The address sanitizer is an unstable option of rustc. RUSTC_BOOTSTRAP lets the pinned stable
# toolchain take it, so that no second toolchain is needed.
fuzz: ## run each of FUZZ_TARGETS for FUZZ_SECONDS (600)
	@scripts/setup.sh cargo-fuzz
	$(MAKE) --no-print-directory -C functions
	mkdir -p fuzz/corpus/function_object
	cp functions/build/*.bpf.o functions/build/query/*.bpf.o fuzz/corpus/function_object/
	@for target in $(FUZZ_TARGETS); do \
		echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz "$$target" -- \
			-max_total_time=$(FUZZ_SECONDS) -len_control=1 -print_final_stats=1; \
	done

install: $(if $(BUILD_DIR),,release) ## install program, C library, headers, manuals, functions below PREFIX (/usr/local)
	$(MAKE) --no-print-directory -C functions
	@$(INSTALL) install $(or $(BUILD_DIR),$(dir $(BPFOF)))

uninstall: ## remove the files that make install has installed
	@$(INSTALL) uninstall $(or $(BUILD_DIR),$(dir $(BPFOF)))

pictures: setup ## redraw the pictures of `bpfof top` and `bpfof trace` in docs/images
	cargo test -p bpfof-cli --test top --locked -- --ignored --exact pictures --nocapture
	@scripts/setup.sh python
	UPDATE_PAGES=1 PYTEST_ADDOPTS='-k the_page' cargo test -p bpfof-cli --test python --locked

# The wheel and the packages that its tests use are installed in an environment of their own.
WHEELS := $(abspath $(or $(CARGO_TARGET_DIR),target))/wheels
wheel: release ## the Python package as a wheel, installed and tested: target/wheels
	@scripts/setup.sh python
	.tools/python/bin/maturin build --release --out $(WHEELS)
	rm -rf $(WHEELS)/python
	python3 -m venv $(WHEELS)/python
	$(WHEELS)/python/bin/pip install --quiet -r crates/python/requirements.txt $(WHEELS)/*.whl
	BPFOF=$(abspath $(BPFOF)) $(WHEELS)/python/bin/python -m pytest crates/python/tests

# The packages are linked with the C library of the distribution on which they are built.
DEBS := $(or $(CARGO_TARGET_DIR),target)/deb
deb: release ## Debian packages of program, libraries and RocksDB integration: target/deb
	@scripts/setup.sh rocksdb deb
	$(MAKE) --no-print-directory -C functions
	rm -rf $(DEBS)
	scripts/deb.sh $(dir $(BPFOF)) $(DEBS)

# The program of the package then serves a stock Linux host.
deb-test: deb ## install, use and remove the packages in a clean Debian; a Linux guest connects; needs root
	@scripts/setup.sh qemu
	lintian --fail-on error --allow-root $(DEBS)/*.deb
	scripts/deb_test.sh .deb-test $(DEBS)
	interop/image.sh .interop
	rm -rf $(DEBS)/installed
	dpkg-deb -x $(DEBS)/bpfof_*.deb $(DEBS)/installed
	interop/run.py --fast --parts plain --target $(DEBS)/installed/usr/bin/bpfof

clean: ## remove build results; keep .tools, .interop, .deb-test, .rocksdb, .wiredtiger and the findings of fuzzing
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
	$(MAKE) --no-print-directory -C functions clean
	rm -rf demo-output bench-kv.json bench-net.json bench-net bench-local.json bench-function.json bench-function.png bench-xrp.json
	rm -rf bench-rocksdb.json bench-rocksdb bench-wiredtiger.json
