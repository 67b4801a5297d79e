#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the tests of the RocksDB integration with versions of RocksDB other than this machine's:
#
#   integrations/rocksdb/versions.sh DIRECTORY [tests|soak|cmake] VERSION…
#
#   tests      runs the tests; the default
#   soak       runs the soak test, as `make soak-rocksdb`: READS Gets, or SOAK_SECONDS, compared with plain ones
#   cmake      prints the arguments with which CMake builds with the version, one a line
#
#   machine    the version installed on this machine
#   debian13   9.10, as Debian 13 packages it: unpacked into DIRECTORY with its C library, installed nowhere
#   newest     11.8, which the crate librocksdb-sys bundles: compiled in DIRECTORY, half an hour on two processors
#   rust       the same, used by a program in Rust that uses the crate rocksdb
#
# Downloads and build results stay in DIRECTORY.
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/own_apt.sh

# This machine's compiler is used, so its standard library must be at least as new as the one RocksDB was linked with.
readonly SUITE=trixie
readonly PACKAGES=(librocksdb-dev libstdc++6 libc6)
readonly NEWEST=0.19.0

fail() {
	echo "RocksDB versions: $*" >&2
	exit 1
}

# Each function prints the arguments that CMake needs.
machine() {
	:
}

debian13() {
	local at=$1/debian13 libraries package
	mkdir -p "$at"
	if [[ ! -f $at/done ]]; then
		(
			own_apt "$at" amd64 "$SUITE"
			apt-get install -qq -y --download-only "${PACKAGES[@]}" >/dev/null || fail "apt cannot fetch ${PACKAGES[*]}"
		) >&2
		for package in "$at"/apt/archives/*.deb; do
			dpkg-deb -x "$package" "$at/root" || fail "cannot unpack $package"
		done
		mkdir -p "$at/include"
		ln -sfn "$PWD/$at/root/usr/include/rocksdb" "$at/include/rocksdb"
		touch "$at/done"
	fi
	libraries=$PWD/$at/root/usr/lib/x86_64-linux-gnu
	echo "-DROCKSDB_LIBRARY=$libraries/librocksdb.so"
	echo "-DCMAKE_C_FLAGS=-isystem $PWD/$at/include"
	echo "-DCMAKE_CXX_FLAGS=-isystem $PWD/$at/include"
	# The package's libraries need its C library, and that needs its own loader.
	echo "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--dynamic-linker=$libraries/ld-linux-x86-64.so.2 \
-Wl,--disable-new-dtags,-rpath,$libraries -Wl,--allow-shlib-undefined"
}

newest() {
	local at=$1/newest sources built
	mkdir -p "$at/src"
	: >"$at/src/lib.rs"
	cat >"$at/Cargo.toml" <<-MANIFEST
		[package]
		name = "newest-rocksdb"
		version = "0.0.0"
		edition = "2024"

		[dependencies]
		librocksdb-sys = { version = "=$NEWEST", features = ["bzip2", "lz4", "snappy", "zlib", "zstd"] }

		# As programs have it: benchmarks use it as well.
		[profile.dev.package.librocksdb-sys]
		opt-level = 2
		debug = false

		[workspace]
	MANIFEST
	(cd "$at" && CARGO_TARGET_DIR=target cargo build) >&2 || fail "the newest RocksDB does not compile"
	sources=$(cd "$at" && cargo metadata --format-version 1 |
		python3 -c 'import json, os, sys
print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "librocksdb-sys"))')
	built=$(dirname "$(echo "$PWD/$at"/target/debug/build/librocksdb-sys-*/out/librocksdb.a)")
	echo "-DROCKSDB_LIBRARY=$built/librocksdb.a"
	# This RocksDB needs a newer Snappy than the machine may have.
	echo "-DSNAPPY_LIBRARY=$built/libsnappy.a"
	echo "-DCMAKE_C_FLAGS=-isystem $sources/rocksdb/include"
	echo "-DCMAKE_CXX_FLAGS=-isystem $sources/rocksdb/include"
	echo "-DCMAKE_CXX_STANDARD=20"
	echo "-DCMAKE_CXX_STANDARD_LIBRARIES=-lz -lbz2 -ldl"
}

rust() {
	local library
	library=$(newest "$1" | sed -n 's/^-DROCKSDB_LIBRARY=//p')
	# Reuses compiled files.
	ROCKSDB_STATIC=1 ROCKSDB_LIB_DIR=$(dirname "$library") CARGO_TARGET_DIR=$1/rust \
		cargo build --manifest-path integrations/rocksdb/rust/Cargo.toml --example lookup --locked
	ROCKSDB_RUST=$PWD/$1/rust/debug/examples/lookup \
		cargo test -p bpfof-cli --test rocksdb --locked a_rust_program -- --ignored --nocapture
}

# What to do with a version.
run_tests() {
	cargo test -p bpfof-cli --test rocksdb --locked -- --nocapture
}

run_soak() {
	cargo test --release -p bpfof-cli --test rocksdb --locked -- --ignored --exact soak --nocapture
}

run_cmake() {
	[[ -z $ROCKSDB_CMAKE ]] || echo "$ROCKSDB_CMAKE"
}

readonly USAGE="usage: integrations/rocksdb/versions.sh DIRECTORY [tests|soak|cmake] machine|debian13|newest|rust…"
[[ $# -ge 2 ]] || fail "$USAGE"
directory=$1
task=tests
shift
if [[ $1 == tests || $1 == soak || $1 == cmake ]]; then
	task=$1
	shift
fi
[[ $# -ge 1 ]] || fail "$USAGE"
for version in "$@"; do
	[[ $version == machine || $version == debian13 || $version == newest || $version == rust ]] ||
		fail "there is no version $version; the versions are machine, debian13, newest and rust"
	[[ $version != rust || $task == tests ]] || fail "rust has tests only"
done
for version in "$@"; do
	echo "RocksDB versions: $version" >&2
	if [[ $version == rust ]]; then
		rust "$directory"
		continue
	fi
	ROCKSDB_CMAKE=$("$version" "$directory")
	export ROCKSDB_CMAKE
	if [[ $version == machine ]]; then
		"run_$task"
	else
		ROCKSDB_VERSION=$version "run_$task"
	fi
done
