#!/usr/bin/env bash
# Installs what this machine lacks to build and test bpf-of, and prints one line for each thing.
#
#   scripts/setup.sh [cargo-deny] [cargo-fuzz] [qemu] [tshark] [valgrind] [perf] [aarch64] [rocksdb] [wiredtiger] [tls] [prometheus] [chromium] [go] [deb] [python]
#
# Debian packages need root or sudo. Those for building and testing are always installed; all others only if the thing
# that needs them is named. The cargo tools named as arguments are compiled at pinned versions into .tools/. A Rust compiler for aarch64 is unpacked there as well, and so are Python
# packages: .tools/python. If nothing is missing, it does nothing, in under a second.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/own_apt.sh

readonly CARGO_DENY_VERSION=0.20.2
readonly CARGO_FUZZ_VERSION=0.13.2

fail() {
	echo "setup: $*" >&2
	exit 1
}

# Each probe prints what was found, and fails if the thing is missing or does not work.

probe_clang() {
	echo 'int f(void) { return 0; }' |
		"${CLANG:-clang}" -target bpf -mcpu=v3 -x c -c - -o /dev/null &&
		"${CLANG:-clang}" -dumpversion
}

probe_llvm_objdump() {
	llvm-objdump --version | sed -n 's/.*version \([0-9.]*\).*/\1/p' | grep .
}

probe_cc() {
	echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null && cc -dumpfullversion -dumpversion
}

probe_cxx() {
	printf '#include <cstdint>\nint main() { return 0; }\n' | c++ -x c++ - -o /dev/null &&
		c++ -dumpfullversion -dumpversion
}

probe_pkg_config() {
	pkg-config --version
}

probe_python3() {
	python3 --version | cut -d ' ' -f 2
}

# Not in every user's PATH.
probe_mkfs_ext4() {
	PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -V 2>&1 | sed -n 's/^mke2fs \([0-9.]*\).*/\1/p' | grep .
}

probe_mkfs_xfs() {
	PATH=$PATH:/usr/sbin:/sbin mkfs.xfs -V | sed -n 's/.*version \([0-9.]*\).*/\1/p' | grep .
}

probe_font() {
	{
		find /usr/share/fonts /usr/local/share/fonts "${HOME:-/}/.local/share/fonts" \
			-name DejaVuSans.ttf -print -quit || true # some of them do not exist
	} | grep .
}

probe_qemu() {
	qemu-system-x86_64 --version | sed -n 's/.*version \([0-9.]*\).*/\1/p' | grep .
}

probe_xz() {
	xz --version | sed -n 's/^xz .* //p' | grep .
}

probe_tshark() {
	dumpcap --version >/dev/null && tshark --version | sed -n '1s/.*(Wireshark) \([0-9.]*[0-9]\).*/\1/p' | grep .
}

# probe, printed name, Debian package
readonly THINGS=(
	"probe_clang        clang         clang"
	"probe_llvm_objdump llvm-objdump  llvm"
	"probe_cc           cc            gcc,libc6-dev"
	"probe_cxx          c++           g++"
	"probe_pkg_config   pkg-config    pkg-config"
	"probe_python3      python3       python3"
	"probe_mkfs_ext4    mkfs.ext4     e2fsprogs"
	"probe_mkfs_xfs     mkfs.xfs      xfsprogs"
	"probe_font         dejavu-fonts  fonts-dejavu-core"
)

readonly QEMU_THINGS=(
	"probe_qemu         qemu          qemu-system-x86"
	"probe_xz           xz            xz-utils"
)

probe_valgrind() { valgrind --version | sed 's/^valgrind-//'; }

readonly VALGRIND_THINGS=(
	"probe_valgrind     valgrind      valgrind"
)

probe_perf() { perf version | sed -n 's/^perf version //p' | grep .; }

readonly PERF_THINGS=(
	"probe_perf         perf          linux-perf"
)

readonly TSHARK_THINGS=(
	"probe_tshark       tshark        tshark"
)

probe_aarch64_cc() {
	echo 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -x c - -o /dev/null &&
		aarch64-linux-gnu-gcc -dumpfullversion -dumpversion
}

probe_qemu_aarch64() {
	qemu-aarch64 --version | sed -n 's/.*version \([0-9.]*\).*/\1/p' | grep .
}

probe_cmake() {
	cmake --version | sed -n 's/^cmake version //p' | grep .
}

probe_rocksdb() {
	printf '#include <%s>\n' rocksdb/db.h snappy.h lz4.h zstd.h xxhash.h | c++ -x c++ -fsyntax-only - &&
		echo '#include <rocksdb/version.h>' | c++ -x c++ -E -dM - |
		awk '/define ROCKSDB_(MAJOR|MINOR|PATCH)/ { v[$2] = $3 }
			END { print v["ROCKSDB_MAJOR"] "." v["ROCKSDB_MINOR"] "." v["ROCKSDB_PATCH"] }'
}

probe_wiredtiger() {
	echo '#include <wiredtiger.h>' | c++ -x c++ -E -dM - |
		awk '/define.WIREDTIGER_VERSION_(MAJOR|MINOR|PATCH)/ { v[$2] = $3 }
			END { print v["WIREDTIGER_VERSION_MAJOR"] "." v["WIREDTIGER_VERSION_MINOR"] "." v["WIREDTIGER_VERSION_PATCH"] }' |
		grep '[0-9]'
}

probe_wt() {
	wt -V | sed -n 's/^WiredTiger \([0-9.]*\).*/\1/p' | grep .
}

readonly WIREDTIGER_THINGS=(
	"probe_cmake        cmake         cmake"
	"probe_wiredtiger   wiredtiger    libwiredtiger-dev"
	"probe_wt           wt            wiredtiger"
)

probe_db_bench() {
	db_bench --version | grep -o '[0-9.]*$'
}

readonly ROCKSDB_THINGS=(
	"probe_cmake        cmake         cmake"
	"probe_db_bench     db_bench      rocksdb-tools"
	"probe_rocksdb      rocksdb       librocksdb-dev,libsnappy-dev,liblz4-dev,libzstd-dev,libxxhash-dev"
)

probe_openssl() {
	openssl version | cut -d ' ' -f 2 | grep .
}

probe_gnutls() {
	gnutls-serv --version >/dev/null && gnutls-cli --version | sed -n '1s/^gnutls-cli //p' | grep .
}

readonly TLS_THINGS=(
	"probe_openssl      openssl       openssl"
	"probe_gnutls       gnutls        gnutls-bin"
)

# Debian's Python, which has Debian's modules.
probe_prometheus() {
	/usr/bin/python3 -c 'import prometheus_client.openmetrics.parser' && echo "for Python"
}

readonly PROMETHEUS_THINGS=(
	"probe_prometheus   prometheus    python3,python3-prometheus-client"
)

# Runs without a window, for the test of the live page.
probe_chromium() {
	chromium --version | sed -n 's/^Chromium \([0-9.]*\).*/\1/p' | grep .
}

readonly CHROMIUM_THINGS=(
	"probe_chromium     chromium      chromium"
)

# The archive of Go's makers puts it into this folder, which is in no PATH.
probe_go() {
	PATH=$PATH:/usr/local/go/bin go version | sed -n 's/^go version go\([0-9.]*\).*/\1/p' | grep .
}

readonly GO_THINGS=(
	"probe_go           go            golang-go"
)

probe_dpkg_dev() {
	dpkg-shlibdeps --version | sed -n '1s/.*version \([0-9.]*[0-9]\).*/\1/p' | grep .
}

# Not in every user's PATH.
probe_debootstrap() {
	PATH=$PATH:/usr/sbin debootstrap --version | sed 's/^debootstrap //' | grep .
}

probe_lintian() {
	lintian --version | sed 's/^Lintian v//' | grep .
}

readonly DEB_THINGS=(
	"probe_dpkg_dev     dpkg-dev      dpkg-dev"
	"probe_debootstrap  debootstrap   debootstrap"
	"probe_lintian      lintian       lintian"
)

readonly AARCH64_THINGS=(
	"probe_aarch64_cc   aarch64-gcc   gcc-aarch64-linux-gnu,libc6-dev-arm64-cross"
	"probe_qemu_aarch64 qemu-aarch64  qemu-user"
)

install_packages() {
	local as_root=()
	command -v apt-get >/dev/null ||
		fail "this is not Debian; install what its packages $* contain, then run this again"
	if [[ $(id -u) != 0 ]]; then
		command -v sudo >/dev/null || fail "as root, run: apt-get install $*"
		as_root=(sudo)
	fi
	"${as_root[@]}" apt-get update -qq || fail "apt-get update failed; see above"
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
		fail "apt-get install $* failed; see above"
}

# setup_packages THING…
setup_packages() {
	local thing probe name package found missing=() packages=()
	for thing in "$@"; do
		read -r probe name package <<<"$thing"
		if found=$("$probe" 2>/dev/null); then
			echo "$name: found $found"
		else
			echo "$name: installing ${package//,/ }…"
			missing+=("$thing")
			packages+=(${package//,/ })
		fi
	done
	[[ ${#missing[@]} == 0 ]] && return
	install_packages "${packages[@]}"
	hash -r
	for thing in "${missing[@]}"; do
		read -r probe name package <<<"$thing"
		found=$("$probe") || fail "$name still does not work, although ${package//,/ } is installed"
		echo "$name: installed $found"
	done
}

# Prints the version of rustc if it, rustfmt and clippy are there.
probe_rust() {
	local root
	root=$(rustc --print sysroot) && [[ -x $root/bin/cargo-fmt && -x $root/bin/cargo-clippy ]] &&
		rustc --version | cut -d ' ' -f 2
}

setup_rust() {
	local pinned found
	pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
	if ! found=$(probe_rust 2>/dev/null); then
		command -v rustup >/dev/null ||
			fail "no Rust: install rustup as https://rustup.rs says, then run this again"
		echo "rust: installing $pinned…"
		rustup toolchain install "$pinned" --profile minimal --component rustfmt,clippy ||
			fail "rustup could not install Rust $pinned; see above"
		found=$(probe_rust) || fail "Rust $pinned is installed, but rustc, rustfmt or clippy is not found"
	fi
	if [[ $(printf '%s\n' "$pinned" "$found" | sort -V | head -n 1) != "$pinned" ]]; then
		fail "Rust $found is too old: $pinned is needed (rustup reads it from rust-toolchain.toml)"
	elif [[ $found == "$pinned" ]]; then
		echo "rust: found $found"
	else
		echo "rust: found $found, not the pinned $pinned: lints and formatting may differ"
	fi
}

# setup_tool NAME VERSION: a cargo subcommand, built without optimisation: it then compiles in a third of the time, and
# runs for a second only.
setup_tool() {
	local name=$1 version=$2 problems
	if [[ $(".tools/bin/$name" --version 2>/dev/null) == "$name $version" ]]; then
		echo "$name: found $version"
		return
	fi
	echo "$name: installing $version into .tools (takes a minute or two)…"
	problems=$(env -u RUSTFLAGS CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug --force \
		--root .tools --version "=$version" "$name" 2>&1) ||
		fail "cargo could not install $name $version: $problems"
	echo "$name: installed $version"
}

# Prints the version of the rustc in .tools/aarch64, if it has the standard library for aarch64.
probe_aarch64_rust() {
	local libraries
	libraries=$(.tools/aarch64/rustc --print target-libdir --target aarch64-unknown-linux-gnu) &&
		compgen -G "$libraries/libstd-*.rlib" >/dev/null &&
		.tools/aarch64/rustc --version | cut -d ' ' -f 2
}

# A standard library only fits its own compiler, so both come from Debian, where each has a package
# for every architecture. They are unpacked, not installed: the machine's rustc stays what it is.
setup_aarch64_rust() {
	local found here=.tools/aarch64 standard llvm package
	if found=$(probe_aarch64_rust 2>/dev/null); then
		echo "aarch64-rust: found $found"
		return
	fi
	echo "aarch64-rust: unpacking Debian's into $here (120 MB)…"
	command -v apt-get >/dev/null || fail "this is not Debian; tests for aarch64 need its packages"
	rm -rf "$here"
	mkdir -p "$here"
	(
		own_apt "$here" "amd64 arm64" bookworm bookworm-security
		# The names of these have version numbers in them.
		standard=$(apt-cache depends libstd-rust-web-dev | sed -n 's/.*Depends: \(libstd-rust-web-[0-9]\)/\1/p')
		llvm=$(apt-cache depends "$standard" | sed -n 's/.*Depends: \(libllvm[0-9]\)/\1/p')
		cd "$here/apt/archives"
		apt-get download -qq rustc-web "$standard" "$llvm" libstd-rust-web-dev{,:arm64} ||
			fail "apt cannot fetch Rust for aarch64"
	)
	for package in "$here"/apt/archives/*.deb; do
		dpkg-deb -x "$package" "$here"
	done
	rm -rf "$here/apt" "$here/usr/share"
	cat >"$here/rustc" <<-'WRAPPER'
		#!/bin/sh
		# Debian's compiler with its own libraries.
		here=$(dirname "$0")
		LD_LIBRARY_PATH=$here/usr/lib/x86_64-linux-gnu exec "$here/usr/bin/rustc" "$@"
	WRAPPER
	chmod +x "$here/rustc"
	found=$(probe_aarch64_rust) || fail "Debian's Rust does not work here, although it is in $here"
	echo "aarch64-rust: unpacked $found"
}

probe_python_venv() {
	python3 -c 'import ensurepip, venv' && python3 --version | cut -d ' ' -f 2
}

readonly PYTHON_THINGS=(
	"probe_python_venv  python3-venv  python3-venv"
)

# Packages that the tests of the Python package and of pages import, at pinned versions. Each version of Python has its
# own wheels.
setup_python_packages() {
	local here=.tools/python wanted=crates/python/requirements.txt known
	known=$here/$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
	if cmp -s "$wanted" "$known" && "$here/bin/python" -c 'import pyarrow' 2>/dev/null; then
		echo "python-packages: found those of $wanted"
		return
	fi
	echo "python-packages: installing those of $wanted into $here…"
	rm -rf "$here"
	python3 -m venv "$here" || fail "python3 cannot make an environment in $here; see above"
	"$here/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" ||
		fail "pip could not install $wanted; see above"
	cp "$wanted" "$known"
	echo "python-packages: installed"
}

setup_packages "${THINGS[@]}"
setup_rust
for tool in "$@"; do
	case $tool in
	cargo-deny) setup_tool cargo-deny "$CARGO_DENY_VERSION" ;;
	cargo-fuzz) setup_tool cargo-fuzz "$CARGO_FUZZ_VERSION" ;;
	qemu) setup_packages "${QEMU_THINGS[@]}" ;;
	tshark) setup_packages "${TSHARK_THINGS[@]}" ;;
	valgrind) setup_packages "${VALGRIND_THINGS[@]}" ;;
	perf) setup_packages "${PERF_THINGS[@]}" ;;
	wiredtiger) setup_packages "${WIREDTIGER_THINGS[@]}" ;;
	rocksdb) setup_packages "${ROCKSDB_THINGS[@]}" ;;
	tls) setup_packages "${TLS_THINGS[@]}" ;;
	prometheus) setup_packages "${PROMETHEUS_THINGS[@]}" ;;
	chromium) setup_packages "${CHROMIUM_THINGS[@]}" ;;
	go) setup_packages "${GO_THINGS[@]}" ;;
	deb) setup_packages "${DEB_THINGS[@]}" ;;
	python)
		setup_packages "${PYTHON_THINGS[@]}"
		setup_python_packages
		;;
	aarch64)
		setup_packages "${AARCH64_THINGS[@]}"
		setup_aarch64_rust
		;;
	*) fail "unknown tool $tool; known are cargo-deny, cargo-fuzz, qemu, tshark, valgrind, perf, aarch64, rocksdb, wiredtiger, tls, prometheus, chromium, go, deb and python" ;;
	esac
done
