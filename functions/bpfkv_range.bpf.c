/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A range of keys of a BPF-KV database, as pairs or as an aggregate.
 *
 * The walk goes down to the leaf of the first key and then from leaf to leaf.
 * One hop reads all the values of a leaf and, as its last read, the next
 * leaf, so that each leaf costs one hop. Only a leaf whose values lie in more
 * than PAGES_MAX pages takes further hops.
 *
 * A leaf is gone when its values arrive. Each of its pairs therefore gets a
 * slot at once, with the value's file offset where the value will be. Slots
 * are handed out in the order of keys, blocks are asked for in the order of
 * slots, and calls come in the order of reads, so three counters say all:
 * slots below `filled` have their value, those below `asked` have their block
 * in this hop, those below `seen` have their key.
 */
#include "bpfkv.h"

/*
 * Pages of 4096 bytes that the values of one hop may lie in. With the next
 * leaf this keeps a hop within BPFOF_MAX_READS and, on devices of up to 4096
 * bytes a logical block, within BPFOF_MAX_HOP_BYTES.
 */
#define PAGES_MAX 15
#define PAGE_BYTES 4096

/* Hops that a leaf of 31 scattered values needs at most after its own. */
#define HOPS_PER_LEAF 3

#define AGGREGATE (BPFKV_COUNT | BPFKV_SUMMARY)
#define FLAGS (BPFKV_EXCLUSIVE_BEGIN | BPFKV_INCLUSIVE_END | AGGREGATE)

struct range {
	union {
		/* begin is the smallest key that may still come; after the
		 * first call end is the last key wanted */
		struct bpfkv_range_request request;
		struct bpfkv_range_answer answer;
	};
	union {
		struct bpfkv_pair pair[BPFKV_PAIRS_MAX];
		/* aggregates use the slots from 1 on, and only for one leaf */
		struct bpfkv_summary summary;
	};
	/* the leaf that is read with, or after, the values of this one; 0: none */
	__u64 next_leaf;
	/* what becomes answer.next_leaf */
	__u64 resume_leaf;
	__u32 filled;
	__u32 asked;
	__u32 seen;
	/* non-zero once the first leaf was met */
	__u32 walking;
};

_Static_assert(sizeof(struct range) <= BPFOF_SCRATCH_SIZE, "scratch is too small");

static inline int finish(struct bpfof_ctx *ctx, struct range *range)
{
	__u32 length = sizeof(range->answer), pairs = 0;

	if (range->request.flags & BPFKV_SUMMARY) {
		length += sizeof(range->summary);
	} else if (range->request.flags & BPFKV_COUNT) {
		length += sizeof(range->summary.count);
	} else {
		pairs = range->seen;
		length += pairs * sizeof(struct bpfkv_pair);
	}
	range->answer.next_leaf = range->resume_leaf;
	range->answer.pairs = pairs;
	range->answer.reserved = 0;
	ctx->out_len = length;
	ctx->done = 1;
	return 0;
}

/* Makes [begin, end] of the request, both inclusive. Returns 0 if it is empty. */
static inline int normalise(struct bpfkv_range_request *request)
{
	__u64 begin = request->begin, end = request->end;

	if (request->flags & BPFKV_EXCLUSIVE_BEGIN)
		begin++;
	if (begin == 0 && request->begin != 0)
		return 0;
	if (!(request->flags & BPFKV_INCLUSIVE_END) || end == BPFKV_NO_KEY) {
		if (end == 0)
			return 0;
		end--;
	}
	request->begin = begin;
	request->end = end;
	return begin <= end;
}

/* Asks for the blocks of the slots from `asked` on, and for the next leaf
 * once all are asked for. Values in neighbouring blocks share a read. */
static inline int ask(struct bpfof_ctx *ctx, struct range *range)
{
	__u32 slot = range->asked, seen = range->seen, reads = 0, pages = 0;
	/* The current read; at first one that no block is in or next to. */
	__u64 start = BPFKV_NO_KEY, end = BPFKV_NO_KEY;

	for (; slot < seen; slot++) {
		__u64 block = range->pair[slot].value.word[0] & ~(__u64)(BPFKV_BLOCK_BYTES - 1);

		if (block - start < end - start)
			continue;
		if (block != end || block % PAGE_BYTES == 0) {
			if (pages == PAGES_MAX)
				break;
			pages++;
		}
		if (block != end) {
			start = block;
			ctx->next_offset[reads++] = block;
		}
		end = block + BPFKV_BLOCK_BYTES;
		ctx->next_size[reads - 1] = end - start;
	}
	range->asked = slot;
	if (slot == seen && range->next_leaf) {
		ctx->next_offset[reads] = range->next_leaf;
		ctx->next_size[reads] = BPFKV_BLOCK_BYTES;
		reads++;
	}
	ctx->reads = reads;
	return 0;
}

/* Gives the slots whose values are in this read their values. */
static inline __u32 fill(const struct bpfof_ctx *ctx, struct range *range)
{
	__u64 offset = ctx->offset, length = ctx->data_end - ctx->data;
	const __u8 *data = ctx->data;
	__u32 slot = range->filled, asked = range->asked;

	for (; slot < asked; slot++) {
		struct bpfkv_value *value = &range->pair[slot].value;
		__u64 at = value->word[0] - offset;

		if (at >= length)
			break;
		*value = *(const struct bpfkv_value *)(data + at);
	}
	return slot;
}

/* Adds low + high * 2^32 to the exact sum. */
static inline void add(struct bpfkv_summary *summary, __u64 low, __s64 high)
{
	__u64 before = summary->sum_low, part = (__u64)high << 32;
	__u64 sum = before + low;
	__s64 carry = sum < before;

	sum += part;
	carry += sum < part;
	summary->sum_low = sum;
	summary->sum_high += (high >> 32) + carry;
}

/*
 * Adds the values that are in this read to the summary. For the exact sum the
 * upper halves are summed apart; the lower halves of one leaf make less than
 * 2^37, which is what the sum modulo 2^64 leaves of them. No value needs a
 * carry.
 */
static inline __u32 summarise(const struct bpfof_ctx *ctx, struct range *range)
{
	__u64 offset = ctx->offset, length = ctx->data_end - ctx->data, sum = 0;
	const __u8 *data = ctx->data;
	struct bpfkv_summary *summary = &range->summary;
	__s64 high = 0, min = summary->min, max = summary->max;
	__u32 first = range->filled, slot = first, asked = range->asked;

	for (; slot < asked; slot++) {
		__u64 at = range->pair[slot].value.word[0] - offset;
		__s64 number;

		if (at >= length)
			break;
		number = *(const __s64 *)(data + at);
		sum += number;
		high += number >> 32;
		if (number < min)
			min = number;
		if (number > max)
			max = number;
	}
	summary->count += slot - first;
	summary->min = min;
	summary->max = max;
	add(summary, sum - ((__u64)high << 32), high);
	return slot;
}

static inline int values(struct bpfof_ctx *ctx, struct range *range)
{
	__u32 filled;

	if (range->request.flags & BPFKV_SUMMARY)
		filled = summarise(ctx, range);
	else
		filled = fill(ctx, range);
	range->filled = filled;
	if (filled < range->asked)
		return 0;
	if (filled < range->seen)
		return ask(ctx, range);
	/* The next leaf is the next read of this hop. */
	if (range->next_leaf)
		return 0;
	return finish(ctx, range);
}

/*
 * Gives the keys from `at` to before `stop` their slots, as far as there are
 * slots. Returns the first key without a slot.
 */
static inline const __u64 *take(struct range *range, const __u64 *at, const __u64 *stop,
				int *error)
{
	__u32 seen = range->seen;
	__u64 begin = range->request.begin, bits = 0;

	if (stop - at > BPFKV_PAIRS_MAX - seen)
		stop = at + (BPFKV_PAIRS_MAX - seen);
	range->seen = seen + (stop - at);
	for (struct bpfkv_pair *pair = &range->pair[seen]; at < stop; at++, pair++) {
		__u64 key = at[0], offset = at[BPFKV_FANOUT] ^ BPFKV_ON_DISK;

		if (key < begin || key == BPFKV_NO_KEY)
			*error = BPFKV_KEYS_NOT_ASCENDING;
		begin = key + 1;
		bits |= offset;
		pair->key = key;
		pair->value.word[0] = offset;
	}
	range->request.begin = begin;
	if (!bpfkv_is_value_pointer(bits ^ BPFKV_ON_DISK))
		*error = BPFKV_BAD_VALUE_POINTER;
	return stop;
}

/* As take, but only counts. */
static inline const __u64 *count(struct range *range, const __u64 *at, const __u64 *stop,
				 int *error)
{
	if (at == stop)
		return stop;
	if (at[0] < range->request.begin || stop[-1] < at[0])
		*error = BPFKV_KEYS_NOT_ASCENDING;
	range->request.begin = stop[-1] + 1;
	range->summary.count += stop - at;
	return stop;
}

static inline int leaf(struct bpfof_ctx *ctx, struct range *range)
{
	const struct bpfkv_node *node = (const struct bpfkv_node *)ctx->data;
	const __u64 *at = node->key;
	const __u64 *keys_end = &node->key[BPFKV_FANOUT], *stop, *taken;
	__u64 next = node->next;
	__u32 hops_max = range->request.hops_max;
	int error = 0;

	range->next_leaf = 0;
	if (node->key[0] == BPFKV_NO_KEY)
		return BPFKV_EMPTY_NODE;
	if (range->request.flags & BPFKV_SUMMARY)
		range->filled = range->asked = range->seen = 1;
	if (range->walking) {
		if (hops_max && ctx->hop + HOPS_PER_LEAF >= hops_max) {
			range->resume_leaf = ctx->offset;
			return finish(ctx, range);
		}
	} else {
		range->walking = 1;
		if (range->request.flags & BPFKV_SUMMARY) {
			range->summary.min = (__s64)(BPFKV_ON_DISK - 1);
			range->summary.max = (__s64)BPFKV_ON_DISK;
		}
		at = bpfkv_upper_bound(at, range->request.begin);
		if (at != node->key && at[-1] == range->request.begin)
			at--;
	}
	stop = bpfkv_upper_bound(node->key, range->request.end);
	if (range->request.flags & BPFKV_COUNT)
		taken = count(range, at, stop, &error);
	else
		taken = take(range, at, stop, &error);
	if (error)
		return error;
	if (taken < stop) {
		range->resume_leaf = ctx->offset;
	} else if (range->request.begin <= range->request.end &&
		   (stop == keys_end || *stop == BPFKV_NO_KEY)) {
		/* Neither the last key wanted nor a key after it is here. */
		if (next % BPFKV_BLOCK_BYTES || next & BPFKV_ON_DISK)
			return BPFKV_BAD_NODE_POINTER;
		if (range->seen == BPFKV_PAIRS_MAX)
			range->resume_leaf = next;
		else
			range->next_leaf = next;
	}
	if (range->asked < range->seen || range->next_leaf)
		return ask(ctx, range);
	return finish(ctx, range);
}

static inline int node(struct bpfof_ctx *ctx, struct range *range)
{
	const struct bpfkv_node *node = (const struct bpfkv_node *)ctx->data;
	const __u64 *after;
	__u64 pointer;

	if (node->type == BPFKV_LEAF)
		return leaf(ctx, range);
	if (node->type != BPFKV_INTERNAL || range->walking)
		return BPFKV_BAD_NODE_TYPE;
	after = bpfkv_upper_bound(node->key, range->request.begin);
	/* A range may begin before the first key. */
	if (after == node->key)
		after++;
	pointer = after[BPFKV_FANOUT - 1];
	if (!bpfkv_is_node_pointer(pointer))
		return BPFKV_BAD_NODE_POINTER;
	ctx->next_offset[0] = pointer ^ BPFKV_ON_DISK;
	ctx->next_size[0] = BPFKV_BLOCK_BYTES;
	ctx->reads = 1;
	return 0;
}

SEC("bpfof/range")
int bpfkv_range(struct bpfof_ctx *ctx)
{
	struct range *range = (struct range *)ctx->scratch;
	__u32 flags = range->request.flags;

	if (ctx->hop == 0) {
		if (flags & ~FLAGS || (flags & AGGREGATE) == AGGREGATE)
			return BPFKV_BAD_REQUEST;
		if (!normalise(&range->request))
			return finish(ctx, range);
	}
	if (range->filled < range->asked)
		return values(ctx, range);
	return node(ctx, range);
}
