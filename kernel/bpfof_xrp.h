/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The interface of /dev/bpfof-xrp, which runs chains of dependent reads inside the interrupt of the
 * NVMe driver. crates/device/src/xrp has the same in Rust.
 */
#ifndef _BPFOF_XRP_H
#define _BPFOF_XRP_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define BPFOF_XRP_VERSION	2

/* Bytes of the arena that each slot takes, with the layout of crates/function/src/abi.rs. */
#define BPFOF_XRP_SLOT_BYTES	0x28000
#define BPFOF_XRP_SLOTS_MAX	256
#define BPFOF_XRP_FUNCTIONS_MAX	64
#define BPFOF_XRP_FILES_MAX	1024
#define BPFOF_XRP_EXTENTS_MAX	(1 << 20)
/* Files of one chain. */
#define BPFOF_XRP_CHAIN_FILES	16
/* Hops of one chain. A reset of the drive waits for the chain. */
#define BPFOF_XRP_HOPS_MAX	64
/* Units (0.2 ns) of one call of a function, which runs in an interrupt: 50 us by their price. */
#define BPFOF_XRP_CALL_UNITS	250000

/* Makes a domain of the open file. Needs CAP_SYS_ADMIN. */
struct bpfof_xrp_create {
	__u32 version;		/* in: BPFOF_XRP_VERSION */
	__s32 drive;		/* in: block device of the namespace, open for reading */
	__u64 arena;		/* in: where the caller has mapped the arena */
	__u32 slots;		/* in: slots of the arena */
	__u32 block_bytes;	/* out: logical block of the drive */
	__u64 id;		/* out: id by which functions name the domain */
};

struct bpfof_xrp_extent {
	__u64 file_offset;	/* in bytes, whole blocks, as the next two */
	__u64 device_offset;
	__u64 length;
};

/*
 * Sets the map of a file, or removes it (extent_count 0). Waits for chains that use the old map.
 * Needs CAP_SYS_ADMIN.
 */
struct bpfof_xrp_file {
	__u32 file;		/* below BPFOF_XRP_FILES_MAX */
	__u32 extent_count;
	__u64 version;		/* not 0 */
	__u64 length;		/* bytes of the file */
	__u64 extents;		/* address of struct bpfof_xrp_extent[], in order of the file */
};

struct bpfof_xrp_file_version {
	__u32 file;
	__u32 reserved;		/* 0 */
	__u64 version;
};

/* Runs a chain in a slot. Needs nothing but the open file. */
struct bpfof_xrp_run {
	__u32 slot;
	__u32 function;
	__u64 offset;		/* of the first read, bytes of the file */
	__u32 size;
	__u32 file;		/* index into files */
	__u32 file_count;
	__u32 hops_max;		/* at most BPFOF_XRP_HOPS_MAX */
	__u32 scratch_bytes;
	__u32 answer_max;
	__u64 units;		/* in: budget of all calls; out: units left */
	__u64 bytes;		/* in: bytes that may be read; out: bytes left */
	__u32 end;		/* out: enum bpfof_xrp_end */
	__u32 hops;		/* out: hops that were done */
	__u32 length;		/* out: of the answer */
	__u32 reason;		/* out: enum bpfof_xrp_reason */
	struct bpfof_xrp_file_version files[BPFOF_XRP_CHAIN_FILES];
};

enum bpfof_xrp_end {
	BPFOF_XRP_DONE = 0,	/* The answer is in scratch. */
	BPFOF_XRP_CONTINUE,	/* User space continues with the reads that the context requests. */
	BPFOF_XRP_RESTART,	/* User space runs the chain from its start. */
	BPFOF_XRP_CANCELLED,	/* The process is being killed. */
};

/* Why user space must continue or restart the chain. */
enum bpfof_xrp_reason {
	BPFOF_XRP_NONE = 0,
	BPFOF_XRP_READS,	/* several reads, or one that is not in one piece or too large */
	BPFOF_XRP_HOPS,		/* hops_max */
	BPFOF_XRP_FAULT,	/* the function faulted, or its budget is used up */
	BPFOF_XRP_HELPER,	/* it calls a helper that is not available here, or over too many bytes */
	BPFOF_XRP_OUTPUT,	/* its return value or its outputs are invalid */
	BPFOF_XRP_STALE,	/* a file has another version */
	BPFOF_XRP_DEVICE,	/* the drive could not read */
	BPFOF_XRP_REASONS,
};

#define BPFOF_XRP_IOC_CREATE	_IOWR('B', 0xe0, struct bpfof_xrp_create)
#define BPFOF_XRP_IOC_FILE	_IOW('B', 0xe1, struct bpfof_xrp_file)
#define BPFOF_XRP_IOC_RUN	_IOWR('B', 0xe2, struct bpfof_xrp_run)

#endif
