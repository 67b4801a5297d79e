/* SPDX-License-Identifier: GPL-2.0 */
/* Declarations that the parts of the module share. */
#ifndef _XRP_H
#define _XRP_H

#include <linux/blk-mq.h>
#include <linux/bpf.h>
#include <linux/completion.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/nvme.h>
#include <linux/srcu.h>
#include <linux/workqueue.h>

#include "bpfof_xrp.h"

/* With larger pages the areas of a slot would share pages: the drive would write over the context. */
#ifndef CONFIG_X86_64
#error "bpfof_xrp is for x86-64: a slot's layout needs pages of 4 KiB"
#endif

/* Guest addresses: crates/function/src/abi.rs. */
#define XRP_WORKSPACE		0x1000UL
#define XRP_GUEST_BASE		0x11000UL
#define XRP_CONTEXT		0x12000UL
#define XRP_SCRATCH		0x13000UL
#define XRP_SCRATCH_MAX		0x4000U
#define XRP_DATA		0x17000UL
#define XRP_DATA_BYTES		0x10000U
#define XRP_DATA_PAGES		(XRP_DATA_BYTES / PAGE_SIZE)
#define XRP_READS_MAX		16U

/* Reads that a processor issues from interrupts without a pause (pause_ns) between completions. */
#define XRP_BURST_MAX		32

/*
 * Bytes that helpers may process in one call of a function: here they are slower than their
 * price.
 */
#define XRP_HELPER_BYTES	0x20000UL

/*
 * struct bpfof_ctx of functions/include/bpfof.h, in the arena: user space may write anything there
 * at any time.
 */
struct xrp_context {
	u64 data;
	u64 data_end;
	u64 scratch;
	u64 offset;
	u32 scratch_size;
	u32 hop;
	u32 read_index;
	u32 file;
	u32 reads;
	u32 done;
	u32 out_len;
	u32 reserved;
	u64 next_offset[XRP_READS_MAX];
	u32 next_size[XRP_READS_MAX];
	u32 next_file[XRP_READS_MAX];
};

/* The argument of a rewritten function: crates/function/src/kernel/contract.rs. */
struct bpfof_xrp_hop {
	u64 slot;
	u64 limit;
	u64 budget;
	u64 result;
	u64 address;
	u32 fault;
	u32 reserved;
	/* The function may not write these fields, and has no use for their values. */
	u8 *memory;
	u64 lowest;
	u64 helper_bytes;	/* left for helpers */
};

/* Upper half of fault: enum Ended of crates/function/src/kernel/contract.rs. */
enum {
	XRP_FAULT_MEMORY = 1,
	XRP_FAULT_READ_ONLY,
	XRP_FAULT_BUDGET,
	XRP_FAULT_STACK,
	XRP_FAULT_HELPER,
};

/* A function of a domain, as a struct_ops type. */
struct bpfof_xrp_ops {
	int (*run)(struct bpfof_xrp_hop *hop);
	u64 domain;
	u32 function;
	u32 workspace;		/* whether it may access its workspace */
	u64 constants;		/* guest address of its constants */
	u64 constant_bytes;
};

struct xrp_map {
	u64 version;
	u64 length;
	u32 count;
	struct bpfof_xrp_extent extents[] __counted_by(count);
};

struct xrp_domain;

struct xrp_chain {
	struct xrp_domain *domain;
	struct request *rq;
	struct bpfof_xrp_ops *ops;
	u8 *memory;			/* the slot, guest address 0 */
	struct page **data;		/* pages of its data area */
	struct bpfof_xrp_hop hop;
	struct bpfof_xrp_run run;
	/* The read in flight. */
	u64 offset;
	u32 size;
	u32 file;
	u32 skip;			/* bytes before the read, in its first block */
	u64 device_offset;
	u32 length;
	u32 prepared;			/* the length that bio was made for */
	int srcu;
	bool cancelled;
	unsigned long busy;
	struct work_struct work;
	struct completion done;
	struct nvme_command command;
	struct bio bio;
	struct bio_vec vecs[XRP_DATA_BYTES / PAGE_SIZE];
};

struct xrp_domain {
	struct kref refs;
	struct list_head list;
	u64 id;
	struct file *drive;
	struct block_device *bdev;
	struct request_queue *queue;
	u32 nsid;
	u32 block_shift;
	u64 bytes;
	u32 slots;
	struct page **pages;
	u32 page_count;
	u8 *memory;
	struct xrp_chain *chains;
	struct srcu_struct srcu;
	struct mutex lock;		/* for changes of files and functions */
	struct xrp_map __rcu *files[BPFOF_XRP_FILES_MAX];
	struct bpfof_xrp_ops __rcu *functions[BPFOF_XRP_FUNCTIONS_MAX];
};

/* Counters of one processor. */
struct xrp_counts {
	u64 chains;
	u64 hops;
	u64 in_hardirq;
	u64 in_softirq;
	u64 in_task;
	u64 handed_over_lock;
	u64 handed_over_burst;
	u64 handed_over_queue;
	u64 handed_over_always;
	u64 reasons[BPFOF_XRP_REASONS];
};

DECLARE_PER_CPU(struct xrp_counts, xrp_counts);
#define xrp_count(field)	this_cpu_inc(xrp_counts.field)

extern int sq_lock_offset;
extern int status_offset;
extern bool unguarded;
extern bool hand_over;
extern uint pause_ns;
extern struct workqueue_struct *xrp_workqueue;

/* main.c */
struct xrp_domain *xrp_domain_get(u64 id);
void xrp_domain_put(struct xrp_domain *domain);

/* chain.c */
int xrp_run(struct xrp_domain *domain, struct bpfof_xrp_run __user *user);
void xrp_work(struct work_struct *work);

/* file.c */
int xrp_file_set(struct xrp_domain *domain, struct bpfof_xrp_file __user *user);
void xrp_files_free(struct xrp_domain *domain);
u64 xrp_translate(const struct xrp_map *map, u64 offset, u64 length);

/* ops.c */
int xrp_ops_register(void);

#endif
