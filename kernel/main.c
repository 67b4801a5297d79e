// SPDX-License-Identifier: GPL-2.0
/*
 * Chains of dependent reads inside the interrupt of the stock NVMe driver: XRP (OSDI '22) as a
 * module. docs/kernel.md says how it works, and why it does no harm.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/blk-integrity.h>
#include <linux/blkdev.h>
#include <linux/capability.h>
#include <linux/debugfs.h>
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nvme_ioctl.h>
#include <linux/pci.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include "xrp.h"

/* From 7.1 on a work queue must say whether it is bound to processors; before it is unless it says otherwise. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
#define XRP_WQ_PERCPU WQ_PERCPU
#else
#define XRP_WQ_PERCPU 0
#endif

int sq_lock_offset = -1;
module_param(sq_lock_offset, int, 0444);
MODULE_PARM_DESC(sq_lock_offset,
		 "Offset of nvme_queue.sq_lock in bytes, from the kernel's BTF; -1 if unknown");

int status_offset = -1;
module_param(status_offset, int, 0444);
MODULE_PARM_DESC(status_offset,
		 "Offset of nvme_request.status in bytes, from the kernel's BTF");

bool unguarded;
module_param(unguarded, bool, 0400);
MODULE_PARM_DESC(unguarded,
		 "Take the submission lock without checking that it is free. Hangs the machine; for one test");

bool hand_over;
module_param(hand_over, bool, 0600);
MODULE_PARM_DESC(hand_over,
		 "Issue all reads from a thread, none in an interrupt; for comparison");

uint pause_ns = 2000;
module_param(pause_ns, uint, 0600);
MODULE_PARM_DESC(pause_ns,
		 "Completions on a processor less than this many ns apart count as one interrupt; longer for a test");

DEFINE_PER_CPU(struct xrp_counts, xrp_counts);
struct workqueue_struct *xrp_workqueue;
static struct dentry *xrp_directory;
static DEFINE_MUTEX(xrp_domains_lock);
static LIST_HEAD(xrp_domains);
static u64 xrp_next_id = 1;

struct xrp_domain *xrp_domain_get(u64 id)
{
	struct xrp_domain *domain, *found = NULL;

	mutex_lock(&xrp_domains_lock);
	list_for_each_entry(domain, &xrp_domains, list) {
		if (domain->id == id && kref_get_unless_zero(&domain->refs))
			found = domain;
	}
	mutex_unlock(&xrp_domains_lock);
	return found;
}

static void xrp_domain_free(struct kref *refs)
{
	struct xrp_domain *domain = container_of(refs, struct xrp_domain, refs);
	u32 slot;

	mutex_lock(&xrp_domains_lock);
	list_del_init(&domain->list);
	mutex_unlock(&xrp_domains_lock);
	/* A worker may still be in the block layer after its chain has ended. */
	for (slot = 0; domain->chains && slot < domain->slots; slot++)
		flush_work(&domain->chains[slot].work);
	xrp_files_free(domain);
	if (domain->memory)
		vunmap(domain->memory);
	if (domain->page_count)
		unpin_user_pages_dirty_lock(domain->pages, domain->page_count, true);
	kvfree(domain->pages);
	kvfree(domain->chains);
	if (domain->drive)
		fput(domain->drive);
	cleanup_srcu_struct(&domain->srcu);
	kvfree(domain);
}

void xrp_domain_put(struct xrp_domain *domain)
{
	kref_put(&domain->refs, xrp_domain_free);
}

/* Takes a drive: a namespace on PCI, bound to the stock driver, without its multipath. */
static int xrp_take_drive(struct xrp_domain *domain, int fd)
{
	const struct device_driver *driver;
	struct device *controller, *pci;
	struct gendisk *disk;
	int nsid;

	domain->drive = fget(fd);
	if (!domain->drive)
		return -EBADF;
	if (!S_ISBLK(file_inode(domain->drive)->i_mode) || !(domain->drive->f_mode & FMODE_READ))
		return -ENOTBLK;
	domain->bdev = file_bdev(domain->drive);
	disk = domain->bdev->bd_disk;
	domain->queue = bdev_get_queue(domain->bdev);
	controller = disk_to_dev(disk)->parent;
	pci = controller ? controller->parent : NULL;
	/* The driver may be unbound at any time. */
	driver = pci ? READ_ONCE(pci->driver) : NULL;
	if (bdev_is_partition(domain->bdev) || !queue_is_mq(domain->queue) || !driver ||
	    !dev_is_pci(pci) || strcmp(driver->name, "nvme") ||
	    !disk->fops->ioctl || blk_get_integrity(disk))
		return -EOPNOTSUPP;
	nsid = disk->fops->ioctl(domain->bdev, BLK_OPEN_READ, NVME_IOCTL_ID, 0);
	if (nsid <= 0)
		return nsid ? : -EOPNOTSUPP;
	domain->nsid = nsid;
	domain->block_shift = ilog2(bdev_logical_block_size(domain->bdev));
	domain->bytes = bdev_nr_bytes(domain->bdev);
	if (queue_max_bytes(domain->queue) < XRP_DATA_BYTES ||
	    queue_max_segments(domain->queue) < XRP_DATA_PAGES || domain->block_shift > PAGE_SHIFT ||
	    domain->queue->tag_set->cmd_size < status_offset + sizeof(u16))
		return -EOPNOTSUPP;
	return 0;
}

static int xrp_pin(struct xrp_domain *domain, u64 arena)
{
	u32 wanted = domain->slots * (BPFOF_XRP_SLOT_BYTES / PAGE_SIZE);

	if (!PAGE_ALIGNED(arena))
		return -EINVAL;
	domain->pages = kvcalloc(wanted, sizeof(*domain->pages), GFP_KERNEL_ACCOUNT);
	if (!domain->pages)
		return -ENOMEM;
	while (domain->page_count < wanted) {
		int pinned = pin_user_pages_fast(arena + domain->page_count * PAGE_SIZE,
						 wanted - domain->page_count,
						 FOLL_WRITE | FOLL_LONGTERM,
						 domain->pages + domain->page_count);

		if (pinned <= 0)
			return pinned ? : -EFAULT;
		domain->page_count += pinned;
	}
	domain->memory = vmap(domain->pages, wanted, VM_MAP, PAGE_KERNEL);
	return domain->memory ? 0 : -ENOMEM;
}

static int xrp_make_chains(struct xrp_domain *domain, u64 arena)
{
	u32 slot;

	domain->chains = kvcalloc(domain->slots, sizeof(*domain->chains), GFP_KERNEL_ACCOUNT);
	if (!domain->chains)
		return -ENOMEM;
	for (slot = 0; slot < domain->slots; slot++) {
		struct xrp_chain *chain = &domain->chains[slot];
		u64 at = (u64)slot * BPFOF_XRP_SLOT_BYTES;

		chain->domain = domain;
		chain->memory = domain->memory + at;
		chain->data = domain->pages + (at + XRP_DATA) / PAGE_SIZE;
		/* The lower half only: BPF adds the upper half of addresses in an arena itself. */
		chain->hop.slot = (u32)arena + at;
		chain->hop.memory = chain->memory;
		init_completion(&chain->done);
		INIT_WORK(&chain->work, xrp_work);
	}
	return 0;
}

static int xrp_create(struct file *file, struct bpfof_xrp_create __user *user)
{
	struct bpfof_xrp_create create;
	struct xrp_domain *domain;
	int error;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (copy_from_user(&create, user, sizeof(create)))
		return -EFAULT;
	if (create.version != BPFOF_XRP_VERSION)
		return -EPROTO;
	if (!create.slots || create.slots > BPFOF_XRP_SLOTS_MAX)
		return -EINVAL;
	domain = kvzalloc(sizeof(*domain), GFP_KERNEL_ACCOUNT);
	if (!domain)
		return -ENOMEM;
	error = init_srcu_struct(&domain->srcu);
	if (error) {
		kvfree(domain);
		return error;
	}
	kref_init(&domain->refs);
	INIT_LIST_HEAD(&domain->list);
	mutex_init(&domain->lock);
	domain->slots = create.slots;
	error = xrp_take_drive(domain, create.drive);
	error = error ? : xrp_pin(domain, create.arena);
	error = error ? : xrp_make_chains(domain, create.arena);
	if (error)
		goto put;
	mutex_lock(&xrp_domains_lock);
	domain->id = xrp_next_id++;
	list_add_tail(&domain->list, &xrp_domains);
	mutex_unlock(&xrp_domains_lock);
	create.block_bytes = 1U << domain->block_shift;
	create.id = domain->id;
	error = copy_to_user(user, &create, sizeof(create)) ? -EFAULT : 0;
	if (!error && cmpxchg(&file->private_data, NULL, domain))
		error = -EBUSY;
	if (!error)
		return 0;
put:
	xrp_domain_put(domain);
	return error;
}

static long xrp_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct xrp_domain *domain = READ_ONCE(file->private_data);
	void __user *user = (void __user *)argument;

	if (command == BPFOF_XRP_IOC_CREATE)
		return domain ? -EBUSY : xrp_create(file, user);
	if (!domain)
		return -ENXIO;
	switch (command) {
	case BPFOF_XRP_IOC_FILE:
		return xrp_file_set(domain, user);
	case BPFOF_XRP_IOC_RUN:
		return xrp_run(domain, user);
	default:
		return -ENOTTY;
	}
}

static int xrp_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return 0;
}

static int xrp_release(struct inode *inode, struct file *file)
{
	struct xrp_domain *domain = file->private_data;

	/* No chain runs: each holds a reference to the file. */
	if (domain)
		xrp_domain_put(domain);
	return 0;
}

static const struct file_operations xrp_fops = {
	.owner = THIS_MODULE,
	.open = xrp_open,
	.release = xrp_release,
	.unlocked_ioctl = xrp_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice xrp_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "bpfof-xrp",
	.fops = &xrp_fops,
	.mode = 0600,
};

#define XRP_SUM(field) ({						\
	u64 sum = 0;							\
	int cpu;							\
									\
	for_each_possible_cpu(cpu)					\
		sum += per_cpu(xrp_counts, cpu).field;			\
	sum;								\
})

static int counters_show(struct seq_file *file, void *unused)
{
	static const char * const reasons[] = {
		"", "reads", "hops", "fault", "helper", "output", "stale", "device",
	};
	int reason;

	seq_printf(file, "chains %llu\nhops %llu\n", XRP_SUM(chains), XRP_SUM(hops));
	seq_printf(file, "resubmitted_hardirq %llu\nresubmitted_softirq %llu\n",
		   XRP_SUM(in_hardirq), XRP_SUM(in_softirq));
	seq_printf(file, "resubmitted_task %llu\n", XRP_SUM(in_task));
	seq_printf(file, "handed_over_lock %llu\nhanded_over_burst %llu\n",
		   XRP_SUM(handed_over_lock), XRP_SUM(handed_over_burst));
	seq_printf(file, "handed_over_queue %llu\nhanded_over_always %llu\n",
		   XRP_SUM(handed_over_queue), XRP_SUM(handed_over_always));
	for (reason = 1; reason < BPFOF_XRP_REASONS; reason++)
		seq_printf(file, "user_space_%s %llu\n", reasons[reason], XRP_SUM(reasons[reason]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

static int domains_show(struct seq_file *file, void *unused)
{
	struct xrp_domain *domain;

	mutex_lock(&xrp_domains_lock);
	list_for_each_entry(domain, &xrp_domains, list) {
		u32 index, functions = 0, files = 0;

		for (index = 0; index < BPFOF_XRP_FUNCTIONS_MAX; index++)
			functions += !!rcu_access_pointer(domain->functions[index]);
		for (index = 0; index < BPFOF_XRP_FILES_MAX; index++)
			files += !!rcu_access_pointer(domain->files[index]);
		seq_printf(file, "%llu %s slots %u functions %u files %u\n", domain->id,
			   domain->bdev->bd_disk->disk_name, domain->slots, functions, files);
	}
	mutex_unlock(&xrp_domains_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(domains);

static int __init xrp_module_init(void)
{
	int error;

	if (IS_ENABLED(CONFIG_PREEMPT_RT) || !IS_ENABLED(CONFIG_PREEMPT_COUNT)) {
		pr_err("refused: without PREEMPT_COUNT, or with PREEMPT_RT, an interrupt cannot tell whether the submission lock is held\n");
		return -EOPNOTSUPP;
	}
	if (status_offset < 0 || !IS_ALIGNED(status_offset, sizeof(u16))) {
		pr_err("refused: without status_offset failed reads are not noticed; bpfof xrp load knows it\n");
		return -EINVAL;
	}
	if (sq_lock_offset > 0 && !IS_ALIGNED(sq_lock_offset, __alignof__(spinlock_t))) {
		pr_err("refused: a lock at offset %d cannot be\n", sq_lock_offset);
		return -EINVAL;
	}
	xrp_workqueue = alloc_workqueue("bpfof_xrp", WQ_HIGHPRI | WQ_MEM_RECLAIM | XRP_WQ_PERCPU, 0);
	if (!xrp_workqueue)
		return -ENOMEM;
	error = xrp_ops_register();
	if (error)
		goto destroy;
	error = misc_register(&xrp_device);
	if (error)
		goto destroy;
	xrp_directory = debugfs_create_dir("bpfof_xrp", NULL);
	debugfs_create_file("counters", 0444, xrp_directory, NULL, &counters_fops);
	debugfs_create_file("domains", 0444, xrp_directory, NULL, &domains_fops);
	if (unguarded)
		pr_warn("no guard: this hangs the machine\n");
	else
		pr_info("guard %s\n", sq_lock_offset < 0 ? "A" : "A and B");
	return 0;
destroy:
	destroy_workqueue(xrp_workqueue);
	return error;
}

static void __exit xrp_module_exit(void)
{
	debugfs_remove(xrp_directory);
	misc_deregister(&xrp_device);
	destroy_workqueue(xrp_workqueue);
	/* A completion in a thread may have been preempted behind its last access, with an
	 * instruction or two of the module left. */
	synchronize_rcu_tasks();
}

module_init(xrp_module_init);
module_exit(xrp_module_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Chains of dependent reads in the interrupt of the NVMe driver");
