/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Maps of both kinds, shared by functions; one is static, and one is used only in a subprogram. */
#include <bpfof.h>

struct counters {
	__u64 calls;
	__u64 bytes;
};

typedef const struct counters alias;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, struct counters);
} seen SEC(".maps");

static struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__type(value, __u64[3]);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, char[5]);
	__type(value, alias);
} other SEC(".maps");

/* The key is the argument; the answer is the number of times that it was seen. */
SEC("bpfof/count")
int count(struct bpfof_ctx *ctx)
{
	__u64 key = *(__u64 *)ctx->scratch;
	__s64 calls = bpfof_map_add(&seen, &key, 0, 1);
	__u32 total = 1;

	if (calls < 0)
		return (int)-calls;
	bpfof_map_add(&seen, &key, 8, ctx->data_end - ctx->data);
	bpfof_map_add(&totals, &total, 16, 1);
	*(__u64 *)ctx->scratch = calls;
	ctx->out_len = 8;
	ctx->done = 1;
	return 0;
}

static __attribute__((noinline)) __s64 remember(__u8 *name, struct counters *value, __u64 flags)
{
	return bpfof_map_set(&other, name, value, flags);
}

/* All results of the helpers, one after the other. */
SEC("bpfof/each")
int each(struct bpfof_ctx *ctx)
{
	struct counters value = { 5, 6 };
	__u8 name[5] = "name";
	__s64 *out = (__s64 *)ctx->scratch;
	__u32 index = 2;
	__u64 three[3];

	*out++ = remember(name, &value, BPF_EXIST);
	*out++ = remember(name, &value, BPF_NOEXIST);
	*out++ = remember(name, &value, BPF_NOEXIST);
	value.calls = 0;
	*out++ = bpfof_map_get(&other, name, &value);
	*out++ = value.calls;
	*out++ = bpfof_map_add(&other, name, 8, -7);
	*out++ = bpfof_map_add(&other, name, 9, 1);
	name[0] = 'N';
	*out++ = bpfof_map_get(&other, name, &value);
	*out++ = remember(name, &value, BPF_ANY);
	*out++ = bpfof_map_delete(&other, name);
	name[0] = 'n';
	*out++ = bpfof_map_delete(&other, name);
	*out++ = remember(name, &value, 3);
	*out++ = bpfof_map_get(&totals, &index, three);
	*out++ = bpfof_map_set(&totals, &index, three, BPF_ANY);
	*out++ = bpfof_map_delete(&totals, &index);
	ctx->out_len = (__u8 *)out - ctx->scratch;
	ctx->done = 1;
	return 0;
}

/* A number that is not the handle of a map. */
SEC("bpfof/forged")
int forged(struct bpfof_ctx *ctx)
{
	__u64 key = 0;

	return bpfof_map_add(*(void **)ctx->scratch, &key, 0, 1);
}

/* A value that does not fit into its destination. */
SEC("bpfof/outside")
int outside(struct bpfof_ctx *ctx)
{
	__u64 key = 0;

	bpfof_map_add(&seen, &key, 0, 1);
	return bpfof_map_get(&seen, &key, ctx->data_end - 15);
}
