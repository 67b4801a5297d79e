/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A range of keys of a BPF-KV database, as pairs or as an aggregate.
 *
 * The walk goes down to the leaf of the first key and then from leaf to leaf.
 * One hop reads all values of a leaf and, as its last read, the next leaf, so
 * each leaf costs one hop. Only a leaf whose values lie in more than PAGES_MAX
 * pages takes more hops.
 *
 * When the values of a leaf arrive, the leaf is no longer in memory. So its
 * keys are copied at once, and each value is assigned the slot that it will
 * occupy. Values that are adjacent in the file, in the order of keys, form a
 * run and cost one copy; a database that was written in the order of keys has
 * one run per leaf. Until a run arrives, its first slot holds its file offsets.
 *
 * Slots are assigned in the order of keys, blocks are requested in the order of
 * slots, and calls come in the order of reads. So three positions in the slots
 * describe the state: slots below `filled` have their value, slots below
 * `asked` have their block in this hop, slots below `seen` have their key.
 */
#include "bpfkv.h"

/*
 * Maximum number of 4096-byte pages that the values of one hop may lie in. With
 * the next leaf this keeps a hop within BPFOF_MAX_READS and, on devices with
 * logical blocks of up to 4096 bytes, within BPFOF_MAX_HOP_BYTES.
 */
#define PAGES_MAX 15
#define PAGE_BYTES 4096

/* Maximum hops for a leaf of 31 scattered values, after the leaf's own hop. */
#define HOPS_PER_LEAF 3

#define AGGREGATE (BPFKV_COUNT | BPFKV_SUMMARY)
#define FLAGS (BPFKV_EXCLUSIVE_BEGIN | BPFKV_INCLUSIVE_END | AGGREGATE)

/* The start of scratch. */
struct range {
	union {
		/* begin is the smallest key still wanted; after the first call
		 * end is the last key wanted */
		struct bpfkv_range_request request;
		struct bpfkv_range_answer answer;
	};
	union {
		/* the slots; behind them the keys, which finish() moves to the
		 * end of the values */
		struct bpfkv_value value[1];
		struct {
			struct bpfkv_summary summary;
			/* aggregates use the slots for one leaf at a time */
			struct bpfkv_value leaf[BPFKV_FANOUT];
		};
	};
};

/* The end of scratch. */
struct walk {
	/* addresses of slots, see above; 0 until the first leaf */
	__u8 *filled;
	__u8 *asked;
	__u8 *seen;
	/* the end of the slots, where the keys begin, and the place of the next
	 * key; 0 for aggregates, which never run out of slots */
	__u8 *slots_end;
	__u8 *key;
	/* the leaf to read with, or after, the values of this one; 0: none */
	__u64 next_leaf;
	/* the values of answer.next_leaf and answer.more */
	__u64 resume_leaf;
	__u64 more;
};

_Static_assert(sizeof(struct walk) == BPFKV_WALK_BYTES, "bpfkv.h says how long the state is");
_Static_assert(sizeof(struct range) + BPFKV_WALK_BYTES == BPFKV_SUMMARY_SCRATCH,
	       "bpfkv.h says what an aggregate needs");

/* What to do next. The other results: 0, nothing, or an abort code. */
#define ASK (-1)
#define FINISH (-2)

/* A run of adjacent values: its file offset and its end. */
struct run {
	__u64 start;
	__u64 end;
};

static inline int finish(struct bpfof_ctx *ctx, struct range *range, const struct walk *walk)
{
	__u32 flags = range->request.flags;
	__u64 length = sizeof(range->answer), pairs = 0, key_bytes;

	if (flags & BPFKV_SUMMARY) {
		length += sizeof(range->summary);
	} else if (flags & BPFKV_COUNT) {
		length += sizeof(range->summary.count);
	} else if (walk->seen) {
		key_bytes = walk->key - walk->slots_end;
		if (walk->seen != walk->slots_end)
			bpfof_memmove(walk->seen, walk->slots_end, key_bytes);
		length = walk->seen + key_bytes - (__u8 *)range;
		pairs = key_bytes / sizeof(__u64);
	}
	range->answer.next_leaf = walk->resume_leaf;
	range->answer.pairs = pairs;
	range->answer.more = walk->more;
	return bpfof_answer(ctx, length);
}

/* Turns [begin, end) of the request into an inclusive range. Returns 0 if it is
 * empty. */
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

/* Requests the blocks of the slots from `asked` on, and the next leaf once all
 * are requested. Values in adjacent blocks share a read. */
static inline int ask(struct bpfof_ctx *ctx, struct walk *walk)
{
	__u8 *slot = walk->asked, *seen = walk->seen;
	__u64 *offset = ctx->next_offset;
	__u32 *size = ctx->next_size;
	__u64 pages = 0;
	/* The current read, and the end of its last page; initially a read that
	 * no block lies in or next to. */
	__u64 start = BPFKV_NO_KEY, end = BPFKV_NO_KEY, page_end = BPFKV_NO_KEY;

	while (slot < seen) {
		const struct run *run = (const struct run *)slot;
		__u64 from = run->start, to = run->end;
		__u64 block = from & ~(__u64)(BPFKV_BLOCK_BYTES - 1);
		__u64 stop = (to + BPFKV_BLOCK_BYTES - 1) & ~(__u64)(BPFKV_BLOCK_BYTES - 1);

		if (block - start > end - start) {
			if (pages == PAGES_MAX)
				break;
			start = end = block;
			page_end = block & ~(__u64)(PAGE_BYTES - 1);
			*offset++ = block;
			size++;
		}
		if (page_end < stop) {
			__u64 more = (stop - page_end + PAGE_BYTES - 1) / PAGE_BYTES;

			/* The rest of the run waits: arrived() makes it a run
			 * of its own when the requested part has arrived. */
			if (__builtin_expect(more > PAGES_MAX - pages, 0)) {
				to = page_end + (PAGES_MAX - pages) * PAGE_BYTES;
				if (to > from) {
					slot += to - from;
					if (to > end)
						size[-1] = to - start;
				}
				break;
			}
			pages += more;
			page_end += more * PAGE_BYTES;
		}
		if (stop > end) {
			end = stop;
			size[-1] = end - start;
		}
		slot += to - from;
	}
	walk->asked = slot;
	if (slot == seen && walk->next_leaf) {
		*offset++ = walk->next_leaf;
		*size = BPFKV_BLOCK_BYTES;
	}
	ctx->reads = offset - ctx->next_offset;
	return 0;
}

/*
 * Returns how many bytes of the run at `slot` are in a read of `length` bytes
 * at `offset`, beginning at `skip` in the read; 0 if they are in a later read.
 * If the read ends within the run, the rest becomes a run of its own.
 */
static inline __u64 arrived(__u8 *slot, __u64 offset, __u64 length, __u64 *skip)
{
	const struct run *run = (const struct run *)slot;
	__u64 start = run->start, end = run->end, before = start - offset;

	if (before >= length)
		return 0;
	*skip = before;
	length -= before;
	if (end - start > length) {
		struct run *rest = (struct run *)(slot + length);

		rest->start = start + length;
		rest->end = end;
		return length;
	}
	return end - start;
}

/* Copies the values in this read to their slots. */
static inline __u8 *fill(const struct bpfof_ctx *ctx, const struct walk *walk)
{
	__u8 *slot = walk->filled, *asked = walk->asked;
	const __u8 *data = ctx->data;
	__u64 offset = ctx->offset, length = ctx->data_end - data, skip;

	while (slot < asked) {
		__u64 bytes = arrived(slot, offset, length, &skip);

		if (!bytes)
			break;
		bpfof_memmove(slot, data + skip, bytes);
		slot += bytes;
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
 * Adds the values in this read to the summary. For the exact sum the upper
 * halves are summed separately. The lower halves of one leaf sum to less than
 * 2^37, so the sum modulo 2^64 minus the upper halves gives their sum. No value
 * needs a carry.
 */
static inline __u8 *summarise(const struct bpfof_ctx *ctx, const struct walk *walk,
			      struct bpfkv_summary *summary)
{
	__u8 *slot = walk->filled, *asked = walk->asked;
	__s64 high = 0, min = summary->min, max = summary->max;
	const __u8 *data = ctx->data;
	__u64 offset = ctx->offset, length = ctx->data_end - data, sum = 0, skip;

	while (slot < asked) {
		__u64 bytes = arrived(slot, offset, length, &skip);

		if (!bytes)
			break;
		slot += bytes;
		for (const __u8 *at = data + skip, *stop = at + bytes; at < stop; at += BPFKV_VALUE_BYTES) {
			__s64 number = *(const __s64 *)at;

			sum += number;
			high += number >> 32;
			if (number < min)
				min = number;
			if (number > max)
				max = number;
		}
	}
	summary->min = min;
	summary->max = max;
	add(summary, sum - ((__u64)high << 32), high);
	return slot;
}

/* Ends the answer here; the range continues at this leaf. */
static inline void resume(struct walk *walk, __u64 leaf)
{
	walk->resume_leaf = leaf;
	walk->more = 1;
}

static inline int values(const struct bpfof_ctx *ctx, struct range *range, struct walk *walk)
{
	__u8 *filled;

	if (range->request.flags & BPFKV_SUMMARY)
		filled = summarise(ctx, walk, &range->summary);
	else
		filled = fill(ctx, walk);
	walk->filled = filled;
	if (filled < walk->asked)
		return 0;
	if (filled < walk->seen)
		return ASK;
	/* The next leaf is the next read of this hop. */
	return walk->next_leaf ? 0 : FINISH;
}

/*
 * Returns the end of the run that begins at `at`, which is `stop` at most: keys
 * whose values are adjacent in the file. Returns 0 if a key does not ascend.
 * Checks four at a time where possible.
 */
static inline const __u64 *run_end(const __u64 *at, const __u64 *stop)
{
	__u64 pointer = at[BPFKV_FANOUT];

	while (stop - at > 4) {
		__u64 first = at[0], last = at[BPFKV_FANOUT + 4];

		/* Both ends are in the arena, so nothing between them needs a
		 * check. */
		__asm__ volatile("" : "+r"(first), "+r"(last));
		if (at[1] <= first || at[2] <= at[1] || at[3] <= at[2] || at[4] <= at[3])
			return 0;
		if (at[BPFKV_FANOUT + 1] != pointer + 1 * BPFKV_VALUE_BYTES ||
		    at[BPFKV_FANOUT + 2] != pointer + 2 * BPFKV_VALUE_BYTES ||
		    at[BPFKV_FANOUT + 3] != pointer + 3 * BPFKV_VALUE_BYTES ||
		    last != pointer + 4 * BPFKV_VALUE_BYTES)
			break;
		pointer += 4 * BPFKV_VALUE_BYTES;
		at += 4;
	}
	while (++at < stop) {
		if (at[0] <= at[-1])
			return 0;
		pointer += BPFKV_VALUE_BYTES;
		if (at[BPFKV_FANOUT] != pointer)
			break;
	}
	return at;
}

/* Assigns slots to the keys from `at` up to, not including, `stop`. */
static inline int take(struct range *range, struct walk *walk, const __u64 *at, const __u64 *stop)
{
	__u8 *slot = walk->seen;
	__u64 bytes = (const __u8 *)stop - (const __u8 *)at, last = stop[-1];
	__u64 starts = 0, ends = 0;

	if (at[0] < range->request.begin || last == BPFKV_NO_KEY)
		return BPFKV_KEYS_NOT_ASCENDING;
	range->request.begin = last + 1;
	if (!(range->request.flags & BPFKV_SUMMARY)) {
		bpfof_memmove(walk->key, at, bytes);
		walk->key += bytes;
	}
	while (at < stop) {
		const __u64 *after = at + 1;
		struct run *run = (struct run *)slot;
		__u64 pointer = at[BPFKV_FANOUT], start = pointer ^ BPFKV_ON_DISK;
		__u64 length = BPFKV_VALUE_BYTES;

		if (after < stop) {
			if (after[BPFKV_FANOUT] == pointer + BPFKV_VALUE_BYTES) {
				after = run_end(at, stop);
				if (!after)
					return BPFKV_KEYS_NOT_ASCENDING;
				length = (after - at) * (__u64)BPFKV_VALUE_BYTES;
			}
			if (after < stop && after[0] <= after[-1])
				return BPFKV_KEYS_NOT_ASCENDING;
		}
		/* A run may extend beyond the largest offset of a pointer. */
		starts |= start;
		ends |= start + length - 1;
		run->start = start;
		run->end = start + length;
		slot += length;
		at = after;
	}
	if (!bpfkv_is_value_pointer(starts ^ BPFKV_ON_DISK) || (__s64)ends < 0)
		return BPFKV_BAD_VALUE_POINTER;
	walk->seen = slot;
	return 0;
}

/* As take(), where no values are needed; trusts the order inside a leaf. */
static inline int pass(struct range *range, const __u64 *at, const __u64 *stop)
{
	__u64 first = at[0], last = stop[-1];

	if (first < range->request.begin || last < first)
		return BPFKV_KEYS_NOT_ASCENDING;
	range->request.begin = last + 1;
	return 0;
}

/* The first leaf has been reached: sets up scratch. */
static inline void begin(const struct bpfof_ctx *ctx, struct range *range, struct walk *walk)
{
	__u32 space = ctx->scratch_size - (sizeof(range->answer) + sizeof(*walk));
	__u32 pairs = space / (sizeof(struct bpfkv_value) + sizeof(__u64));

	if (range->request.flags & BPFKV_SUMMARY) {
		range->summary.min = (__s64)(BPFKV_ON_DISK - 1);
		range->summary.max = (__s64)BPFKV_ON_DISK;
	}
	if (range->request.flags & AGGREGATE)
		return;
	walk->filled = walk->asked = walk->seen = (__u8 *)range->value;
	walk->slots_end = walk->key = (__u8 *)&range->value[pairs];
}

static inline int leaf(const struct bpfof_ctx *ctx, struct range *range, struct walk *walk)
{
	const struct bpfkv_node *node = (const struct bpfkv_node *)ctx->data;
	const __u64 *at = node->key;
	const __u64 *keys_end = &node->key[BPFKV_FANOUT], *stop, *taken;
	__u64 next = node->next, room;
	__u32 hops_max = range->request.hops_max, flags = range->request.flags;
	int error = 0;

	walk->next_leaf = 0;
	if (node->key[0] == BPFKV_NO_KEY)
		return BPFKV_EMPTY_NODE;
	if (walk->seen) {
		if (hops_max && ctx->hop + HOPS_PER_LEAF >= hops_max) {
			resume(walk, ctx->offset);
			return FINISH;
		}
	} else {
		begin(ctx, range, walk);
		at = bpfkv_upper_bound(at, range->request.begin);
		if (at != node->key && at[-1] == range->request.begin)
			at--;
	}
	stop = taken = bpfkv_upper_bound(node->key, range->request.end);
	if (flags & AGGREGATE) {
		range->summary.count += stop - at;
		walk->filled = walk->asked = walk->seen = (__u8 *)range->leaf;
	} else {
		room = (__u64)(walk->slots_end - walk->seen) / BPFKV_VALUE_BYTES;
		if ((__u64)(stop - at) > room)
			taken = at + room;
	}
	if (at != taken) {
		if (flags & BPFKV_COUNT)
			error = pass(range, at, taken);
		else
			error = take(range, walk, at, taken);
		if (error)
			return error;
	}
	if (taken < stop) {
		resume(walk, ctx->offset);
	} else if (range->request.begin <= range->request.end &&
		   (stop == keys_end || *stop == BPFKV_NO_KEY)) {
		/* The leaf has neither the last key wanted nor a key after
		 * it. */
		if (next % BPFKV_BLOCK_BYTES || next & BPFKV_ON_DISK)
			return BPFKV_BAD_NODE_POINTER;
		if (walk->seen != walk->slots_end)
			walk->next_leaf = next;
		else if (next)
			resume(walk, next);
	}
	return walk->asked < walk->seen || walk->next_leaf ? ASK : FINISH;
}

static inline int node(struct bpfof_ctx *ctx, struct range *range, struct walk *walk)
{
	const struct bpfkv_node *node = (const struct bpfkv_node *)ctx->data;
	const __u64 *after;
	__u64 pointer;

	if (node->type == BPFKV_LEAF)
		return leaf(ctx, range, walk);
	if (node->type != BPFKV_INTERNAL || walk->seen)
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

/* Whether the flags are valid and scratch is large enough for them. */
static inline int is_good(__u32 flags, __u32 scratch_size)
{
	__u32 needed = BPFKV_PAIRS_SCRATCH(1);

	if (flags & BPFKV_SUMMARY)
		needed = BPFKV_SUMMARY_SCRATCH;
	else if (flags & BPFKV_COUNT)
		needed = BPFKV_COUNT_SCRATCH;
	return !(flags & ~FLAGS) && (flags & AGGREGATE) != AGGREGATE && scratch_size >= needed;
}

SEC("bpfof/range")
int bpfkv_range(struct bpfof_ctx *ctx)
{
	struct range *range = (struct range *)ctx->scratch;
	struct walk *walk = (struct walk *)(ctx->scratch + ctx->scratch_size) - 1;
	int next;

	if (ctx->hop == 0 && !is_good(range->request.flags, ctx->scratch_size))
		return BPFKV_BAD_REQUEST;
	if (ctx->hop == 0 && !normalise(&range->request))
		next = FINISH;
	else if (walk->filled < walk->asked)
		next = values(ctx, range, walk);
	else
		next = node(ctx, range, walk);
	if (next == ASK)
		return ask(ctx, walk);
	if (next == FINISH)
		return finish(ctx, range, walk);
	return next;
}
