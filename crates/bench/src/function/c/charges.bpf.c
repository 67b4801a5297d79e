/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Measured by `bpfof bench function --parts charges`: each entry point repeats one operation, in
 * the way that takes a processor longest.
 *
 * Most loops contain it 16 or 64 times, so that the loop itself hardly counts; `count` is then a
 * multiple of that. Results are stored, so that the compiler removes nothing.
 */
#include "bpfof/blocks.h"

/* At the start of scratch, as charges/kernels.rs writes it. Lengths and offsets are in bytes. */
struct request {
	/* number of repetitions */
	__u64 count;
	/* length of a helper's range */
	__u64 length;
	/* the result */
	__u64 result;
	/* a constant that the compiler does not know */
	__u64 operand;
	/* what the first step begins with; random numbers continue from call to call */
	__u64 state;
	/* offset in the block of the first access */
	__u64 first;
	/* distance from the first range of a helper to the second */
	__u64 second;
	/* distance from the data of one step to that of the next */
	__u64 stride;
	/* distance by which all steps move from turn to turn, and after which they start again */
	__u64 step;
	__u64 span;
	/* room for a decompressed block */
	__u64 room;
};

/* Up to and including `result`. */
#define ANSWER_SIZE 24
/* After the request: long keys. */
#define KEY_AT 1024

#define ENTRY(name)                                                                                \
	SEC("bpfof/" #name)                                                                        \
	int run_##name(struct bpfof_ctx *ctx)

#define EIGHT(step)                                                                                \
	{                                                                                          \
		step step step step step step step step                                            \
	}

#define SIXTEEN(step) EIGHT(step step)

static inline struct request *request_of(const struct bpfof_ctx *ctx)
{
	return (struct request *)ctx->scratch;
}

static inline int finish(struct bpfof_ctx *ctx, __u64 result)
{
	request_of(ctx)->result = result;
	return bpfof_answer(ctx, ANSWER_SIZE);
}

/* ---- Instructions ---- */

/* These instructions, 64 times a turn: r1 is the state, r2 the operand, r3 the length. */
#define INSTRUCTIONS(name, text)                                                                   \
	ENTRY(name)                                                                                \
	{                                                                                          \
		struct request *request = request_of(ctx);                                         \
		__u64 value = request->state, left;                                                \
		__u64 operand = request->operand, length = request->length;                        \
                                                                                                   \
		for (left = request->count; left; left -= 64)                                      \
			asm volatile("r1 = %0\n"                                                   \
				     "r2 = %1\n"                                                   \
				     "r3 = %2\n"                                                   \
				     ".rept 64\n" text "\n.endr\n"                                 \
				     "%0 = r1"                                                     \
				     : "+r"(value)                                                 \
				     : "r"(operand), "r"(length)                                   \
				     : "r1", "r2", "r3");                                          \
		return finish(ctx, value);                                                         \
	}

INSTRUCTIONS(alu, "r1 += r2\n r1 ^= r3")
INSTRUCTIONS(alu32, "w1 += w2\n w1 ^= w3")
INSTRUCTIONS(shift, "r1 <<= r2\n r1 |= r3")
INSTRUCTIONS(swap64, "r1 = be64 r1\n r1 += r3")
INSTRUCTIONS(swap16, "r1 = be16 r1\n r1 += r3")
INSTRUCTIONS(multiply, "r1 *= r2\n r1 *= r2")
/* The dividend becomes large again, and so does the next quotient. */
INSTRUCTIONS(divide, "r1 /= r2\n r1 |= r3")
/* r1 %= r2, r1 s/= r2 and r1 s%= r2, which older versions of clang do not know. */
INSTRUCTIONS(modulo, ".quad 0x219f\n r1 |= r3")
INSTRUCTIONS(signed_divide, ".quad 0x1213f\n r1 |= r3")
INSTRUCTIONS(signed_modulo, ".quad 0x1219f\n r1 |= r3")

/* Each bit of random numbers decides a branch, over two instructions: over one it would become a
 * select. */
ENTRY(branch)
{
	struct request *request = request_of(ctx);
	__u64 state = request->state, sum = 0, left;

	for (left = request->count; left; left -= 64) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		asm volatile("r1 = %1\n"
			     ".rept 64\n"
			     "if r1 s< 0 goto +2\n"
			     "%0 += 1\n"
			     "%0 ^= r1\n"
			     "r1 <<= 1\n"
			     ".endr"
			     : "+r"(sum)
			     : "r"(state)
			     : "r1");
	}
	request->state = state;
	return finish(ctx, sum);
}

static __attribute__((noinline)) __u64 called(__u64 value)
{
	asm volatile("%0 += 1" : "+r"(value));
	return value;
}

ENTRY(call)
{
	__u64 value = 0, left;

	for (left = request_of(ctx)->count; left; left -= 16)
		SIXTEEN(value = called(value);)
	return finish(ctx, value);
}

/* ---- Memory ---- */

/* The block contains addresses, each of the next one. */
ENTRY(chase)
{
	struct request *request = request_of(ctx);
	__u64 at = (__u64)ctx->data + request->first, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(at = *(const volatile __u64 *)at;)
	return finish(ctx, at);
}

/* Loads through the block in steps of this many bytes: strided loops, which pay when they are
 * left. */
#define SCAN(name, type, bytes)                                                                    \
	ENTRY(name)                                                                                \
	{                                                                                          \
		__u64 sum = 0, left;                                                               \
                                                                                                   \
		for (left = request_of(ctx)->count; left; left--) {                                \
			const __u8 *at, *end = ctx->data_end;                                      \
                                                                                                   \
			for (at = ctx->data; at < end; at += (bytes))                              \
				sum += *(const volatile type *)at;                                 \
		}                                                                                  \
		return finish(ctx, sum);                                                           \
	}

SCAN(scan_bytes, __u8, 1)
SCAN(scan_words, __u64, 8)
SCAN(scan_lines, __u64, 64)

/* Stores to one cache line after the other. */
ENTRY(store)
{
	struct request *request = request_of(ctx);
	__u64 value = request->state, position = 0, left;

	for (left = request->count; left; left -= 16) {
		volatile __u64 *line = (volatile __u64 *)(ctx->data + position);

		SIXTEEN(*line = value; line += 8;)
		position += 16 * 64;
		if (position >= request->span)
			position = 0;
	}
	return finish(ctx, value);
}

/* The same with stores of a byte, which cannot cross a page boundary. */
ENTRY(store_byte)
{
	struct request *request = request_of(ctx);
	__u64 value = request->state, position = 0, left;

	for (left = request->count; left; left -= 16) {
		volatile __u8 *line = (volatile __u8 *)(ctx->data + position);

		SIXTEEN(*line = value; line += 64;)
		position += 16 * 64;
		if (position >= request->span)
			position = 0;
	}
	return finish(ctx, value);
}

/* Stores to one place, where a page may end. */
ENTRY(store_again)
{
	struct request *request = request_of(ctx);
	volatile __u64 *at = (volatile __u64 *)(ctx->data + request->first);
	__u64 value = request->state, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(*at = value;)
	return finish(ctx, value);
}

/* A byte is stored, and then the word around it is loaded before the store has completed. */
ENTRY(store_load)
{
	struct request *request = request_of(ctx);
	volatile __u8 *byte = ctx->data + request->first;
	__u64 value = request->state, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(byte[1] = value; value = *(volatile __u64 *)byte;)
	return finish(ctx, value);
}

/* One word through two pointers: through one the translator would know the stored value. */
ENTRY(atomic)
{
	struct request *request = request_of(ctx);
	__u64 *place = (__u64 *)(ctx->data + request->first);
	__u64 *same = (__u64 *)(ctx->data + request->second);
	__u64 value = request->state, left;

	for (left = request->count; left; left -= 16)
		EIGHT(value = __sync_fetch_and_add(place, value);
		      value = __sync_fetch_and_add(same, value);)
	return finish(ctx, value);
}

/* As `chase`; the operand is 0. */
ENTRY(atomic_chase)
{
	struct request *request = request_of(ctx);
	__u64 at = (__u64)ctx->data + request->first, nothing = request->operand, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(at = __sync_fetch_and_add((__u64 *)at, nothing);)
	return finish(ctx, at);
}

ENTRY(exchange_chase)
{
	struct request *request = request_of(ctx);
	__u64 at = (__u64)ctx->data + request->first, nothing = request->operand, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(at = __sync_val_compare_and_swap((__u64 *)at, nothing, nothing);)
	return finish(ctx, at);
}

/* ---- Helpers on bytes ---- */

/*
 * So many calls a turn, each on other bytes. r6 is their address, r7 the length, r8 the distance to
 * the next bytes, r9 another argument. A helper's result goes into r6 or r9, so that each call
 * depends on the previous one. This is in assembly because clang would keep some values on the
 * stack, and a load from there costs as much as a short call.
 */
#define BYTES(name, times, other, result, text)                                                    \
	ENTRY(name)                                                                                \
	{                                                                                          \
		struct request *request = request_of(ctx);                                         \
		__u64 from = (__u64)ctx->data + request->first, window = 0, left;                  \
		__u64 value = request->state, number __attribute__((unused)) = 0;                  \
                                                                                                   \
		for (left = request->count; left; left -= times) {                                 \
			register __u64 at asm("r6") = from + window;                               \
			register __u64 length asm("r7") = request->length;                         \
			register __u64 stride asm("r8") = request->stride;                         \
			register __u64 r9 asm("r9") = other;                                       \
			__u64 returned __attribute__((unused));                                    \
                                                                                                   \
			asm volatile(".rept " #times "\n" text "\n r6 += r8\n .endr"               \
				     : "+r"(at), "+r"(r9)                                          \
				     : "r"(length), "r"(stride)                                    \
				     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");              \
			returned = at - (from + window + times * request->stride);                 \
			value = result;                                                            \
			window += request->step;                                                   \
			if (window >= request->span)                                               \
				window = 0;                                                        \
		}                                                                                  \
		return finish(ctx, value);                                                         \
	}

BYTES(memcmp, 64, request->second, value + returned,
      "r1 = r6\n r2 = r6\n r2 += r9\n r3 = r7\n call 1\n r6 += r0")
BYTES(memmove, 64, request->second, value + returned,
      "r1 = r6\n r2 = r6\n r2 += r9\n r3 = r7\n call 2\n r6 += r0")
BYTES(memset, 64, 0, value + returned, "r1 = r6\n r2 = r9\n r3 = r7\n call 3\n r6 += r0")
BYTES(crc32c, 64, value, r9, "r1 = r6\n r2 = r9\n r3 = r7\n call 4\n r9 = r0")
/* The byte does not occur, so the result is the length: the stride is reduced by it. */
BYTES(find, 64, 1, value + returned, "r1 = r6\n r2 = r9\n r3 = r7\n call 5\n r6 += r0")
BYTES(find_any, 64, 0x01010101, value + returned, "r1 = r6\n r2 = r9\n r3 = r7\n call 14\n r6 += r0")
BYTES(xxh3, 64, value, r9, "r1 = r6\n r2 = r9\n r3 = r7\n call 8\n r9 = r0")
/* These return less than 256 unless they fail. */
BYTES(parse_int, 16, (__u64)&number, number,
      "r1 = r6\n r2 = r7\n r3 = 10\n r4 = r9\n call 7\n r0 s>>= 8\n r6 += r0")
BYTES(parse_double, 8, (__u64)&number, number,
      "r1 = r6\n r2 = r7\n r3 = r9\n call 9\n r0 s>>= 8\n r6 += r0")

/* ---- Other helpers ---- */

/* The operand is the operation, the length the other number. */
ENTRY(double)
{
	struct request *request = request_of(ctx);
	__u64 operation = request->operand, other = request->length;
	__u64 value = request->state, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(value = bpfof_double(operation, value, other);)
	return finish(ctx, value);
}

/* The same, the number being the second. */
ENTRY(double_second)
{
	struct request *request = request_of(ctx);
	__u64 operation = request->operand, other = request->length;
	__u64 value = request->state, left;

	for (left = request->count; left; left -= 16)
		SIXTEEN(value = bpfof_double(operation, other, value);)
	return finish(ctx, value);
}

ENTRY(workspace)
{
	__u64 sum = 0, left;

	for (left = request_of(ctx)->count; left; left -= 16)
		SIXTEEN(sum += (__u64)bpfof_workspace();)
	return finish(ctx, sum);
}

/* The operand is the format. */
ENTRY(decompress)
{
	struct request *request = request_of(ctx);
	__u64 sum = 0, left;

	for (left = request->count; left; left--)
		sum += bpfof_decompress(request->operand, bpfof_workspace(), request->room,
					ctx->data, request->length);
	return finish(ctx, sum);
}

ENTRY(trace)
{
	__u64 left;

	for (left = request_of(ctx)->count; left; left--)
		bpfof_trace_bytes(ctx->data, 64, left);
	return finish(ctx, 0);
}

/* Static data that fills its room, or nearly: each tail call copies it into the arena again. */
static volatile __u8 statics[BPFOF_STATICS_SIZE - 64] = { 1 };

/* Installed twice, as functions 1 and 2, which tail-call each other. */
ENTRY(tail_call)
{
	struct request *request = request_of(ctx);

	if (request->count == 0)
		return finish(ctx, request->result);
	request->count -= 1;
	request->result += statics[0];
	request->operand ^= 3;
	bpfof_tail_call(request->operand);
	return 1;
}

/* ---- Maps ---- */

struct long_key {
	/* Zeroes, so that keys differ only at their ends. */
	__u8 prefix[BPFOF_MAX_KEY_SIZE - 8];
	__u64 number;
};

struct long_value {
	__u64 words[BPFOF_MAX_VALUE_SIZE / 8];
};

/* Maps with as many entries as a map may have, or nearly. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << 21);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 19);
	__type(key, __u64);
	__type(value, __u64);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 3840);
	__type(key, struct long_key);
	__type(value, struct long_value);
} records SEC(".maps");

/*
 * A prime number: consecutive keys are far apart, and no key repeats before all others have come.
 */
#define KEY_STEP 2654435761U

/*
 * Operations, each on the next key. The operand is the number of keys. The result of one operation
 * goes into the next key, which depends on it. It is 0, except for numbers that were added to.
 */
#define KEYS(name, operation)                                                                      \
	ENTRY(name)                                                                                \
	{                                                                                          \
		struct request *request = request_of(ctx);                                         \
		__u64 state = request->state, keys = request->operand, sum = 0, left;              \
		__u64 *number __attribute__((unused)) = (__u64 *)ctx->data;                        \
		struct long_key *long_key __attribute__((unused)) =                                \
			(struct long_key *)(ctx->scratch + KEY_AT);                                \
                                                                                                   \
		for (left = request->count; left; left--) {                                        \
			__u64 key = (state + KEY_STEP) % keys, result;                             \
			__u32 index __attribute__((unused)) = key;                                 \
                                                                                                   \
			operation                                                                  \
			state = key + result;                                                      \
			sum += result;                                                             \
		}                                                                                  \
		request->state = state;                                                            \
		return finish(ctx, sum);                                                           \
	}

KEYS(array_get, result = bpfof_map_get(&numbers, &index, number) + *number;)
KEYS(array_set, result = bpfof_map_set(&numbers, &index, number, BPF_ANY);)
KEYS(array_add, result = bpfof_map_add(&numbers, &index, 0, 1);)
KEYS(hash_get, result = bpfof_map_get(&table, &key, number) + *number;)
KEYS(hash_set, result = bpfof_map_set(&table, &key, number, BPF_EXIST);)
KEYS(hash_add, result = bpfof_map_add(&table, &key, 0, 1);)
KEYS(hash_delete, result = bpfof_map_delete(&table, &key);)
KEYS(long_get, long_key->number = key;
     result = bpfof_map_get(&records, long_key, number) + *number;)
KEYS(long_set, long_key->number = key;
     result = bpfof_map_set(&records, long_key, number, BPF_EXIST);)
KEYS(long_add, long_key->number = key; result = bpfof_map_add(&records, long_key, 0, 1);)
KEYS(long_delete, long_key->number = key; result = bpfof_map_delete(&records, long_key);)

/* ---- Chains ---- */

/* The offset of one of `operand` pieces of 512 bytes. */
static inline __u64 next_place(struct request *request)
{
	request->state = request->state * 0x5851f42d4c957f2dULL + 0x14057b7ef767814fULL;
	return ((request->state >> 32) * request->operand >> 32) * 512;
}

/* So many hops, each with one read at a random place. */
ENTRY(hop)
{
	struct request *request = request_of(ctx);

	if (request->count == 0)
		return bpfof_answer(ctx, ANSWER_SIZE);
	request->count -= 1;
	return bpfof_read(ctx, 0, next_place(request), request->length);
}

/* The same, each with as many reads as possible. */
ENTRY(fan_out)
{
	struct request *request = request_of(ctx);
	__u32 i;

	if (ctx->read_index != 0)
		return 0;
	if (request->count == 0)
		return bpfof_answer(ctx, ANSWER_SIZE);
	request->count -= 1;
	for (i = 0; i < BPFOF_MAX_READS; i++) {
		ctx->next_offset[i] = next_place(request);
		ctx->next_size[i] = request->length;
		ctx->next_file[i] = 0;
	}
	ctx->reads = BPFOF_MAX_READS;
	return 0;
}

/* As `hop`, with a workspace. */
ENTRY(workspace_hop)
{
	struct request *request = request_of(ctx);

	*(volatile __u64 *)bpfof_workspace() = request->count;
	if (request->count == 0)
		return bpfof_answer(ctx, ANSWER_SIZE);
	request->count -= 1;
	return bpfof_read(ctx, 0, next_place(request), request->length);
}
