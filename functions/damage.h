/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Codes with which block_get, filter_reduce, hash_get, log_walk and sst_get abort: the file, or the
 * request, is invalid. stores/structures/src/damage.rs has the same codes in Rust.
 */
#ifndef DAMAGE_H
#define DAMAGE_H

/* The argument, not the file, is invalid: it is contradictory, or scratch is too small for it. */
#define DAMAGE_REQUEST 1
/* A block is shorter than the fixed parts of such a block, or not as long as it says. */
#define DAMAGE_SIZE 2
/* The checksum does not match. */
#define DAMAGE_CHECKSUM 3
/* An entry reaches beyond its block, or is malformed. */
#define DAMAGE_ENTRY 4
/* A pointer to an impossible place, or to more bytes than one read can have. */
#define DAMAGE_POINTER 5
/* More blocks than the request allows: probably a cycle. */
#define DAMAGE_TOO_MANY_BLOCKS 6
/* The block belongs to another bucket. */
#define DAMAGE_WRONG_PLACE 7
/* The block is compressed in a way that the function does not support, or that a call cannot pay for. */
#define DAMAGE_COMPRESSED 8
/* A key in a block is too long for scratch. */
#define DAMAGE_KEY_TOO_LONG 9

#endif
