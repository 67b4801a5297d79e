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
 * Everything a function can name lies in one private arena: its stack (512
 * bytes a frame, 8 frames), the context, its static data, the scratch buffer
 * and the data read. Any other access ends the chain with "function fault", as
 * does a write to constants. No macro, annotation or bounds check is needed to
 * please a verifier.
 *
 * Static variables belong to the chain: they have their initial values when it
 * begins and last from call to call, until another function runs in it (see
 * bpfof_tail_call). Variables, constants, strings and tables may take
 * BPFOF_STATICS_SIZE bytes together. Functions may call others of
 * the same object, in any section; there are no function pointers.
 *
 * Compile with:  clang -O2 -g -target bpf -mcpu=v3 -I include -c f.bpf.c -o f.bpf.o
 * (-mcpu=v4, of clang 18 and later, runs too: signed division, sign extension.)
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

/* Reads one hop may ask for. */
#define BPFOF_MAX_READS 16
/* The size of scratch in bytes, unless the request declares another, and the
 * largest that it may declare. */
#define BPFOF_SCRATCH_SIZE 4096
#define BPFOF_MAX_SCRATCH_SIZE 16384
/* Static data of a function in bytes, constants included. */
#define BPFOF_STATICS_SIZE 3072
/* Bytes that one hop may read, each read rounded out to whole logical blocks, or to 64
 * bytes where the namespace is memory. */
#define BPFOF_MAX_HOP_BYTES 65536

/*
 * Inputs are written afresh before every call; a function that changes them
 * changes only its own copy. Outputs are zero when a chain begins. When a hop
 * begins, reads, done and out_len are cleared, and so are the entries of
 * next_*[] that the last hop used. The calls of a hop share them, so each call
 * may append reads.
 */
struct bpfof_ctx {
	/* in: the bytes just read, exactly as many as were asked for */
	__u8 *data;
	__u8 *data_end;
	/* in: the request's private buffer: argument in, answer out */
	__u8 *scratch;
	/* in: the file offset of data, in bytes */
	__u64 offset;
	/* in: size of scratch in bytes, as the request declared it. So much is
	 * zero behind the argument; what lies behind it is whatever earlier
	 * chains of the same association left there. No answer is longer. */
	__u32 scratch_size;
	/* in: number of this hop, from 0 */
	__u32 hop;
	/* in: which read of this hop data is, from 0 (calls come in order) */
	__u32 read_index;
	/* in: which file of the request's list data came from, from 0 */
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
 * Helpers. All lengths are in bytes; a range that leaves the arena faults, and
 * so does writing to constants.
 *
 * What a call of one costs is in units of 0.2 ns (docs/tenants.md, Cost is time),
 * as is what instructions cost: 1, but a load 12, a store 2, a branch 6, a
 * multiplication 3, a division 12, an atomic operation 10, a call of a function 8;
 * stores and atomic operations of more than a byte 22 more, unless they are of
 * variables on the stack.
 * A call of the function may cost 1000000 together (200 us), unless the target is
 * configured otherwise; what costs more than is left faults.
 */

/* Errors of helpers, negative results with the values of errno. */
#define BPFOF_EINVAL 22 /* an argument, or the text, has no meaning */
#define BPFOF_ERANGE 34 /* the result does not fit */
#define BPFOF_ENOENT 2 /* a map has no entry with this key */
#define BPFOF_EEXIST 17 /* it has one already */
#define BPFOF_ENOSPC 28 /* it is full, or the index is behind its end */

/* The next seven cost 1 unit for every 8 bytes, bpfof_crc32c and bpfof_find_any for
 * every 4, and besides 10, of bpfof_crc32c, bpfof_find and bpfof_xxh3 40, of
 * bpfof_find_any 60. */

/* memcmp: < 0, 0, > 0 as the first differing byte compares. */
static __s64 (*const bpfof_memcmp)(const void *a, const void *b, __u64 len) = (void *)1;
/* memmove: the ranges may overlap. Returns 0. */
static __s64 (*const bpfof_memmove)(void *to, const void *from, __u64 len) = (void *)2;
/* memset: fills with the low byte of value. Returns 0. */
static __s64 (*const bpfof_memset)(void *to, __u64 value, __u64 len) = (void *)3;
/* CRC-32C (Castagnoli) of len bytes that follow those with this crc; 0 at first. */
static __u64 (*const bpfof_crc32c)(const void *data, __u64 crc, __u64 len) = (void *)4;
/* memchr: where the low byte of byte is found first, len if it is not there. */
static __u64 (*const bpfof_find)(const void *data, __u64 byte, __u64 len) = (void *)5;
/* Where one of four bytes is found first, len if none is there: BPFOF_ANY(',', '\n',
 * '"', '"'). To look for fewer, name one of them again. */
static __u64 (*const bpfof_find_any)(const void *data, __u64 bytes, __u64 len) = (void *)14;
#define BPFOF_ANY(a, b, c, d)                                                          \
	((__u64)(__u8)(a) | (__u64)(__u8)(b) << 8 | (__u64)(__u8)(c) << 16 |           \
	 (__u64)(__u8)(d) << 24)
/*
 * Where the four bytes are, all of them up to len: the first `most` places, ascending, as
 * __u16 from data on. Returns how many it has written to list; if that is `most` there
 * may be more; else what follows of list up to `most`, or up to len, is anything.
 * -BPFOF_EINVAL if len is more than 65536, or if list lies in data.
 *
 * Costs 40 units, 32 for every 64 bytes that are looked at, and 4 for each place.
 */
static __s64 (*const bpfof_find_all)(const void *data, __u64 len, __u64 bytes, __u16 *list,
				     __u64 most) = (void *)15;
/* XXH3 of 64 bits, as RocksDB and others use it with seed 0. */
static __u64 (*const bpfof_xxh3)(const void *data, __u64 seed, __u64 len) = (void *)8;

/*
 * Ends this function, and lets the installed function with this number go on in
 * its place: from its beginning, on the same block, with the same context and
 * scratch and what is left of the budget. It decides what the call comes to.
 * Returns only if there is no such function, or after 33 tail calls in one call:
 * -1. The host knows the numbers of the functions that it has loaded; it can
 * pass them in the argument.
 *
 * Static variables: a function finds its own as its last call in this chain left
 * them only if no other function has run in between; else they begin anew. The
 * next hop calls the function of the request again.
 *
 * Costs 500 units.
 */
static __s64 (*const bpfof_tail_call)(__u64 function) = (void *)6;

/*
 * The whole number at the start of text: an optional sign and digits of the
 * base, 2 to 36. Before a digit 0x or 0X may stand in base 16 and in base 0,
 * which is 16 then; base 0 is 8 after another 0 and else 10. No spaces are
 * skipped. With BPFOF_UNSIGNED added to the base the number has 64 bits and may
 * not have a minus. Stores it at value and returns how many bytes it takes, or
 * -BPFOF_EINVAL if there is none, -BPFOF_ERANGE if it does not fit; then nothing
 * is stored.
 *
 * Costs 65 units, and 8 for each byte that is looked at: the number and what ends
 * it.
 */
#define BPFOF_UNSIGNED 0x100
static __s64 (*const bpfof_parse_int)(const void *text, __u64 len, __u64 base, void *value) =
	(void *)7;

/*
 * The decimal number at the start of text as a double, correctly rounded: an
 * optional sign, digits with a point before, between or behind them, and an
 * optional exponent. Stores its bits, a __u64, at value and returns how many
 * bytes it takes, or -BPFOF_EINVAL if there is none, -BPFOF_ERANGE if it is too
 * large for a double or takes more than 128 bytes; then nothing is stored.
 *
 * Costs 145 units, 8 for each byte that is looked at, and 30000 for a number of
 * more than 19 digits before the exponent, without the zeroes in front.
 */
static __s64 (*const bpfof_parse_double)(const void *text, __u64 len, void *value) = (void *)9;

/*
 * Arithmetic on doubles: eBPF has none. a, b and results are the bits of an IEEE
 * 754 binary64 unless said otherwise. Rounds to nearest, as C does; every NaN
 * that comes out is 7ff8000000000000h. Conversions use only a.
 *
 * Costs 32 units.
 */
#define BPFOF_DOUBLE_ADD 0
#define BPFOF_DOUBLE_SUB 1
#define BPFOF_DOUBLE_MUL 2
#define BPFOF_DOUBLE_DIV 3
#define BPFOF_DOUBLE_COMPARE 4  /* gives -1, 0, 1, or 2 if one of them is NaN */
#define BPFOF_DOUBLE_FROM_S64 5 /* a is an integer */
#define BPFOF_DOUBLE_FROM_U64 6
#define BPFOF_DOUBLE_TO_S64 7   /* gives an integer: towards zero, or the nearest */
#define BPFOF_DOUBLE_TO_U64 8   /* that there is; 0 for NaN */
static __u64 (*const bpfof_double)(__u64 operation, __u64 a, __u64 b) = (void *)10;

/*
 * Decompresses a block from `from` to `to`, which must not overlap, and returns
 * the size of the result; -BPFOF_EINVAL if the data is damaged, the format
 * unknown or the room too small: then `to` holds anything, and so do bytes of it
 * behind a result that is shorter. Formats have the numbers of RocksDB's block
 * trailers. Zstandard data is one frame without a dictionary; what follows it is
 * not looked at.
 *
 * Costs 125 units, and for each byte of from_size and of to_size: Snappy 16 and 3,
 * LZ4 6 and 4, all others 8 and 8. So give no more room than it takes. And 30000
 * for each block of a Zstandard frame (it has one for every 128 KiB).
 */
#define BPFOF_SNAPPY 1 /* the raw format, its length in front */
#define BPFOF_LZ4 4    /* the block format, without a length */
#define BPFOF_LZ4HC 5  /* the same */
#define BPFOF_ZSTD 7
static __s64 (*const bpfof_decompress)(__u64 format, void *to, __u64 to_size, const void *from,
				       __u64 from_size) = (void *)11;

/*
 * Where the workspace is: BPFOF_WORKSPACE_SIZE bytes for what a call makes of
 * its data, decompressed blocks for example. Objects that call this have one;
 * for others those addresses do not exist. What a call leaves there the next calls
 * and hops of its chain find; a chain begins with whatever earlier ones of the same
 * association left. Costs 25 units.
 */
#define BPFOF_WORKSPACE_SIZE 65536
static __u8 *(*const bpfof_workspace)(void) = (void *)12;

/*
 * Shows the author a line: up to 64 bytes of text, and a number. The target
 * keeps the last 32 lines of a function, up to 8 of one call, and counts the
 * others; `bpfof function list` shows them, and so does `function check --run`.
 * An association sees what its own calls say; of a kept function the owner, who
 * installed it, sees what all calls say. Costs 1000 units.
 */
#define bpfof_trace(text, value) bpfof_trace_bytes(text, sizeof(text) - 1, value)
static __s64 (*const bpfof_trace_bytes)(const void *text, __u64 len, __u64 value) = (void *)13;

/*
 * Maps: what functions remember from chain to chain, and what the host reads and
 * writes (bpfof function map, and the host library). Declared as for libbpf, and
 * compiled with -g:
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
 * function, and nobody else's functions see it. All functions of the association
 * that declare a map of this name share it; they must declare it alike. It begins
 * empty, an array with zeroes, and ends with the last of these functions. Of the
 * maps of a function that is kept for all hosts, each association has its own.
 *
 * Keys have up to BPFOF_MAX_KEY_SIZE bytes, those of an array are a __u32 below
 * max_entries; values up to BPFOF_MAX_VALUE_SIZE. A map takes 16 MiB at most, an
 * object declares up to 32. All room is there from the beginning.
 *
 * Values are copied: a map has no addresses in the arena. Each helper is atomic,
 * also against chains that run at the same time; two of them are not. What a chain
 * has written stays written if it fails or is run again.
 *
 * Each costs 1325 units, 4 for each byte of the key, and 1 for every 2 bytes of the
 * value; 10,000 more where another thread is in the map. What is not &map faults;
 * padding in keys counts, so clear it.
 */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPFOF_MAX_KEY_SIZE 256
#define BPFOF_MAX_VALUE_SIZE 4096

#define __uint(name, number) int(*name)[number]
#define __type(name, of) __typeof__(of) *name

/* Copies the value of the key to value. Returns 0 or -BPFOF_ENOENT. */
static __s64 (*const bpfof_map_get)(const void *map, const void *key, void *value) = (void *)32;
/* Sets the value of the key. Returns 0; -BPFOF_ENOSPC; with BPF_NOEXIST
 * -BPFOF_EEXIST if there is an entry, with BPF_EXIST -BPFOF_ENOENT if there is
 * none; -BPFOF_EINVAL for other flags. */
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2
static __s64 (*const bpfof_map_set)(const void *map, const void *key, const void *value,
				    __u64 flags) = (void *)33;
/* Removes the entry. Returns 0 or -BPFOF_ENOENT; -BPFOF_EINVAL for an array. */
static __s64 (*const bpfof_map_delete)(const void *map, const void *key) = (void *)34;
/* Adds delta to the __u64 at offset of the value, wrapping around; an entry that
 * is not there begins with zeroes. Returns the sum, -BPFOF_ENOSPC, or
 * -BPFOF_EINVAL if the number is not inside the value. */
static __s64 (*const bpfof_map_add)(const void *map, const void *key, __u64 offset,
				    __u64 delta) = (void *)35;

#endif
