#!/usr/bin/env bash
# Makes a guest for interop/passthrough.py whose kernel looks for bugs (KASAN, lockdep, RCU's checks), from Debian's
# package of the kernel's sources, and the kernel module for it.
#
#   interop/debug-kernel.sh DIRECTORY GUEST
#
# Leaves DIRECTORY/vmlinuz, base.cpio and bpfof_xrp.ko. GUEST is the directory of interop/image.sh, whose programs are
# used. Sources and compiler come from Debian packages, which are unpacked in DIRECTORY/tools and used by chroot;
# nothing of them is installed here. Needs root or user namespaces, 8 GB, and half an hour of one processor.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../scripts/own_apt.sh"
source "$here/own_root.sh"
readonly SOURCE=linux-source-6.12
readonly TOOLS=(gcc make pahole flex bison bc libelf-dev libssl-dev zlib1g-dev libc6-dev kmod cpio xz-utils gzip bash
	coreutils sed grep gawk findutils perl perl-base diffutils python3-minimal)

fail() {
	echo "debug kernel: $*" >&2
	exit 1
}

[[ $# == 2 ]] || fail "usage: interop/debug-kernel.sh DIRECTORY GUEST"
[[ -f $2/root/bin/busybox ]] || fail "$2 is no guest; interop/image.sh $2 makes one"
guest=$(cd "$2" && pwd)
mkdir -p "$1"
cd "$1"

# The options that the guest needs built in, and the checks. Everything else is off.
configuration() {
	local on=(
		64BIT SMP PCI PCI_MSI ACPI HPET_TIMER HIGH_RES_TIMERS NO_HZ_IDLE
		PREEMPT_VOLUNTARY PREEMPT_DYNAMIC
		PRINTK BUG TTY SERIAL_8250 SERIAL_8250_CONSOLE BLK_DEV_INITRD BINFMT_ELF BINFMT_SCRIPT
		MULTIUSER POSIX_TIMERS FUTEX EPOLL SIGNALFD TIMERFD EVENTFD AIO IO_URING ADVISE_SYSCALLS MEMBARRIER
		FILE_LOCKING FHANDLE INOTIFY_USER FANOTIFY SYSVIPC SHMEM RSEQ COMPACTION MIGRATION
		PROC_FS PROC_SYSCTL SYSFS TMPFS DEVTMPFS DEBUG_FS NET UNIX INET
		BLOCK BLK_DEV BLK_DEV_NVME EXT4_FS XFS_FS CRYPTO CRYPTO_CRC32C CRYPTO_CRC32C_INTEL
		MODULES MODULE_UNLOAD MODVERSIONS KALLSYMS KALLSYMS_ALL
		BPF_SYSCALL BPF_JIT BPF_JIT_ALWAYS_ON
		DEBUG_KERNEL DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT DEBUG_INFO_BTF DEBUG_INFO_BTF_MODULES
		KASAN KASAN_GENERIC KASAN_INLINE KASAN_VMALLOC PROVE_LOCKING DEBUG_ATOMIC_SLEEP DEBUG_LIST SCHED_STACK_END_CHECK
		SOFTLOCKUP_DETECTOR DETECT_HUNG_TASK
	)
	printf 'CONFIG_%s=y\n' "${on[@]}"
	printf 'CONFIG_NR_CPUS=8\n'
}

# An interrupted run leaves no vmlinuz.
if [[ ! -f vmlinuz || vmlinuz -ot $here/debug-kernel.sh ]]; then
	[[ -f tools/usr/src/$SOURCE.tar.xz ]] || own_root tools trixie "$SOURCE" "${TOOLS[@]}"
	if [[ ! -f tools/kernel/Makefile ]]; then
		rm -rf tools/kernel.new
		mkdir tools/kernel.new
		tar -xf "tools/usr/src/$SOURCE.tar.xz" -C tools/kernel.new --strip-components 1
		mv tools/kernel.new tools/kernel
	fi
	configuration >tools/kernel/bpfof.config
	inside tools /usr/bin/make -s -C /kernel KCONFIG_ALLCONFIG=bpfof.config allnoconfig >configure.log 2>&1 ||
		{ tail -20 configure.log >&2; fail "it cannot be configured"; }
	while read -r line; do
		grep -qx "$line" tools/kernel/.config || fail "the kernel does not take $line"
	done <tools/kernel/bpfof.config
	inside tools /usr/bin/make -s -C /kernel -j"$(nproc)" bzImage modules >build.log 2>&1 ||
		{ tail -40 build.log >&2; fail "it does not compile"; }
	rm -rf root
	cp -r "$guest/root" root
	rm -rf root/lib/modules
	(cd root && find . | bin/busybox cpio -o -H newc -R 0:0 2>/dev/null) >base.cpio
	cp tools/kernel/arch/x86/boot/bzImage vmlinuz
fi
rm -rf tools/module
cp -r "$here/../kernel" tools/module
inside tools /usr/bin/make -s -C /module KDIR=/kernel >module.log 2>&1 ||
	{ tail -40 module.log >&2; fail "the module does not compile"; }
! grep -i warning module.log || fail "the module compiles with warnings"
strip --strip-debug -o bpfof_xrp.ko tools/module/bpfof_xrp.ko
