#!/usr/bin/env bash
# Installs the build, or removes it again:
#
#   scripts/install.sh install|uninstall BUILD_DIR
#
# The programs with their manual pages and completions, the C library with header, pkg-config file and manual
# pages, and the storage functions with the header to write others. They are installed without debug information; the
# build keeps it. PREFIX (/usr/local) is the folder from which things will be used, LIBDIR (PREFIX/lib) the folder of
# the libraries, DESTDIR (empty) is put before both. The header for storage functions has the same name as the
# library's, so it is kept apart, below share/bpfof/functions.
set -euo pipefail
cd "$(dirname "$0")/.."

# Programs are bound to the library by this number: crates/capi/build.rs.
readonly ABI=0
readonly PREFIX=${PREFIX:-/usr/local}
readonly LIBDIR=${LIBDIR:-$PREFIX/lib}
readonly DESTDIR=${DESTDIR:-}

fail() {
	echo "install: $*" >&2
	exit 1
}

[[ $# == 2 ]] || fail "usage: scripts/install.sh install|uninstall BUILD_DIR"
[[ $PREFIX == /* && $LIBDIR == /* ]] || fail "PREFIX and LIBDIR must be absolute paths"
readonly BUILD_DIR=$2
VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[[ -n $VERSION ]] || fail "Cargo.toml does not tell the version"
readonly VERSION

readonly FUNCTIONS=$PREFIX/share/bpfof/functions
readonly DOCUMENTS=$PREFIX/share/doc/bpfof

# Manual pages and completions of the program, made by itself.
GENERATED=$(mktemp -d)
trap 'rm -rf "$GENERATED"' EXIT
readonly GENERATED
generate() {
	local program=$BUILD_DIR/bpfof shell
	[[ -x $program ]] || program=$DESTDIR$PREFIX/bin/bpfof
	[[ -x $program ]] || return 0
	"$program" manual "$GENERATED/man"
	for shell in bash zsh fish; do
		"$program" completions $shell >"$GENERATED/$shell"
	done
}

# Prints a line for each file: mode, source, destination.
files() {
	local file
	for file in "$GENERATED"/man/*.1; do
		echo "644 $file $PREFIX/share/man/man1/${file##*/}"
	done
	echo "644 $GENERATED/bash $PREFIX/share/bash-completion/completions/bpfof"
	echo "644 $GENERATED/zsh $PREFIX/share/zsh/site-functions/_bpfof"
	echo "644 $GENERATED/fish $PREFIX/share/fish/vendor_completions.d/bpfof.fish"
	echo "755 $BUILD_DIR/bpfof $PREFIX/bin/bpfof"
	echo "755 $BUILD_DIR/bpfof-query $PREFIX/bin/bpfof-query"
	echo "644 $BUILD_DIR/libbpfof.so $LIBDIR/libbpfof.so.$VERSION"
	echo "644 $BUILD_DIR/libbpfof.a $LIBDIR/libbpfof.a"
	echo "644 crates/capi/include/bpfof.h $PREFIX/include/bpfof.h"
	for file in bpfof.h bpfof/batch.h bpfof/blocks.h; do
		echo "644 functions/include/$file $FUNCTIONS/include/$file"
	done
	for file in functions/{,query/}*.h functions/{,query/}*.bpf.c; do
		echo "644 $file $FUNCTIONS/${file#functions/}"
	done
	for file in functions/{,query/}*.bpf.c; do
		file=${file#functions/}
		echo "644 functions/build/${file%.c}.o $FUNCTIONS/${file%.c}.o"
	done
	for file in docs/man/*.3; do
		echo "644 $file $PREFIX/share/man/man3/${file##*/}"
	done
	for file in docs/*.md LICENSE-APACHE LICENSE-MIT; do
		echo "644 $file $DOCUMENTS/${file##*/}"
	done
	for file in docs/examples/*; do
		echo "644 $file $DOCUMENTS/examples/${file##*/}"
	done
}

# Prints a line for each symbolic link: destination, what it points to.
links() {
	echo "$LIBDIR/libbpfof.so.$ABI libbpfof.so.$VERSION"
	echo "$LIBDIR/libbpfof.so libbpfof.so.$ABI"
}

readonly PKG_CONFIG_FILE=$LIBDIR/pkgconfig/bpfof.pc

# The archive may also have code for link-time optimisation: that of C refers to stripped symbols, that of Rust takes
# most of the space.
strip_archive() {
	strip --strip-debug --wildcard --remove-section='.gnu.lto_*' --remove-section='.gnu.debuglto_*' \
		--remove-section=.llvmbc --remove-section=.llvmcmd --strip-symbol='__gnu_lto_*' "$1"
}

install_all() {
	local mode source destination target
	while read -r mode source destination; do
		[[ -f $source ]] || fail "$source is missing; build it first (make install does)"
		install -D -m "$mode" "$source" "$DESTDIR$destination"
		case $destination in
		*/bin/*) strip "$DESTDIR$destination" ;;
		*.so.*) strip --strip-unneeded "$DESTDIR$destination" ;;
		*.a) strip_archive "$DESTDIR$destination" ;;
		esac
	done < <(files)
	while read -r destination target; do
		ln -sfn "$target" "$DESTDIR$destination"
	done < <(links)
	mkdir -p "$DESTDIR${PKG_CONFIG_FILE%/*}"
	sed -e "s|@PREFIX@|$PREFIX|; s|@LIBDIR@|$LIBDIR|; s|@VERSION@|$VERSION|" \
		crates/capi/bpfof.pc.in >"$DESTDIR$PKG_CONFIG_FILE"
	chmod 644 "$DESTDIR$PKG_CONFIG_FILE"
	echo "installed bpfof $VERSION below $DESTDIR$PREFIX"
	[[ -n $DESTDIR ]] || echo "if programs do not find libbpfof.so.$ABI: ldconfig as root, or LD_LIBRARY_PATH=$LIBDIR"
}

uninstall_all() {
	local destination
	while read -r destination; do
		rm -f "$DESTDIR$destination"
	done < <(files | cut -d ' ' -f 3; links | cut -d ' ' -f 1; echo "$PKG_CONFIG_FILE")
	# Remove our folders, unless they have other files.
	for destination in "$FUNCTIONS/include/bpfof" "$FUNCTIONS/include" "$FUNCTIONS/query" "$FUNCTIONS" \
		"${FUNCTIONS%/*}" "$DOCUMENTS/examples" "$DOCUMENTS"; do
		rmdir "$DESTDIR$destination" 2>/dev/null || true
	done
	echo "removed bpfof $VERSION below $DESTDIR$PREFIX"
}

generate
case $1 in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail "$1 is neither install nor uninstall" ;;
esac
