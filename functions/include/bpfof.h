/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The ABI between a storage function and the bpf-of target.
 *
 * A storage function is one C function in a section named "bpfof/<name>":
 *
 *     SEC("bpfof/get")
 *     int get(struct bpfof_ctx *ctx) { ... }
 *
 * The target reads a block and calls the function on it. The function either
 * asks for more reads (sets next_offset[], next_size[], next_file[] and reads)
 * or ends the chain (sets done and out_len: the first out_len bytes of scratch
 * are the answer). It returns 0, or a non-zero code that aborts the chain and
 * reaches the host as it is.
 *
 * Everything that a function can address lies in one private arena: its stack (8
 * frames of 512 bytes), the context, its static data, the scratch buffer and the
 * data read. Any other access, and any write to constants, ends the chain with
 * "function fault". No macro, annotation or bounds check is needed to please a
 * verifier.
 *
 * Static variables belong to the chain: they have their initial values when the
 * chain begins and keep their values from call to call, until another function runs
 * in the chain (see bpfof_tail_call). Variables, constants, strings and tables may
 * take BPFOF_STATICS_SIZE bytes together. Functions may call other functions of the
 * same object, in any section. Function pointers are not supported.
 *
 * Compile with:  clang -O2 -g -target bpf -mcpu=v3 -I include -c f.bpf.c -o f.bpf.o
 * (-mcpu=v4, of clang 18 and later, works too: signed division, sign extension.)
 */
#ifndef BPFOF_H
#define BPFOF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))

/* Maximum number of reads of one hop. */
#define BPFOF_MAX_READS 16
/* The default size of scratch in bytes, and the largest size that a request may
 * declare. */
#define BPFOF_SCRATCH_SIZE 4096
#define BPFOF_MAX_SCRATCH_SIZE 16384
/* Maximum size of a function's static data in bytes, constants included. */
#define BPFOF_STATICS_SIZE 3072
/* Maximum bytes that one hop may read. Each read is rounded out to whole logical
 * blocks, or to 64 bytes if the namespace is memory. */
#define BPFOF_MAX_HOP_BYTES 65536

/*
 * Inputs are written again before every call: a function that changes them changes
 * only its own copy. Outputs are zero when a chain begins. When a hop begins,
 * reads, done, out_len and the entries of next_*[] that the previous hop used are
 * cleared. All calls of a hop share the outputs, so each call may append reads.
 */
struct bpfof_ctx {
	/* in: the bytes just read, exactly as many as were requested */
	__u8 *data;
	__u8 *data_end;
	/* in: the request's private buffer: argument in, answer out */
	__u8 *scratch;
	/* in: the file offset of data, in bytes */
	__u64 offset;
	/* in: size of scratch in bytes, as the request declared it, and the maximum
	 * length of the answer. From the end of the argument up to this size
	 * scratch is zero; beyond it are leftovers of earlier chains of the same
	 * association. */
	__u32 scratch_size;
	/* in: number of this hop, from 0 */
	__u32 hop;
	/* in: index of the read of this hop that data is from, from 0 (calls come
	 * in order) */
	__u32 read_index;
	/* in: index of the file in the request's list that data is from, from 0 */
	__u32 file;

	/* out: number of entries of next_*[] that are set, at most 16 */
	__u32 reads;
	/* out: non-zero ends the chain at once */
	__u32 done;
	/* out: length of the answer, the first bytes of scratch */
	__u32 out_len;
	__u32 reserved;
	/* out: the next reads: file offset in bytes, size in bytes (an entry of
	 * size 0 is skipped), and index into the request's file list */
	__u64 next_offset[BPFOF_MAX_READS];
	__u32 next_size[BPFOF_MAX_READS];
	__u32 next_file[BPFOF_MAX_READS];
};

/*
 * Helpers. All lengths are in bytes. A range that leaves the arena faults, and so
 * does a write to constants.
 *
 * Costs are in units of 0.2 ns (docs/tenants.md, Cost is time). An instruction
 * costs 1, but a load 12, a store 2, a branch 6, a multiplication 3, a division 12,
 * an atomic operation 10, a call of a function 8. Stores and atomic operations of
 * more than a byte cost 22 more, unless they are on variables on the stack. All
 * that one call of the function executes may cost 1000000 together (200 us), unless
 * the target is configured otherwise; an operation that costs more than is left
 * faults.
 */

/* Errors of helpers. Helpers return them negative; the values are those of
 * errno. */
#define BPFOF_EINVAL 22 /* an argument or the text is invalid */
#define BPFOF_ERANGE 34 /* the result does not fit */
#define BPFOF_ENOENT 2 /* a map has no entry with this key */
#define BPFOF_EEXIST 17 /* the map already has an entry with this key */
#define BPFOF_ENOSPC 28 /* the map is full, or the index is past its end */

/* The helpers up to bpfof_xxh3, except bpfof_find_all, cost a fixed number of units:
 * bpfof_memcmp 10; bpfof_memmove and bpfof_memset 46; bpfof_crc32c, bpfof_find and
 * bpfof_xxh3 40; bpfof_find_any 60. In addition they cost 1 unit for every 8 bytes;
 * bpfof_crc32c and bpfof_find_any for every 4. */

/* memcmp: returns < 0, 0 or > 0 as the first differing bytes compare. */
static __s64 (*const bpfof_memcmp)(const void *a, const void *b, __u64 len) = (void *)1;
/* memmove: the ranges may overlap. Returns 0. */
static __s64 (*const bpfof_memmove)(void *to, const void *from, __u64 len) = (void *)2;
/* memset: fills with the low byte of value. Returns 0. */
static __s64 (*const bpfof_memset)(void *to, __u64 value, __u64 len) = (void *)3;
/* Continues a CRC-32C (Castagnoli) over len bytes; crc is the CRC of the bytes
 * before, 0 at the start. */
static __u64 (*const bpfof_crc32c)(const void *data, __u64 crc, __u64 len) = (void *)4;
/* memchr: returns the offset of the first byte equal to the low byte of byte, or
 * len if there is none. */
static __u64 (*const bpfof_find)(const void *data, __u64 byte, __u64 len) = (void *)5;
/* Returns the offset of the first byte that is one of four, or len if there is
 * none. The four bytes: BPFOF_ANY(',', '\n', '"', '"'). To search for fewer, repeat
 * one of them. */
static __u64 (*const bpfof_find_any)(const void *data, __u64 bytes, __u64 len) = (void *)14;
#define BPFOF_ANY(a, b, c, d)                                                          \
	((__u64)(__u8)(a) | (__u64)(__u8)(b) << 8 | (__u64)(__u8)(c) << 16 |           \
	 (__u64)(__u8)(d) << 24)
/*
 * Lists all offsets from data, below len, at which one of the four bytes is: the
 * first `most` offsets, ascending, as __u16. Returns how many it has written to
 * list; if that is `most`, there may be more. Entries of list behind those have
 * undefined contents, up to `most` or len entries. Returns -BPFOF_EINVAL if len is
 * more than 65536, or if list overlaps data.
 *
 * Costs 40 units, 32 for every 64 bytes searched, and 4 for each offset listed.
 */
static __s64 (*const bpfof_find_all)(const void *data, __u64 len, __u64 bytes, __u16 *list,
				     __u64 most) = (void *)15;
/* 64-bit XXH3, as RocksDB and others use it with seed 0. */
static __u64 (*const bpfof_xxh3)(const void *data, __u64 seed, __u64 len) = (void *)8;

/*
 * Ends this function and continues with the installed function of this number: from
 * its beginning, on the same block, with the same context and scratch and the rest
 * of the budget. Its return value and outputs become the call's. Returns only on
 * failure: -1, if there is no such function, or after 33 tail calls in one call.
 * The host knows the numbers of the functions that it has loaded, and can pass them
 * in the argument.
 *
 * Static variables: a function finds its own as its last call in this chain left
 * them only if no other function has run in between; otherwise they have their
 * initial values again. The next hop calls the function of the request again.
 *
 * Costs 500 units.
 */
static __s64 (*const bpfof_tail_call)(__u64 function) = (void *)6;

/*
 * Parses the integer at the start of text: an optional sign, then digits of the
 * base, 2 to 36. In base 16 the digits may follow 0x or 0X. Base 0 is 16 after 0x
 * or 0X, 8 after another 0, else 10. No spaces are skipped. With BPFOF_UNSIGNED
 * added to the base the number is an unsigned 64-bit integer, without a minus sign.
 * Stores the number at value and returns how many bytes of text it takes. Returns
 * -BPFOF_EINVAL if there is no number, -BPFOF_ERANGE if it does not fit; then
 * nothing is stored.
 *
 * Costs 65 units, and 8 for each byte examined: the number and the byte that ends
 * it.
 */
#define BPFOF_UNSIGNED 0x100
static __s64 (*const bpfof_parse_int)(const void *text, __u64 len, __u64 base, void *value) =
	(void *)7;

/*
 * Parses the decimal number at the start of text as a double, correctly rounded: an
 * optional sign, digits with a point before, between or behind them, and an
 * optional exponent. Stores its bits, a __u64, at value and returns how many bytes
 * of text it takes. Returns -BPFOF_EINVAL if there is no number, -BPFOF_ERANGE if
 * it is too large for a double or takes more than 128 bytes; then nothing is
 * stored.
 *
 * Costs 145 units, 8 for each byte examined, and 30000 more for a number of more
 * than 19 digits before the exponent, not counting leading zeroes.
 */
static __s64 (*const bpfof_parse_double)(const void *text, __u64 len, void *value) = (void *)9;

/*
 * Arithmetic on doubles, which eBPF does not have. a, b and results are the bits of
 * an IEEE 754 binary64 unless said otherwise. Rounds to nearest, as C does; a NaN
 * result is always 7ff8000000000000h. Conversions use only a.
 *
 * Costs 32 units.
 */
#define BPFOF_DOUBLE_ADD 0
#define BPFOF_DOUBLE_SUB 1
#define BPFOF_DOUBLE_MUL 2
#define BPFOF_DOUBLE_DIV 3
#define BPFOF_DOUBLE_COMPARE 4  /* returns -1, 0, 1, or 2 if one of them is NaN */
#define BPFOF_DOUBLE_FROM_S64 5 /* a is an integer */
#define BPFOF_DOUBLE_FROM_U64 6
#define BPFOF_DOUBLE_TO_S64 7   /* returns an integer: rounded towards zero, */
#define BPFOF_DOUBLE_TO_U64 8   /* saturated if out of range, 0 for NaN */
static __u64 (*const bpfof_double)(__u64 operation, __u64 a, __u64 b) = (void *)10;

/*
 * Decompresses a block from `from` to `to`, which must not overlap, and returns the
 * size of the result. Returns -BPFOF_EINVAL if the data is damaged, the format
 * unknown or to_size too small; then `to` has undefined contents, as have the bytes
 * of `to` behind a shorter result. Formats have the numbers of RocksDB's block
 * trailers. Zstandard data is one frame without a dictionary; bytes behind the
 * frame are ignored.
 *
 * Costs 125 units, and for each byte of from_size and of to_size: Snappy 16 and 3,
 * LZ4 6 and 4, all others 8 and 8. So give no more room than the result needs. Each
 * block of a Zstandard frame costs 30000 more (a frame has one for every 128 KiB).
 */
#define BPFOF_SNAPPY 1 /* the raw format, which begins with the length */
#define BPFOF_LZ4 4    /* the block format, without a length */
#define BPFOF_LZ4HC 5  /* the same */
#define BPFOF_ZSTD 7
static __s64 (*const bpfof_decompress)(__u64 format, void *to, __u64 to_size, const void *from,
				       __u64 from_size) = (void *)11;

/*
 * Returns the address of the workspace: BPFOF_WORKSPACE_SIZE bytes for data that a
 * call produces, for example decompressed blocks. Only objects that call this
 * helper have one; for others these addresses are not mapped. Later calls and hops
 * of the chain find the workspace as earlier ones left it; at the start of a chain
 * it has leftovers of earlier chains of the same association. Costs 25 units.
 */
#define BPFOF_WORKSPACE_SIZE 65536
static __u8 *(*const bpfof_workspace)(void) = (void *)12;

/*
 * Records a line for the author of the function: up to 64 bytes of text, and a
 * number. The target keeps the last 32 lines of a function, up to 8 of one call,
 * and counts the rest; `bpfof function list` and `function check --run` show them.
 * An association sees the lines of its own calls. The owner of a kept function, the
 * host that installed it, sees the lines of all calls. Costs 1000 units.
 */
#define bpfof_trace(text, value) bpfof_trace_bytes(text, sizeof(text) - 1, value)
static __s64 (*const bpfof_trace_bytes)(const void *text, __u64 len, __u64 value) = (void *)13;

/*
 * Maps: memory that functions keep from chain to chain, and that the host reads and
 * writes (bpfof function map, and the host library). Declare them as for libbpf,
 * and compile with -g:
 *
 *     struct {
 *         __uint(type, BPF_MAP_TYPE_HASH);
 *         __uint(max_entries, 1024);
 *         __type(key, __u64);
 *         __type(value, struct counters);
 *     } seen SEC(".maps");
 *
 *     bpfof_map_add(&seen, &key, 0, 1);
 *
 * A map belongs to the association (the host's connection) that loaded the
 * function; functions of other associations do not see it. All functions of the
 * association that declare a map of this name share it, and must declare it alike.
 * A map begins empty, an array with zeroes, and is removed with the last of these
 * functions. For a function that is kept for all hosts, each association has maps
 * of its own.
 *
 * Keys have up to BPFOF_MAX_KEY_SIZE bytes; the key of an array is a __u32 below
 * max_entries. Values have up to BPFOF_MAX_VALUE_SIZE bytes. A map takes at most 16
 * MiB, and an object declares at most 32 maps. All memory of a map is allocated
 * when it is created.
 *
 * Values are copied: a map has no addresses in the arena. Each helper is atomic,
 * also against chains that run at the same time; a sequence of two is not. Values
 * that a chain has written stay written if the chain fails or is run again.
 *
 * Each helper costs 1325 units, 4 for each byte of the key, and 1 for every 2 bytes
 * of the value; 10,000 more if another thread is using the map. A map argument
 * other than &map faults. Padding in keys counts, so clear it.
 */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPFOF_MAX_KEY_SIZE 256
#define BPFOF_MAX_VALUE_SIZE 4096

#define __uint(name, number) int(*name)[number]
#define __type(name, of) __typeof__(of) *name

/* Copies the value of the key to value. Returns 0, or -BPFOF_ENOENT. */
static __s64 (*const bpfof_map_get)(const void *map, const void *key, void *value) = (void *)32;
/* Sets the value of the key. Returns 0; -BPFOF_ENOSPC; with BPF_NOEXIST
 * -BPFOF_EEXIST if there is an entry; with BPF_EXIST -BPFOF_ENOENT if there is
 * none; -BPFOF_EINVAL for other flags. */
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2
static __s64 (*const bpfof_map_set)(const void *map, const void *key, const void *value,
				    __u64 flags) = (void *)33;
/* Removes the entry. Returns 0, or -BPFOF_ENOENT; -BPFOF_EINVAL for an array. */
static __s64 (*const bpfof_map_delete)(const void *map, const void *key) = (void *)34;
/* Adds delta to the __u64 at offset in the value, wrapping around; a missing entry
 * is created with zeroes first. Returns the sum, -BPFOF_ENOSPC, or -BPFOF_EINVAL if
 * the number does not lie inside the value. */
static __s64 (*const bpfof_map_add)(const void *map, const void *key, __u64 offset,
				    __u64 delta) = (void *)35;

#endif
