/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * bpf_of::PushdownDB for Go, which calls C. Functions that can fail return an error message, which the
 * caller frees with free(), or NULL. All functions but ycsb_open and ycsb_close may be called by many
 * threads at once.
 */
#ifndef BPFOF_GO_YCSB_SHIM_H
#define BPFOF_GO_YCSB_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ycsb_db;

/* How reads are served; bpf_of::Mode tells more. */
enum ycsb_mode {
	YCSB_PLAIN,
	YCSB_CHAINS,
	YCSB_BLOCKS,
};

struct ycsb_options {
	/* The folder of the database, and the target and its device as in bpf_of::PushdownOptions. */
	const char *path;
	const char *url;
	const char *device;
	enum ycsb_mode mode;
	/* The size of the loaded database: its levels are in proportion to it. */
	uint64_t bytes;
	/* Threads that will read at once. */
	size_t threads;
	/* If not 0, the database is created, and must not exist. */
	int create;
};

/* Memory that the caller frees with free(). */
struct ycsb_bytes {
	char *data;
	size_t length;
};

/* The counters of bpf_of::PushdownStats, and names of ways in the same order; these are not freed. */
#define YCSB_WAYS 16
struct ycsb_stats {
	uint64_t gets[YCSB_WAYS];
	const char *names[YCSB_WAYS];
	uint64_t blocks;
	uint64_t seeks;
};

/* Opens or creates the database. Close `*db` with ycsb_close(). */
char *ycsb_open(const struct ycsb_options *options, struct ycsb_db **db);

/* Closes the database; its memory is freed even if that fails. */
char *ycsb_close(struct ycsb_db *db);

/* Flushes all writes into tables, and waits until compactions have ended and all tables are known here
 * and at the target. */
char *ycsb_settle(struct ycsb_db *db);

char *ycsb_put(
	struct ycsb_db *db, const void *key, size_t key_length, const void *value, size_t value_length);

/* `*found` is 0 if there is no such key; then there is no value to free. */
char *ycsb_get(
	struct ycsb_db *db, const void *key, size_t key_length, struct ycsb_bytes *value, int *found);

/* Returns the values of up to `count` keys from this one on, each after its length in 4 bytes,
 * little-endian.
 */
char *ycsb_scan(struct ycsb_db *db, const void *from, size_t from_length, size_t count,
	struct ycsb_bytes *values);

char *ycsb_delete(struct ycsb_db *db, const void *key, size_t key_length);

/* Counts since the database was opened. */
void ycsb_stats(struct ycsb_db *db, struct ycsb_stats *stats);

/* Why the last chain failed, or ""; the caller frees it with free(). */
char *ycsb_last_error(struct ycsb_db *db);

#ifdef __cplusplus
}
#endif

#endif
