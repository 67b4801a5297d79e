#!/usr/bin/env bash
# Builds the kernel module of kernel/ for the guest of image.sh.
#
#   interop/module.sh DIRECTORY [KERNEL]
#
# Leaves DIRECTORY/bpfof_xrp.ko. KERNEL is that of image.sh. The kernel's headers and the compiler that it was
# built with come from Debian packages of the kernel's release, are unpacked in DIRECTORY/module and used by chroot;
# nothing of them is installed here. Needs root, or user namespaces.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../scripts/own_apt.sh"
source "$here/own_root.sh"
cd "$1"
readonly TOOLS=(gcc make pahole bash coreutils sed grep gawk findutils perl-base diffutils)
suites=trixie
[[ ${2:-} != debian12 ]] || suites="bookworm bookworm-security"

fail() {
	echo "kernel module: $*" >&2
	exit 1
}

version=$(ls packages/usr/lib/modules)
[[ -d module/usr/src/linux-headers-$version ]] ||
	own_root module "$suites" "linux-headers-$version" "${TOOLS[@]}"
rm -rf module/build
cp -r "$here/../kernel" module/build
inside module /usr/bin/make -s -C /build -j2 "KDIR=/usr/src/linux-headers-$version" >module.log 2>&1 ||
	{ tail -40 module.log >&2 && fail "it does not compile"; }
! grep -i warning module.log || fail "it compiles with warnings"
objdump -h module/build/bpfof_xrp.ko | grep -q '\.BTF ' || fail "the module has no BTF"
strip --strip-debug -o bpfof_xrp.ko module/build/bpfof_xrp.ko
