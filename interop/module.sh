#!/usr/bin/env bash
# Builds the kernel module of kernel/ for the guest of image.sh.
#
#   interop/module.sh DIRECTORY
#
# Leaves DIRECTORY/bpfof_xrp.ko. The kernel's headers and the compiler that it was built with come from
# Debian packages of the guest's release, are unpacked in DIRECTORY/module and used by chroot; nothing of
# them is installed here. Needs root, or user namespaces.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../scripts/own_apt.sh"
cd "$1"
readonly SUITE=trixie
readonly TOOLS=(gcc make pahole bash coreutils sed grep gawk findutils perl-base diffutils)

fail() {
	echo "kernel module: $*" >&2
	exit 1
}

# inside COMMAND…: with the unpacked packages as its root.
inside() {
	local as=(chroot "$PWD/module")
	[[ $(id -u) == 0 ]] || as=(unshare --map-root-user --root="$PWD/module")
	env -i PATH=/usr/sbin:/usr/bin "${as[@]}" "$@"
}

unpack() {
	local package
	rm -rf module module.new
	mkdir -p module.new headers
	own_apt headers amd64 "$SUITE"
	apt-get install -qq -y --download-only "linux-headers-$version" "${TOOLS[@]}" >/dev/null ||
		fail "apt cannot fetch the headers of $version"
	for package in headers/apt/archives/*.deb; do
		dpkg-deb -x "$package" module.new || fail "cannot unpack $package"
	done
	rm -rf headers
	ln -sf bash module.new/usr/bin/sh
	ln -sf gawk module.new/usr/bin/awk
	mknod -m 666 module.new/dev/null c 1 3 2>/dev/null || touch module.new/dev/null
	mv module.new module
}

version=$(ls packages/usr/lib/modules)
[[ -d module/usr/src/linux-headers-$version ]] || unpack
rm -rf module/build
cp -r "$here/../kernel" module/build
inside /usr/bin/make -s -C /build -j2 "KDIR=/usr/src/linux-headers-$version" >module.log 2>&1 ||
	{ tail -40 module.log >&2 && fail "it does not compile"; }
! grep -i warning module.log || fail "it compiles with warnings"
objdump -h module/build/bpfof_xrp.ko | grep -q '\.BTF ' || fail "the module has no BTF"
strip --strip-debug -o bpfof_xrp.ko module/build/bpfof_xrp.ko
