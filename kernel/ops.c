// SPDX-License-Identifier: GPL-2.0
/* Functions: a struct_ops type, and the kfuncs that they call. */

#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/bpf_verifier.h>
#include <linux/capability.h>
#include <linux/crc32.h>
#include <linux/module.h>
#include <linux/version.h>
#include "xrp.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
#define __crc32c_le crc32c
#endif

/* The types that functions are verified with. */
static const struct btf *xrp_types;

static int xrp_fault(struct bpfof_xrp_hop *hop, u32 kind, u64 address)
{
	hop->fault = kind << 16;
	hop->address = address;
	return -EFAULT;
}

/* As charge() of crates/function/src/helper/call.rs. */
static int xrp_charge(struct bpfof_xrp_hop *hop, u64 fixed, u64 len, u32 shift)
{
	u64 units = fixed + (len >> shift);

	if (units > hop->budget) {
		hop->budget = 0;
		return xrp_fault(hop, XRP_FAULT_BUDGET, 0);
	}
	hop->budget -= units;
	if (len > hop->helper_bytes)
		return xrp_fault(hop, XRP_FAULT_HELPER, 0);
	hop->helper_bytes -= len;
	return 0;
}

static u8 *xrp_readable(struct bpfof_xrp_hop *hop, u64 address, u64 len)
{
	u64 start = address - hop->lowest, end;

	if (check_add_overflow(start, len, &end) || end > hop->limit - hop->lowest) {
		xrp_fault(hop, XRP_FAULT_MEMORY, address);
		return NULL;
	}
	return hop->memory + address;
}

static u8 *xrp_writable(struct bpfof_xrp_hop *hop, u64 address, u64 len)
{
	struct xrp_chain *chain = container_of(hop, struct xrp_chain, hop);
	u8 *memory = xrp_readable(hop, address, len);
	u64 constants = chain->ops->constants;

	if (memory && chain->ops->constant_bytes && address + len > constants &&
	    address < constants + chain->ops->constant_bytes) {
		xrp_fault(hop, XRP_FAULT_READ_ONLY, address);
		return NULL;
	}
	return memory;
}

__bpf_kfunc_start_defs();

__bpf_kfunc u64 bpfof_xrp_memcmp(struct bpfof_xrp_hop *hop, u64 a, u64 b, u64 len)
{
	u8 *first, *second;
	int order;

	if (xrp_charge(hop, 10, len, 3))
		return 0;
	first = xrp_readable(hop, a, len);
	second = first ? xrp_readable(hop, b, len) : NULL;
	if (!second)
		return 0;
	order = memcmp(first, second, len);
	return order < 0 ? -1 : order > 0;
}

__bpf_kfunc u64 bpfof_xrp_memmove(struct bpfof_xrp_hop *hop, u64 to, u64 from, u64 len)
{
	u8 *first, *second;

	if (xrp_charge(hop, 46, len, 3))
		return 0;
	first = xrp_writable(hop, to, len);
	second = first ? xrp_readable(hop, from, len) : NULL;
	if (second)
		memmove(first, second, len);
	return 0;
}

__bpf_kfunc u64 bpfof_xrp_memset(struct bpfof_xrp_hop *hop, u64 to, u64 value, u64 len)
{
	u8 *memory;

	if (xrp_charge(hop, 46, len, 3))
		return 0;
	memory = xrp_writable(hop, to, len);
	if (memory)
		memset(memory, (u8)value, len);
	return 0;
}

__bpf_kfunc u64 bpfof_xrp_crc32c(struct bpfof_xrp_hop *hop, u64 data, u64 crc, u64 len)
{
	u8 *memory;

	if (xrp_charge(hop, 40, len, 2))
		return 0;
	memory = xrp_readable(hop, data, len);
	return memory ? ~__crc32c_le(~(u32)crc, memory, len) & 0xffffffffU : 0;
}

__bpf_kfunc u64 bpfof_xrp_find(struct bpfof_xrp_hop *hop, u64 data, u64 byte, u64 len)
{
	u8 *memory, *found;

	if (xrp_charge(hop, 40, len, 3))
		return 0;
	memory = xrp_readable(hop, data, len);
	if (!memory)
		return 0;
	found = memchr(memory, (u8)byte, len);
	return found ? found - memory : len;
}

__bpf_kfunc u64 bpfof_xrp_find_any(struct bpfof_xrp_hop *hop, u64 data, u64 bytes, u64 len)
{
	u8 *memory;
	u64 at;

	if (xrp_charge(hop, 60, len, 2))
		return 0;
	memory = xrp_readable(hop, data, len);
	if (!memory)
		return 0;
	for (at = 0; at < len; at++) {
		u8 byte = READ_ONCE(memory[at]);

		if (byte == (u8)bytes || byte == (u8)(bytes >> 8) ||
		    byte == (u8)(bytes >> 16) || byte == (u8)(bytes >> 24))
			break;
	}
	return at;
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(xrp_kfunc_ids)
BTF_ID_FLAGS(func, bpfof_xrp_memcmp)
BTF_ID_FLAGS(func, bpfof_xrp_memmove)
BTF_ID_FLAGS(func, bpfof_xrp_memset)
BTF_ID_FLAGS(func, bpfof_xrp_crc32c)
BTF_ID_FLAGS(func, bpfof_xrp_find)
BTF_ID_FLAGS(func, bpfof_xrp_find_any)
BTF_KFUNCS_END(xrp_kfunc_ids)

static const struct btf_kfunc_id_set xrp_kfuncs = {
	.owner = THIS_MODULE,
	.set = &xrp_kfunc_ids,
};

static bool xrp_is_valid_access(int off, int size, enum bpf_access_type type,
				const struct bpf_prog *prog, struct bpf_insn_access_aux *info)
{
	if (off < 0 || off >= sizeof(u64) * MAX_BPF_FUNC_ARGS || off % sizeof(u64))
		return false;
	return type == BPF_READ && btf_ctx_access(off, size, type, prog, info);
}

/* The only writes of a function outside its arena are to the output fields of the hop. */
static int xrp_btf_struct_access(struct bpf_verifier_log *log, const struct bpf_reg_state *reg,
				 int off, int size)
{
	const struct btf_type *type = btf_type_by_id(reg->btf, reg->btf_id);

	/* No other structure that a function can reach has this size: the module's own are few. */
	if (reg->btf == xrp_types && type && type->size == sizeof(struct bpfof_xrp_hop) &&
	    off >= offsetof(struct bpfof_xrp_hop, budget) &&
	    off + size <= offsetof(struct bpfof_xrp_hop, reserved))
		return 0;
	bpf_log(log, "bpfof_xrp: functions may not write at offset %d of that\n", off);
	return -EACCES;
}

static const struct bpf_verifier_ops xrp_verifier_ops = {
	.get_func_proto = bpf_base_func_proto,
	.is_valid_access = xrp_is_valid_access,
	.btf_struct_access = xrp_btf_struct_access,
};

static int xrp_init(struct btf *btf)
{
	xrp_types = btf;
	return 0;
}

/* Functions run in interrupts, and must not sleep. */
static int xrp_check_member(const struct btf_type *type, const struct btf_member *member,
			    const struct bpf_prog *prog)
{
	return prog->sleepable ? -EINVAL : 0;
}

/* Members that are not functions are copied as they are. */
static int xrp_init_member(const struct btf_type *type, const struct btf_member *member,
			   void *kdata, const void *udata)
{
	u32 at = __btf_member_bit_offset(type, member) / 8;

	if (at < offsetof(struct bpfof_xrp_ops, domain))
		return 0;
	switch (at) {
	case offsetof(struct bpfof_xrp_ops, function):
	case offsetof(struct bpfof_xrp_ops, workspace):
		*(u32 *)(kdata + at) = *(u32 *)(udata + at);
		return 1;
	default:
		*(u64 *)(kdata + at) = *(u64 *)(udata + at);
		return 1;
	}
}

static int xrp_reg(void *kdata, struct bpf_link *link)
{
	struct bpfof_xrp_ops *ops = kdata;
	struct xrp_domain *domain;
	int error = 0;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (!ops->run || ops->function >= BPFOF_XRP_FUNCTIONS_MAX)
		return -EINVAL;
	domain = xrp_domain_get(ops->domain);
	if (!domain)
		return -ENOENT;
	/* The function keeps the reference as long as it is registered. */
	mutex_lock(&domain->lock);
	if (rcu_access_pointer(domain->functions[ops->function]))
		error = -EEXIST;
	else
		rcu_assign_pointer(domain->functions[ops->function], ops);
	mutex_unlock(&domain->lock);
	if (error)
		xrp_domain_put(domain);
	return error;
}

static void xrp_unreg(void *kdata, struct bpf_link *link)
{
	struct bpfof_xrp_ops *ops = kdata;
	struct xrp_domain *domain = xrp_domain_get(ops->domain);

	if (WARN_ON_ONCE(!domain))
		return;
	mutex_lock(&domain->lock);
	RCU_INIT_POINTER(domain->functions[ops->function], NULL);
	mutex_unlock(&domain->lock);
	/* Wait until no chain runs the function any more. */
	synchronize_srcu(&domain->srcu);
	xrp_domain_put(domain);
	xrp_domain_put(domain);
}

static int xrp_run_stub(struct bpfof_xrp_hop *hop)
{
	return 0;
}

static struct bpfof_xrp_ops xrp_stubs = {
	.run = xrp_run_stub,
};

static struct bpf_struct_ops xrp_struct_ops = {
	.verifier_ops = &xrp_verifier_ops,
	.init = xrp_init,
	.init_member = xrp_init_member,
	.check_member = xrp_check_member,
	.reg = xrp_reg,
	.unreg = xrp_unreg,
	.cfi_stubs = &xrp_stubs,
	.name = "bpfof_xrp_ops",
	.owner = THIS_MODULE,
};

int xrp_ops_register(void)
{
	int error = register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &xrp_kfuncs);

	return error ? : register_bpf_struct_ops(&xrp_struct_ops, bpfof_xrp_ops);
}
