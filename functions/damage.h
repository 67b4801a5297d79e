/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * With what block_get, filter_reduce, hash_get, log_walk and sst_get abort: what is wrong with the
 * file, or with the request. stores/structures/src/damage.rs has the same in Rust.
 */
#ifndef DAMAGE_H
#define DAMAGE_H

/* Not the file but the argument: it contradicts itself, or scratch is too small for it. */
#define DAMAGE_REQUEST 1
/* A block is too short for what every such block has, or not as long as it says. */
#define DAMAGE_SIZE 2
/* The checksum is another. */
#define DAMAGE_CHECKSUM 3
/* An entry reaches beyond its block, or is none. */
#define DAMAGE_ENTRY 4
/* A pointer to where nothing can be, or to more bytes than one read can have. */
#define DAMAGE_POINTER 5
/* More blocks than the request allows: is there a cycle? */
#define DAMAGE_TOO_MANY_BLOCKS 6
/* A block of another bucket. */
#define DAMAGE_WRONG_PLACE 7
/* A block that is compressed, in a way that the function does not know. */
#define DAMAGE_COMPRESSED 8
/* A key in a block is so long that scratch has no room for it. */
#define DAMAGE_KEY_TOO_LONG 9

#endif
