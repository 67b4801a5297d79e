#!/usr/bin/env bash
# Makes Debian packages of the build:
#
#   scripts/deb.sh BUILD_DIR OUTPUT_DIR
#
# BUILD_DIR has the program and the libraries. The files that scripts/install.sh installs are divided among the packages
# of packaging/debian/control; the RocksDB integration is built here. The version is that of packaging/debian/changelog,
# which begins with that of Cargo.toml. DEBFULLNAME and DEBEMAIL name their maintainer.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

readonly DEBIAN=packaging/debian
# Largest size of the stripped program.
readonly PROGRAM_BYTES_MAX=22000000

fail() {
	echo "deb: $*" >&2
	exit 1
}

[[ $# == 2 ]] || fail "usage: scripts/deb.sh BUILD_DIR OUTPUT_DIR"
BUILD_DIR=$(realpath "$1")
mkdir -p "$2"
OUTPUT_DIR=$(realpath "$2")
readonly BUILD_DIR OUTPUT_DIR
MULTIARCH=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
ARCHITECTURE=$(dpkg-architecture -qDEB_HOST_ARCH)
VERSION=$(dpkg-parsechangelog -l $DEBIAN/changelog -S Version)
# The same sources give the same packages.
SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -l $DEBIAN/changelog -S Timestamp)
readonly MULTIARCH ARCHITECTURE VERSION
export SOURCE_DATE_EPOCH
[[ $VERSION == "$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)"-* ]] ||
	fail "$DEBIAN/changelog is about $VERSION, Cargo.toml is not"

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
readonly WORK
# Tools of dpkg look for debian/ in their working directory.
cp -r $DEBIAN "$WORK/debian"

# take PACKAGE PATTERN…: moves installed files into a package.
take() {
	local package=$1 pattern path
	shift
	for pattern in "$@"; do
		(cd "$WORK/all" && compgen -G "$pattern" >/dev/null) || fail "$package: nothing is installed as $pattern"
		while read -r path; do
			mkdir -p "$(dirname "$WORK/$package/$path")"
			mv "$WORK/all/$path" "$WORK/$package/$path"
		done < <(cd "$WORK/all" && compgen -G "$pattern")
	done
}

# Installs everything, with documents in the folders of their packages.
stage() {
	local documents=$WORK/all/usr/share/doc
	DESTDIR=$WORK/all PREFIX=/usr LIBDIR=/usr/lib/$MULTIARCH scripts/install.sh install "$BUILD_DIR" >/dev/null
	rm "$documents"/bpfof/LICENSE-*
	mkdir -p "$documents"/libbpfof-dev "$WORK"/all/usr/share/zsh/vendor-completions
	cp "$documents"/bpfof/{c-api.md,files.md} "$documents/libbpfof-dev/"
	mv "$documents/bpfof/examples" "$documents/libbpfof-dev/"
	mv "$WORK"/all/usr/share/zsh/{site-functions,vendor-completions}/_bpfof
	rmdir "$WORK/all/usr/share/zsh/site-functions"
	install -D -m 644 -t "$WORK/all/etc/bpfof" packaging/etc/target.toml
	install -D -m 644 -t "$WORK/all/usr/lib/systemd/system" packaging/systemd/*
	install -D -m 644 -t "$WORK/all/usr/lib/sysusers.d" packaging/sysusers.d/*
	install -D -m 644 -t "$WORK/all/usr/lib/modules-load.d" packaging/modules-load.d/*
	install -D -m 644 packaging/grafana/dashboard.json "$documents/bpfof/examples/grafana-dashboard.json"
	install -D -m 644 packaging/prometheus/alerts.yml "$documents/bpfof/examples/prometheus-alerts.yml"
}

stage_rocksdb() {
	local build=$BUILD_DIR/../deb-rocksdb
	cmake -S integrations/rocksdb -B "$build" -DBPFOF_LIBRARY_DIR="$BUILD_DIR" -DCMAKE_INSTALL_PREFIX=/usr \
		-DCMAKE_INSTALL_LIBDIR="lib/$MULTIARCH" >/dev/null
	cmake --build "$build" --parallel 2 >/dev/null
	DESTDIR=$WORK/bpfof-rocksdb cmake --install "$build" >/dev/null
	strip --strip-debug "$WORK"/bpfof-rocksdb/usr/lib/"$MULTIARCH"/*.a
	strip --strip-unneeded "$WORK"/bpfof-rocksdb/usr/lib/"$MULTIARCH"/*.so
	install -D -m 644 -t "$WORK/bpfof-rocksdb/usr/share/doc/bpfof-rocksdb" docs/rocksdb.md
}

# Sources of the kernel module, for DKMS.
stage_dkms() {
	local at=$WORK/bpfof-dkms/usr/src/bpfof-xrp-${VERSION%-*} documents=$WORK/bpfof-dkms/usr/share/doc/bpfof-dkms
	install -D -m 644 -t "$at" kernel/{Kbuild,Makefile,*.c,*.h}
	sed "s/@VERSION@/${VERSION%-*}/" packaging/dkms/dkms.conf >"$at/dkms.conf"
	sed -i "s/@VERSION@/${VERSION%-*}/" "$WORK"/debian/bpfof-dkms.{postinst,prerm}
	install -D -m 644 -t "$documents" docs/kernel.md
}

divide() {
	local left
	take libbpfof0 "usr/lib/$MULTIARCH/libbpfof.so.*"
	take libbpfof-dev "usr/lib/$MULTIARCH/*" usr/include usr/share/man/man3 usr/share/doc/libbpfof-dev
	take bpfof etc usr/bin usr/share/* usr/lib/{systemd,sysusers.d,modules-load.d}
	left=$(find "$WORK/all" ! -type d)
	[[ -z $left ]] || fail "in no package: $left"
}

# Adds the documents that each package has.
document() {
	local package=$1 documents=$WORK/$1/usr/share/doc/$1
	install -D -m 644 $DEBIAN/copyright "$documents/copyright"
	[[ ! -f $DEBIAN/$package.lintian-overrides ]] ||
		install -D -m 644 $DEBIAN/$package.lintian-overrides "$WORK/$package/usr/share/lintian/overrides/$package"
	gzip -9nc CHANGELOG.md >"$documents/changelog.gz"
	gzip -9nc $DEBIAN/changelog >"$documents/changelog.Debian.gz"
	# The kernel module contains no Rust libraries.
	[[ $package == bpfof-dkms ]] || gzip -9nc "$WORK/third-party.txt" >"$documents/third-party.txt.gz"
	if [[ -d $WORK/$package/usr/share/man ]]; then
		find "$WORK/$package/usr/share/man" -type f -exec gzip -9n {} +
	fi
}

# Writes the control files: dependencies, scripts, checksums.
control() {
	local package=$1 at=$WORK/$1/DEBIAN script binaries
	mkdir -p "$at"
	binaries=$(find "$WORK/$package" -type f \( -path '*/bin/*' -o -name '*.so.*' -o -name '*.so' \))
	: >"$WORK/debian/substvars"
	if [[ -n $binaries ]]; then
		(cd "$WORK" && dpkg-shlibdeps --warnings=1 -Slibbpfof0 -Tdebian/substvars $binaries)
	fi
	for script in preinst postinst prerm postrm; do
		[[ ! -f $WORK/debian/$package.$script ]] || install -m 755 "$WORK/debian/$package.$script" "$at/$script"
	done
	if [[ -d $WORK/$package/etc ]]; then
		(cd "$WORK/$package" && find etc -type f -printf '/%p\n' | sort) >"$at/conffiles"
	fi
	if [[ $package == libbpfof0 ]]; then
		echo "libbpfof 0 libbpfof0 (>= ${VERSION%-*})" >"$at/shlibs"
	fi
	# Programs find the libraries by their names.
	if [[ $package == libbpfof0 || $package == bpfof-rocksdb ]]; then
		echo "activate-noawait ldconfig" >"$at/triggers"
	fi
	(cd "$WORK/$package" && find . -path ./DEBIAN -prune -o -path ./etc -prune -o -type f -printf '%P\n' | sort |
		xargs md5sum) >"$at/md5sums"
	(cd "$WORK" && dpkg-gencontrol -p"$package" -P"$package" -O"$package/DEBIAN/control" \
		${DEBEMAIL:+-DMaintainer="${DEBFULLNAME:-The bpf-of authors} <$DEBEMAIL>"})
}

stage
stage_rocksdb
stage_dkms
divide
[[ $(stat -c %s "$WORK/bpfof/usr/bin/bpfof") -le $PROGRAM_BYTES_MAX ]] ||
	fail "the program has $(stat -c %s "$WORK/bpfof/usr/bin/bpfof") bytes, more than $PROGRAM_BYTES_MAX"
scripts/third_party.py bpfof-cli bpfof-query-command bpfof-capi >"$WORK/third-party.txt"
for package in bpfof libbpfof0 libbpfof-dev bpfof-rocksdb bpfof-dkms; do
	architecture=$ARCHITECTURE
	[[ $package != bpfof-dkms ]] || architecture=all
	document $package
	control $package
	find "$WORK/$package" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zxz --build "$WORK/$package" \
		"$OUTPUT_DIR/${package}_${VERSION}_$architecture.deb" >/dev/null
	echo "$OUTPUT_DIR/${package}_${VERSION}_$architecture.deb"
done
