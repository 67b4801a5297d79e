/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Finds a key in a sorted block with prefix compression and restart points:
 * entries of three varints (bytes shared with the key before, other bytes of
 * the key, bytes of the value), the other bytes, the value; then the offsets of
 * the restart points, at which nothing is shared, and their number.
 */
#include "bpfof.h"

#define KEY_MAX 64

struct request {
	__u32 length;
	__u32 found;
	__u8 key[KEY_MAX];
	__u8 current[KEY_MAX];
	__u8 value[64];
};

static inline const __u8 *varint(const __u8 *at, __u32 *value)
{
	__u32 result = 0;

	for (__u32 shift = 0; shift < 32; shift += 7) {
		__u8 byte = *at++;

		result |= (__u32)(byte & 127) << shift;
		if (byte < 128)
			break;
	}
	*value = result;
	return at;
}

static inline __s64 compare(const __u8 *a, __u32 a_length, const __u8 *b, __u32 b_length)
{
	__u32 length = a_length < b_length ? a_length : b_length;
	__s64 order = bpfof_memcmp(a, b, length);

	return order ? order : (__s64)a_length - (__s64)b_length;
}

SEC("bpfof/block")
int block(struct bpfof_ctx *ctx)
{
	struct request *request = (struct request *)ctx->scratch;
	const __u32 *tail = (const __u32 *)ctx->data_end - 1;
	__u32 restarts = *tail, low = 0, high = restarts, length = 0;
	const __u8 *at, *end;

	if (request->length > KEY_MAX || restarts == 0 || restarts > 1024)
		return 1;
	tail -= restarts;
	end = (const __u8 *)tail;
	/* The last restart point whose key is not greater than the wanted
	 * key. */
	while (high - low > 1) {
		__u32 middle = (low + high) / 2, shared, other, value;

		at = varint(ctx->data + tail[middle], &shared);
		at = varint(at, &other);
		at = varint(at, &value);
		if (compare(at, other, request->key, request->length) <= 0)
			low = middle;
		else
			high = middle;
	}
	at = ctx->data + tail[low];
	request->found = 0;
	while (at < end) {
		__u32 shared, other, value;
		__s64 order;

		at = varint(at, &shared);
		at = varint(at, &other);
		at = varint(at, &value);
		if (shared > length || shared + other > KEY_MAX)
			return 2;
		bpfof_memmove(request->current + shared, at, other);
		length = shared + other;
		at += other;
		order = compare(request->current, length, request->key, request->length);
		if (order == 0) {
			if (value > sizeof(request->value))
				return 3;
			bpfof_memmove(request->value, at, value);
			request->found = value;
			break;
		}
		if (order > 0)
			break;
		at += value;
	}
	ctx->done = 1;
	return 0;
}
