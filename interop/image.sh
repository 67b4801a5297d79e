#!/usr/bin/env bash
# Makes the guest of the interoperability test: Debian's kernel and an initial RAM file system.
#
#   interop/image.sh DIRECTORY [KERNEL]
#
# Leaves DIRECTORY/vmlinuz and DIRECTORY/initrd. KERNEL is amd64 (the default) or cloud-amd64, Debian 13's, or
# debian12, its 6.12 for Debian 12. All but the first are for interop/passthrough.py. Everything in them comes from Debian packages,
# which apt fetches and authenticates with the keys of this machine; nothing of them is installed
# here, and no root is needed. Packages stay in DIRECTORY, so that only the first run downloads.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../scripts/own_apt.sh"
readonly SUITE=trixie KERNEL=${2:-amd64}
readonly PACKAGES=(busybox-static nvme-cli fio e2fsprogs xfsprogs kmod socat ktls-utils keyutils
	lvm2 dmsetup iproute2 librdmacm1t64 ibverbs-providers)
# Programs for the guest, besides /bin/busybox.
readonly PROGRAMS=(usr/sbin/nvme usr/bin/fio usr/sbin/mke2fs usr/sbin/e2fsck usr/sbin/mkfs.xfs
	usr/sbin/xfs_repair usr/sbin/lvm usr/sbin/dmsetup usr/bin/kmod usr/bin/socat usr/sbin/tlshd usr/bin/keyctl
	usr/sbin/ip usr/bin/rdma)
# Libraries that programs load at run time: RDMA in user space, with the provider for soft-RoCE.
readonly LOADED=(librdmacm.so.1 libibverbs/librxe-rdmav34.so)
MODULES=(nvme nvme-tcp nvmet nvmet-tcp tls ext4 xfs dm-mod dm-mirror dm-snapshot crc32c_generic crc32c-intel virtio_net virtio_pci
	gcm ghash-generic aesni-intel chacha20poly1305 chacha_generic poly1305_generic
	rdma_rxe rdma_ucm nvme-rdma nvmet-rdma null_blk dummy crc32_generic)
[[ $KERNEL == amd64 ]] || MODULES=(nvme ext4 xfs crc32c-intel)
readonly MODULES

fail() {
	echo "interop image: $*" >&2
	exit 1
}

[[ $# -ge 1 ]] || fail "usage: interop/image.sh DIRECTORY [KERNEL]"
[[ $KERNEL == amd64 || $KERNEL == cloud-amd64 || $KERNEL == debian12 ]] ||
	fail "there is no kernel $KERNEL; there are amd64, cloud-amd64 and debian12"
mkdir -p "$1"
cd "$1"

fetch() {
	local kernel meta=linux-image-$KERNEL
	apt-get install -qq -y --download-only "${PACKAGES[@]}" >/dev/null || fail "apt cannot fetch packages"
	[[ $KERNEL != debian12 ]] || meta=linux-image-6.12-amd64
	kernel=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: \(linux-image-6[^ ]*\)/\1/p')
	[[ -n $kernel ]] || fail "Debian has no $meta"
	# Without its dependencies, which are for booting from a disk.
	(cd apt/archives && apt-get download -qq "$kernel") || fail "apt cannot fetch $kernel"
	# Older versions, which Debian no longer has.
	apt-get autoclean -qq >/dev/null
}

unpack() {
	local package
	rm -rf packages
	mkdir -p packages/usr/lib
	# Debian 12's packages of kernels have their modules in /lib.
	ln -s usr/lib packages/lib
	for package in apt/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x -C packages --keep-directory-symlink --exclude='./usr/share/*' \
			--exclude='*/python3*' || fail "cannot unpack $package"
	done
}

# Runs a program of the packages, with its own libraries, on this machine.
packaged() {
	local libraries=$PWD/packages/usr/lib/x86_64-linux-gnu
	packages/usr/lib64/ld-linux-x86-64.so.2 --library-path "$libraries:$libraries/ceph" "$@"
}

copy_programs() {
	local program libraries=usr/lib/x86_64-linux-gnu
	mkdir -p root/{bin,dev,proc,sys,tmp,mnt,run,etc,lib64} root/usr/{bin,sbin} root/$libraries
	cp packages/usr/bin/busybox root/bin/
	cp -L packages/usr/lib64/ld-linux-x86-64.so.2 root/lib64/
	for program in "${PROGRAMS[@]}"; do
		cp "packages/$program" "root/$program"
		packaged --list "packages/$program" >libraries || fail "$program: $(cat libraries)"
		sed -n 's/.*=> \([^ ]*\) .*/\1/p' libraries
	done | sort -u | xargs cp -L -t root/$libraries
	for program in "${LOADED[@]}"; do
		mkdir -p "$(dirname "root/$libraries/$program")"
		cp -L "packages/$libraries/$program" "root/$libraries/$program"
		packaged --list "packages/$libraries/$program" >libraries || fail "$program: $(cat libraries)"
		sed -n 's/.*=> \([^ ]*\) .*/\1/p' libraries
	done | sort -u | xargs cp -L -t root/$libraries
	mkdir -p root/etc/libibverbs.d
	cp packages/etc/libibverbs.d/rxe.driver root/etc/libibverbs.d/
}

# Copies the named modules and their dependencies, decompressed: that is quicker here than in the guest.
copy_modules() {
	local version module path from to
	version=$(ls packages/usr/lib/modules)
	from=packages/usr/lib/modules/$version
	to=root/lib/modules/$version
	mkdir -p "$to"
	packaged --argv0 depmod packages/usr/bin/kmod -b packages/usr "$version" ||
		fail "depmod of $version failed"
	for module in "${MODULES[@]}"; do
		# A line is "a.ko: b.ko c.ko", with all that a.ko needs.
		grep "/${module//[-_]/[-_]}\.ko[^ ]*:" "$from/modules.dep" | tr -d : | tr ' ' '\n' ||
			grep -q "/${module//[-_]/[-_]}\.ko" "$from/modules.builtin" ||
			fail "the kernel $version has no module $module"
	done | sort -u >modules
	while read -r path; do
		mkdir -p "$to/${path%/*}"
		xz -dc "$from/$path" >"$to/${path%.xz}" || fail "cannot decompress $path"
	done <modules
	cp "$from"/modules.{builtin,order} "$to/"
	packaged --argv0 depmod packages/usr/bin/kmod -b root "$version" 2>/dev/null ||
		fail "depmod of the guest's modules failed"
}

# archive DIRECTORY: writes an archive for the kernel. Several archives in a row count as one.
archive() {
	(cd "$1" && find . | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null)
}

busybox=$PWD/packages/usr/bin/busybox
# An interrupted run leaves no base.cpio.
if [[ ! -f base.cpio || base.cpio -ot $here/image.sh ]]; then
	suites=("$SUITE")
	# Programs of the later Debian are used.
	[[ $KERNEL != debian12 ]] || suites+=(bookworm bookworm-security)
	own_apt . amd64 "${suites[@]}"
	fetch
	unpack
	rm -rf root
	copy_programs
	copy_modules
	cp packages/boot/vmlinuz-* vmlinuz
	archive root >base.cpio.new
	mv base.cpio.new base.cpio
fi
rm -rf guest
cp -r "$here/guest" guest
chmod 755 guest/*
"${MAKE:-make}" --no-print-directory -s -C "$here/../functions"
cp "$here/../functions/build/bpfkv_get.bpf.o" guest/
archive guest | cat base.cpio - >initrd
