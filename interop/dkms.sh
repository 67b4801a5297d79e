#!/usr/bin/env bash
# Builds the kernel module for the guest of image.sh by DKMS, from the package bpfof-dkms and with its scripts.
#
#   interop/dkms.sh DIRECTORY PACKAGE
#
# Leaves DIRECTORY/bpfof_xrp.ko, as module.sh does. DKMS runs in a root of its own with the headers of the guest's
# kernel: in the guest, whose processor is emulated, compiling would take too long. Needs root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../scripts/own_apt.sh"
source "$here/own_root.sh"
package=$(realpath "$2")
cd "$1"
readonly TOOLS=(dkms gcc make pahole kmod xz-utils bash dash coreutils sed grep gawk findutils perl-base diffutils
	patch tar util-linux)

fail() {
	echo "dkms: $*" >&2
	exit 1
}

version=$(ls packages/usr/lib/modules)
[[ -d dkms/usr/src/linux-headers-$version ]] || own_root dkms trixie "linux-headers-$version" "${TOOLS[@]}"
rm -rf dkms/usr/src/bpfof-xrp-* dkms/var/lib/dkms/bpfof-xrp "dkms/usr/lib/modules/$version/updates"
dpkg-deb -x "$package" dkms
release=$(basename dkms/usr/src/bpfof-xrp-*)
release=${release#bpfof-xrp-}
rm -rf dkms/tmp/control
dpkg-deb -e "$package" dkms/tmp/control
inside dkms /tmp/control/postinst configure >dkms.log 2>&1 ||
	{ cat dkms.log dkms/var/lib/dkms/bpfof-xrp/"$release"/build/make.log >&2 || true; fail "DKMS cannot build it"; }
inside dkms /usr/sbin/dkms status -m bpfof-xrp -v "$release" -k "$version" | grep -q installed ||
	fail "DKMS has not installed it"
module=$(find "dkms/usr/lib/modules/$version/updates" -name 'bpfof_xrp.ko*')
case $module in
*.xz) xz -dc "$module" >bpfof_xrp.ko ;;
*) cp "$module" bpfof_xrp.ko ;;
esac
objdump -h bpfof_xrp.ko | grep -q '\.BTF ' || fail "the module has no BTF"
inside dkms /tmp/control/prerm remove >>dkms.log 2>&1 || { cat dkms.log >&2; fail "it cannot be removed"; }
[[ -z $(inside dkms /usr/sbin/dkms status) ]] || fail "DKMS still has it after the package is removed"
