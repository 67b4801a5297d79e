// SPDX-License-Identifier: GPL-2.0
/* Chains: each completion calls the function and issues the next read on the same request. */

#include <linux/blk-integrity.h>
#include <linux/nospec.h>
#include <linux/sched/clock.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include "xrp.h"

/* Exported by nvme-core, and declared in its private header. */
void nvme_init_request(struct request *req, struct nvme_command *cmd);

struct xrp_burst {
	u64 last_ns;		/* end of the last completion */
	u32 count;
};

static DEFINE_PER_CPU(struct xrp_burst, xrp_bursts);

/* From 7.0 on a completion is passed the batch that it is in. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
#define XRP_END_IO(rq, status) \
	xrp_end_io(struct request *rq, blk_status_t status, const struct io_comp_batch *batch)
#else
#define XRP_END_IO(rq, status) xrp_end_io(struct request *rq, blk_status_t status)
#endif

static enum rq_end_io_ret XRP_END_IO(rq, status);

static struct xrp_context *xrp_context(struct xrp_chain *chain)
{
	return (struct xrp_context *)(chain->memory + XRP_CONTEXT);
}

static void xrp_end(struct xrp_chain *chain, u32 end, u32 reason)
{
	chain->run.end = end;
	chain->run.reason = reason;
	if (reason)
		xrp_count(reasons[reason]);
}

/* Sets the fields of the command that all reads of a chain share. */
static void xrp_prepare_all(struct xrp_chain *chain)
{
	memset(&chain->command, 0, sizeof(chain->command));
	chain->command.rw.opcode = nvme_cmd_read;
	chain->command.rw.nsid = cpu_to_le32(chain->domain->nsid);
	/*
	 * A drive that has been formatted with protection information since the domain was made strips
	 * it if the metadata is nothing else, as for the block layer's reads: it would not fit into the
	 * pages. Drives without it ignore this.
	 */
	chain->command.rw.control = cpu_to_le16(NVME_RW_PRINFO_PRACT);
	chain->prepared = 0;
}

/*
 * Does what blk_rq_bio_prep() does, which newer kernels do not export. All segments but the last
 * are whole pages.
 */
static void xrp_attach(struct request *rq, struct bio *bio)
{
	rq->nr_phys_segments = bio->bi_vcnt;
	rq->__data_len = bio->bi_iter.bi_size;
	rq->bio = rq->biotail = bio;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
	rq->phys_gap_bit = 0;
#endif
}

/* Prepares the request for the next read of the chain. */
static void xrp_prepare(struct xrp_chain *chain)
{
	struct bio *bio = &chain->bio;
	u32 left = chain->length, index;

	chain->command.rw.slba = cpu_to_le64(chain->device_offset >> chain->domain->block_shift);
	chain->command.rw.length = cpu_to_le16((chain->length >> chain->domain->block_shift) - 1);
	if (chain->prepared == chain->length) {
		/* The bio has the pages of the last read: only reset its iterator. */
		bio->bi_iter = (struct bvec_iter){ .bi_size = chain->length };
		bio->bi_status = BLK_STS_OK;
	} else {
		bio_init(bio, NULL, chain->vecs, ARRAY_SIZE(chain->vecs), REQ_OP_DRV_IN);
		for (index = 0; left; index++) {
			u32 bytes = min_t(u32, left, PAGE_SIZE);

			__bio_add_page(bio, chain->data[index], bytes, 0);
			left -= bytes;
		}
		chain->prepared = chain->length;
	}
	nvme_init_request(chain->rq, &chain->command);
	xrp_attach(chain->rq, bio);
}

/*
 * Maps and functions are read under srcu_down_read() of xrp_run(), which lockdep cannot follow into
 * interrupts: hence rcu_dereference_raw().
 */

/*
 * Checks a read and finds it on the drive. Returns 0, or the reason why user space must do it: user
 * space then continues the chain from here, or reports the error.
 */
static u32 xrp_place(struct xrp_chain *chain, u32 file, u64 offset, u32 size)
{
	struct bpfof_xrp_file_version *wanted;
	struct xrp_domain *domain = chain->domain;
	u64 mask = (1ULL << domain->block_shift) - 1, first, end;
	const struct xrp_map *map;

	if (!size || file >= chain->run.file_count)
		return BPFOF_XRP_OUTPUT;
	file = array_index_nospec(file, chain->run.file_count);
	wanted = &chain->run.files[file];
	map = rcu_dereference_raw(domain->files[wanted->file]);
	if (!map || map->version != wanted->version)
		return BPFOF_XRP_STALE;
	if (check_add_overflow(offset, (u64)size, &end) || end > map->length)
		return BPFOF_XRP_OUTPUT;
	first = offset & ~mask;
	end = (end + mask) & ~mask;
	if (end - first > XRP_DATA_BYTES)
		return BPFOF_XRP_READS;
	chain->device_offset = xrp_translate(map, first, end - first);
	if (chain->device_offset == U64_MAX)
		return BPFOF_XRP_READS;
	chain->length = end - first;
	if (chain->length > chain->run.bytes)
		return BPFOF_XRP_OUTPUT;
	chain->run.bytes -= chain->length;
	chain->offset = offset;
	chain->size = size;
	chain->file = file;
	chain->skip = offset - first;
	return 0;
}

/* Whether all files have the versions that the chain was started with. */
static bool xrp_is_current(struct xrp_chain *chain)
{
	struct xrp_domain *domain = chain->domain;
	u32 index;

	for (index = 0; index < chain->run.file_count; index++) {
		struct bpfof_xrp_file_version *wanted = &chain->run.files[index];
		const struct xrp_map *map;

		map = rcu_dereference_raw(domain->files[wanted->file]);
		if (!map || map->version != wanted->version)
			return false;
	}
	return true;
}

/* Calls the function on what was read. */
static int xrp_call(struct xrp_chain *chain)
{
	struct xrp_context *context = xrp_context(chain);
	struct bpfof_xrp_hop *hop = &chain->hop;
	u64 granted = min_t(u64, chain->run.units, BPFOF_XRP_CALL_UNITS);
	u64 data = XRP_DATA + chain->skip;
	u32 asked = min(READ_ONCE(context->reads), XRP_READS_MAX), index;

	for (index = 0; index < max(asked, 1U); index++) {
		WRITE_ONCE(context->next_offset[index], 0);
		WRITE_ONCE(context->next_size[index], 0);
		WRITE_ONCE(context->next_file[index], 0);
	}
	WRITE_ONCE(context->data, data);
	WRITE_ONCE(context->data_end, data + chain->size);
	WRITE_ONCE(context->scratch, XRP_SCRATCH);
	WRITE_ONCE(context->offset, chain->offset);
	WRITE_ONCE(context->scratch_size, chain->run.scratch_bytes);
	WRITE_ONCE(context->hop, chain->run.hops);
	WRITE_ONCE(context->read_index, 0);
	WRITE_ONCE(context->file, chain->file);
	WRITE_ONCE(context->reads, 0);
	WRITE_ONCE(context->done, 0);
	WRITE_ONCE(context->out_len, 0);
	hop->limit = data + chain->size;
	hop->budget = granted;
	hop->result = 0;
	hop->fault = 0;
	hop->helper_bytes = XRP_HELPER_BYTES;
	chain->run.hops++;
	chain->ops->run(hop);
	if (hop->fault)
		return hop->fault >> 16 == XRP_FAULT_HELPER ? BPFOF_XRP_HELPER : BPFOF_XRP_FAULT;
	chain->run.units -= granted - min(hop->budget, granted);
	return hop->result ? BPFOF_XRP_OUTPUT : 0;
}

/* Does one hop. Returns whether to issue another read; otherwise the chain is over. */
static bool xrp_hop(struct xrp_chain *chain, blk_status_t status)
{
	struct xrp_context *context = xrp_context(chain);
	u32 reason, length;

	xrp_count(hops);
	if (READ_ONCE(chain->cancelled)) {
		xrp_end(chain, BPFOF_XRP_CANCELLED, BPFOF_XRP_NONE);
		return false;
	}
	reason = status ? BPFOF_XRP_DEVICE : xrp_is_current(chain) ? xrp_call(chain) :
		 BPFOF_XRP_STALE;
	if (reason) {
		xrp_end(chain, BPFOF_XRP_RESTART, reason);
		return false;
	}
	/* The process may write there at any time: read each field once, check the value. */
	if (READ_ONCE(context->done)) {
		length = READ_ONCE(context->out_len);
		if (length > chain->run.scratch_bytes || length > chain->run.answer_max) {
			xrp_end(chain, BPFOF_XRP_RESTART, BPFOF_XRP_OUTPUT);
		} else {
			chain->run.length = length;
			xrp_end(chain, BPFOF_XRP_DONE, BPFOF_XRP_NONE);
		}
		return false;
	}
	if (READ_ONCE(context->reads) != 1)
		reason = BPFOF_XRP_READS;
	else if (chain->run.hops >= chain->run.hops_max)
		reason = BPFOF_XRP_HOPS;
	else
		reason = xrp_place(chain, READ_ONCE(context->next_file[0]),
				   READ_ONCE(context->next_offset[0]),
				   READ_ONCE(context->next_size[0]));
	if (reason)
		xrp_end(chain, BPFOF_XRP_CONTINUE, reason);
	return !reason;
}

/*
 * Whether this context may wait for the submission lock, which process context takes with
 * interrupts on. docs/kernel.md argues why no circle of waiting can form.
 */
static bool xrp_may_lock(struct blk_mq_hw_ctx *hctx)
{
	if (unguarded)
		return true;
	/*
	 * A softirq on the lock holder's processor may wait for a lock that the interrupted code
	 * holds with softirqs off, or for the end of the timer's callback that was interrupted.
	 */
	if (in_hardirq() && softirq_count())
		return false;
	/* A: the code that this interrupt interrupted holds no spinlock. */
	if ((preempt_count() & PREEMPT_MASK) <= (is_idle_task(current) ? 1 : 0))
		return true;
	/* B: no processor holds this lock. Without SMP that cannot be tested. */
	if (!IS_ENABLED(CONFIG_SMP) || sq_lock_offset < 0 || !hctx->driver_data)
		return false;
	/* The test comes after all earlier accesses of this processor: see docs/kernel.md. */
	smp_mb();
	/* This is not an assertion, for which there is lockdep: it decides whether to wait. */
	return !spin_is_locked((spinlock_t *)(hctx->driver_data + sq_lock_offset));
}

/*
 * A fast drive may keep its interrupt from ever ending. A thread may be preempted instead. The time
 * that completions take is no pause, however slow their functions are.
 */
static bool xrp_is_burst(u64 begin_ns)
{
	struct xrp_burst *burst;

	if (in_task())
		return false;
	burst = this_cpu_ptr(&xrp_bursts);
	/* Another completion may have begun and ended since this one began. */
	burst->count = (s64)(begin_ns - burst->last_ns) < READ_ONCE(pause_ns) ? burst->count + 1 : 0;
	return burst->count > XRP_BURST_MAX;
}

static void xrp_count_context(void)
{
	if (in_hardirq())
		xrp_count(in_hardirq);
	else if (in_softirq())
		xrp_count(in_softirq);
	else
		xrp_count(in_task);
}

/*
 * Gives the prepared request to the driver, past the queues of the block layer, as
 * blk_mq_try_issue_directly() does. If it succeeds the chain may be over before this returns.
 * Called under rcu_read_lock(): a reset of the drive waits until no caller is in here.
 */
static blk_status_t xrp_queue(struct request *rq)
{
	struct blk_mq_hw_ctx *hctx = rq->mq_hctx;
	struct blk_mq_queue_data data = { .rq = rq, .last = true };

	if (blk_queue_quiesced(rq->q) || test_bit(BLK_MQ_S_STOPPED, &hctx->state))
		return BLK_STS_RESOURCE;
	return rq->q->mq_ops->queue_rq(hctx, &data);
}

/* Issues the prepared request from a completion. The chain may be over before this returns. */
static void xrp_resubmit(struct xrp_chain *chain, u64 begin_ns)
{
	struct request *rq = chain->rq;

	WRITE_ONCE(rq->state, MQ_RQ_IDLE);
	rq->rq_flags &= ~RQF_TIMED_OUT;
	if (READ_ONCE(hand_over)) {
		xrp_count(handed_over_always);
	} else if (xrp_is_burst(begin_ns)) {
		xrp_count(handed_over_burst);
	} else if (!xrp_may_lock(rq->mq_hctx)) {
		xrp_count(handed_over_lock);
	} else if (xrp_queue(rq) != BLK_STS_OK) {
		xrp_count(handed_over_queue);
	} else {
		xrp_count_context();
		return;
	}
	queue_work(xrp_workqueue, &chain->work);
}

/* Issues the read through the block layer, from process context. */
static void xrp_execute(struct xrp_chain *chain)
{
	WRITE_ONCE(chain->rq->state, MQ_RQ_IDLE);
	xrp_prepare(chain);
	blk_execute_rq_nowait(chain->rq, false);
}

void xrp_work(struct work_struct *work)
{
	xrp_execute(container_of(work, struct xrp_chain, work));
}

/* Releases everything but the slot. */
static void xrp_finish(struct xrp_chain *chain)
{
	chain->rq->bio = NULL;
	blk_mq_free_request(chain->rq);
	srcu_up_read(&chain->domain->srcu, chain->srcu);
}

/*
 * The status of a read. blk_mq_end_request_batch() ends passthrough requests without an error even
 * if they failed; the drive's status is in the driver's part of the request.
 */
static blk_status_t xrp_status(struct request *rq, blk_status_t status)
{
	const u16 *said = blk_mq_rq_to_pdu(rq) + status_offset;

	return status ? : *said ? BLK_STS_IOERR : BLK_STS_OK;
}

static enum rq_end_io_ret XRP_END_IO(rq, status)
{
	struct xrp_chain *chain = rq->end_io_data;
	u64 begin_ns = local_clock();

	/* Unloading the module waits for the end of this section, in threaded interrupts too. */
	guard(rcu)();
	if (xrp_hop(chain, xrp_status(rq, status))) {
		xrp_prepare(chain);
		xrp_resubmit(chain, begin_ns);
	} else {
		complete(&chain->done);
	}
	if (!in_task())
		this_cpu_write(xrp_bursts.last_ns, local_clock());
	return RQ_END_IO_NONE;
}

static int xrp_check(struct xrp_domain *domain, struct xrp_chain *chain)
{
	struct bpfof_xrp_run *run = &chain->run;
	u32 index;

	if (run->function >= BPFOF_XRP_FUNCTIONS_MAX || !run->hops_max ||
	    run->hops_max > BPFOF_XRP_HOPS_MAX || run->scratch_bytes > XRP_SCRATCH_MAX)
		return -EINVAL;
	for (index = 0; index < run->file_count; index++) {
		u32 *file = &run->files[index].file;

		if (*file >= BPFOF_XRP_FILES_MAX || run->files[index].reserved)
			return -EINVAL;
		*file = array_index_nospec(*file, BPFOF_XRP_FILES_MAX);
	}
	run->function = array_index_nospec(run->function, BPFOF_XRP_FUNCTIONS_MAX);
	chain->ops = rcu_dereference_raw(domain->functions[run->function]);
	return chain->ops ? 0 : -ENOENT;
}

/* Whether the drive has been reformatted. That is impossible while a request is held. */
static bool xrp_is_other_drive(const struct xrp_domain *domain)
{
	return bdev_logical_block_size(domain->bdev) != 1U << domain->block_shift ||
	       bdev_nr_bytes(domain->bdev) < domain->bytes ||
	       blk_get_integrity(domain->bdev->bd_disk);
}

/* Takes a request and issues the first read. Returns 1 if the chain is over without one. */
static int xrp_start(struct xrp_chain *chain)
{
	struct xrp_domain *domain = chain->domain;
	struct bpfof_xrp_run *run = &chain->run;
	u32 reason = xrp_place(chain, run->file, run->offset, run->size);
	blk_status_t status = BLK_STS_RESOURCE;

	run->hops = 0;
	if (reason) {
		xrp_end(chain, BPFOF_XRP_RESTART, reason);
		return 1;
	}
	chain->rq = blk_mq_alloc_request(domain->queue, REQ_OP_DRV_IN, 0);
	if (IS_ERR(chain->rq))
		return PTR_ERR(chain->rq);
	if (xrp_is_other_drive(domain)) {
		blk_mq_free_request(chain->rq);
		xrp_end(chain, BPFOF_XRP_RESTART, BPFOF_XRP_DEVICE);
		return 1;
	}
	chain->rq->end_io = xrp_end_io;
	chain->rq->end_io_data = chain;
	chain->hop.lowest = chain->ops->workspace ? XRP_WORKSPACE : XRP_GUEST_BASE;
	chain->cancelled = false;
	reinit_completion(&chain->done);
	xrp_count(chains);
	xrp_prepare_all(chain);
	xrp_prepare(chain);
	/* With a scheduler the request has no driver tag yet: the scheduler must issue it. */
	if (!(chain->rq->rq_flags & RQF_SCHED_TAGS)) {
		rcu_read_lock();
		status = xrp_queue(chain->rq);
		rcu_read_unlock();
	}
	if (status != BLK_STS_OK)
		xrp_execute(chain);
	return 0;
}

/* Copies a request from user space, with as many files as it has. */
static int xrp_copy_in(struct bpfof_xrp_run *run, struct bpfof_xrp_run __user *user)
{
	if (copy_from_user(run, user, offsetof(struct bpfof_xrp_run, files)))
		return -EFAULT;
	if (!run->file_count || run->file_count > BPFOF_XRP_CHAIN_FILES)
		return -EINVAL;
	return copy_from_user(run->files, user->files,
			      run->file_count * sizeof(run->files[0])) ? -EFAULT : 0;
}

/* Copies the output fields to user space. */
static int xrp_copy_out(const struct bpfof_xrp_run *run, struct bpfof_xrp_run __user *user)
{
	size_t bytes = offsetof(struct bpfof_xrp_run, files) -
		       offsetof(struct bpfof_xrp_run, units);

	return copy_to_user(&user->units, &run->units, bytes) ? -EFAULT : 0;
}

/* Runs a chain, and waits for its end. */
int xrp_run(struct xrp_domain *domain, struct bpfof_xrp_run __user *user)
{
	struct xrp_chain *chain;
	u32 slot;
	int error;

	if (get_user(slot, &user->slot))
		return -EFAULT;
	if (slot >= domain->slots)
		return -EINVAL;
	chain = &domain->chains[array_index_nospec(slot, domain->slots)];
	if (test_and_set_bit_lock(0, &chain->busy))
		return -EBUSY;
	error = xrp_copy_in(&chain->run, user);
	if (error)
		goto release;
	chain->srcu = srcu_down_read(&domain->srcu);
	error = xrp_check(domain, chain);
	if (!error)
		error = xrp_start(chain);
	if (error) {
		srcu_up_read(&domain->srcu, chain->srcu);
		goto answer;
	}
	if (wait_for_completion_killable(&chain->done)) {
		WRITE_ONCE(chain->cancelled, true);
		wait_for_completion(&chain->done);
	}
	xrp_finish(chain);
	error = 1;
answer:
	if (error > 0)
		error = xrp_copy_out(&chain->run, user);
release:
	clear_bit_unlock(0, &chain->busy);
	return error;
}
